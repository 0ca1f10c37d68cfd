"""What only loaders have: workers, samplers, epochs that change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from torchlift.core.errors import TorchliftError
from torchlift.data import Batches, as_batches


class Counting(Dataset):
    """(i + noise, i, the worker that read it), and how often items were read here."""

    def __init__(self, samples: int) -> None:
        self.samples, self.reads = samples, 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int, Tensor]:
        self.reads += 1
        worker = get_worker_info()
        return index + torch.rand(1), index, torch.tensor(-1 if worker is None else worker.id)


def _epoch(batches: Batches, epoch: int) -> list[int]:
    first = epoch * batches.per_epoch
    return [label for k in range(batches.per_epoch) for label in batches.batch(first + k).x.tolist()]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with one core
def test_workers_give_the_same_numbers_when_resumed() -> None:
    def fresh() -> Batches:
        return as_batches(DataLoader(Counting(9), batch_size=3, shuffle=True, num_workers=2), seed=5)

    batches = fresh()
    first = [batches.batch(k) for k in range(6)]
    assert sorted(_epoch(batches, 0)) == sorted(_epoch(batches, 1)) == list(range(9))
    torch.manual_seed(99)
    again = fresh().batch(4)
    assert torch.equal(again.y, first[4].y) and torch.equal(again.x, first[4].x)
    assert not set(first[0].y.flatten().tolist()) & set(first[3].y.flatten().tolist()), "noise is fresh"
    ordered = [list(batches.ordered(4)) for _ in range(2)]
    assert [label for part in ordered[0] for label in part.x.tolist()] == list(range(9))
    assert all(torch.equal(a.y, b.y) for a, b in zip(*ordered, strict=True))
    for parts in (first, ordered[0]):
        assert {int(worker) for part in parts for worker in part.context} == {0, 1}


def test_asking_in_order_reads_every_sample_once() -> None:
    data = Counting(12)
    batches = as_batches(data, batch_size=3, seed=0)
    before = data.reads
    for k in range(8):
        batches.batch(k)
        batches.batch(k)  # the last one is remembered
    assert data.reads - before == 24
    batches.batch(2)  # going back starts the epoch again
    assert data.reads - before == 24 + 9


def test_only_the_sampler_s_part_is_visited() -> None:
    part = [8, 1, 6, 3]
    batches = as_batches(DataLoader(Counting(10), batch_size=3, sampler=SubsetRandomSampler(part)), seed=0)
    assert batches.samples == 4
    assert sorted(_epoch(batches, 0)) == sorted(part)
    assert next(batches.ordered(10)).x.tolist() == sorted(part)


@pytest.mark.parametrize(
    "sampler",
    [
        RandomSampler(range(10), replacement=True, num_samples=6),
        RandomSampler(range(10), num_samples=6),
        WeightedRandomSampler([1.0] * 10, 6),
    ],
    ids=["replacement", "some", "weighted"],
)
def test_evaluation_sees_all_that_samplers_draw_from(sampler: RandomSampler | WeightedRandomSampler) -> None:
    batches = as_batches(DataLoader(Counting(10), batch_size=3, sampler=sampler), seed=0)
    assert (batches.samples, batches.per_epoch) == (10, 2)
    assert next(batches.ordered(10)).x.tolist() == list(range(10))
    assert _epoch(batches, 1) == _epoch(batches, 1) != _epoch(batches, 0)


def test_evaluation_sees_what_drop_last_leaves_out() -> None:
    batches = as_batches(DataLoader(Counting(10), batch_size=4, shuffle=True, drop_last=True), seed=0)
    assert (batches.samples, batches.per_epoch, len(_epoch(batches, 0))) == (10, 2, 8)
    assert sum(len(part.y) for part in batches.ordered()) == 10


def test_samplers_that_count_epochs_are_told() -> None:
    sampler = DistributedSampler(Counting(10), num_replicas=2, rank=0)
    batches = as_batches(DataLoader(Counting(10), batch_size=2, sampler=sampler), seed=0)
    assert _epoch(batches, 0) != _epoch(batches, 1)
    assert _epoch(batches, 0) == _epoch(batches, 0)


class Growing:
    """A sampler of batches whose second epoch has other batches than it says."""

    def __init__(self, said: int, later: int) -> None:
        self.said, self.later, self.epoch = said, later, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.said

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1]] * (self.later if self.epoch else self.said))


@pytest.mark.parametrize(("later", "words"), [(2, "expected 3 batches, got 2"), (5, "expected 3 batches, got more")])
def test_epochs_that_change_size_are_refused(later: int, words: str) -> None:
    batches = as_batches(DataLoader(Counting(4), batch_sampler=Growing(3, later)), seed=0, where="training data")
    _epoch(batches, 0)
    with pytest.raises(TorchliftError, match=f"training data epoch 1: {words}"):
        _epoch(batches, 1)


def test_an_endless_sampler_is_refused_and_does_not_hang() -> None:
    class Endless(Growing):
        def __iter__(self) -> Iterator[list[int]]:
            while True:
                yield [0, 1]

    batches = as_batches(DataLoader(Counting(4), batch_sampler=Endless(2, 2)), seed=0)
    with pytest.raises(TorchliftError, match="epoch 0: expected 2 batches, got more than 2"):
        _epoch(batches, 0)


def test_an_error_of_the_data_set_leaves_the_global_stream_alone() -> None:
    class Broken(Counting):
        def __getitem__(self, index: int) -> tuple[Tensor, int, Tensor]:
            if index == 3:
                raise RuntimeError("file 3 is gone")
            return super().__getitem__(index)

    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    batches = as_batches(Broken(4), batch_size=2, seed=0)
    with pytest.raises(RuntimeError, match="file 3 is gone"):
        _epoch(batches, 0)
    assert torch.equal(torch.rand(3), expected)


def test_a_batch_that_failed_can_be_asked_for_again() -> None:
    class Flaky(Counting):
        def __getitem__(self, index: int) -> tuple[Tensor, int, Tensor]:
            item = super().__getitem__(index)
            if self.reads == 4:  # after the example, in the second batch
                raise OSError("the network is down")
            return item

    batches = as_batches(Flaky(8), batch_size=2, seed=0)
    batches.batch(0)
    with pytest.raises(OSError, match="the network is down"):
        batches.batch(1)
    expected = as_batches(Counting(8), batch_size=2, seed=0).batch(1)
    assert torch.equal(batches.batch(1).y, expected.y)


def test_loaders_of_tensor_data_keep_their_own_size_and_order() -> None:
    data = TensorDataset(torch.arange(6.0)[:, None], torch.arange(6))
    batches = as_batches(DataLoader(data, batch_size=4), batch_size=2, seed=0)
    assert batches.batch_size == 4
    assert batches.batch(0).x.tolist() == [0, 1, 2, 3]
