"""What only streams have: an unknown length, epochs that differ, iterators of their own."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from torchlift.core.errors import InvalidValueError, TorchliftError
from torchlift.data import Batches, as_batches


class Stream(IterableDataset):
    """(i + noise, i) for i in each epoch's range, divided among workers; `reads` counts the samples."""

    def __init__(self, *lengths: float) -> None:
        self.lengths, self.epoch, self.reads = lengths, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        length = self.lengths[min(self.epoch, len(self.lengths) - 1)]
        worker = get_worker_info()
        index, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while index < length:
            self.reads += 1
            yield index + torch.rand(1), index
            index += step


class Sized(Stream):
    """The same with a length, which may be wrong."""

    def __init__(self, said: int, *lengths: float) -> None:
        super().__init__(*lengths or (said,))
        self.said = said

    def __len__(self) -> int:
        return self.said


def _epoch(batches: Batches, epoch: int) -> list[int]:
    first = epoch * batches.per_epoch
    return [label for k in range(batches.per_epoch) for label in batches.batch(first + k).x.tolist()]


def test_the_length_is_known_after_the_first_epoch() -> None:
    batches = as_batches(Stream(7), batch_size=3)
    for name in ("samples", "per_epoch"):
        words = "data: expected a data set of known length, got a stream whose end has not been seen.*steps or a time"
        with pytest.raises(InvalidValueError, match=words):
            getattr(batches, name)
    for k in range(3):
        batches.batch(k)
        assert not batches.sized
    assert batches.batch(3).x.tolist() == [0, 1, 2]
    assert batches.sized and (batches.samples, batches.per_epoch) == (7, 3)


def test_a_run_resumed_in_a_later_epoch_finds_the_length() -> None:
    batches = as_batches(Stream(7), batch_size=3, seed=1)
    first = [batches.batch(k) for k in range(9)]
    for k in (8, 5, 3):
        assert torch.equal(as_batches(Stream(7), batch_size=3, seed=1).batch(k).y, first[k].y)


def test_an_endless_stream_has_one_endless_epoch() -> None:
    stream = Stream(math.inf)
    batches = as_batches(stream, batch_size=3)
    assert [batches.batch(k).x.tolist() for k in (0, 1, 99)] == [[0, 1, 2], [3, 4, 5], [297, 298, 299]]
    assert not batches.sized
    assert [part.x.tolist() for part in islice(batches.ordered(2), 3)] == [[0, 1], [2, 3], [4, 5]]


def test_asking_in_order_reads_every_sample_once() -> None:
    stream = Stream(12)
    batches = as_batches(stream, batch_size=3)
    batches.example()
    for k in range(8):
        batches.batch(k)
        batches.batch(k)
    assert stream.reads == 24
    batches.batch(5)  # going back starts the epoch again
    assert stream.reads == 24 + 6


def test_without_a_size_a_stream_without_a_length_has_batches_of_100() -> None:
    assert len(as_batches(Stream(math.inf)).batch(2).y) == 100
    assert len(as_batches(Sized(7)).batch(2).y) == 7
    assert as_batches(Sized(7), batch_size=50).batch_size == 7


def test_what_drop_last_leaves_out_is_left_out() -> None:
    for stream in (Stream(8), Sized(8)):
        batches = as_batches(DataLoader(stream, batch_size=3, drop_last=True))
        assert sum(len(part.y) for part in batches.ordered()) == 6
        assert (batches.samples, batches.per_epoch) == (6, 2)


@pytest.mark.parametrize("later", [4, 5, 6])
def test_a_few_samples_less_in_a_later_epoch_are_fine(later: int) -> None:
    batches = as_batches(Stream(6, later), batch_size=3)
    list(batches.ordered())
    assert _epoch(batches, 1) == list(range(later))
    assert _epoch(batches, 0) == list(range(6))


@pytest.mark.parametrize(("later", "words"), [(3, "2 batches, got 1"), (0, "2 batches, got 0"), (9, "got more than 2")])
@pytest.mark.parametrize("sized", [False, True])
def test_epochs_of_other_length_are_refused(later: int, words: str, sized: bool) -> None:
    data = Sized(6, 6, later) if sized else Stream(6, later)
    batches = as_batches(data, batch_size=3, where="training data")
    list(batches.ordered())
    _epoch(batches, 0)
    known = "as `__len__` says" if sized else "as many as the first"
    with pytest.raises(InvalidValueError, match=f"training data epoch 1: .*{words}.*{known}"):
        _epoch(batches, 1)


@pytest.mark.parametrize(("said", "words"), [(9, "3 batches, got 2"), (3, "1 batches, got more than 1")])
def test_a_wrong_length_is_refused(said: int, words: str) -> None:
    with pytest.raises(InvalidValueError, match=f"epoch 0: expected {words}.*`__len__`"):
        as_batches(Sized(said, 6), batch_size=3).batch(2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Stream(0), "at least one batch, got an empty stream"),
        (lambda: Sized(0), "at least one batch, got an empty stream"),
        (lambda: Sized(0, 5), "epoch 0: expected 0 batches, got more than 0"),
        (lambda: DataLoader(Stream(3), batch_size=4, drop_last=True), "an empty stream.*drop_last"),
        (lambda: DataLoader(Stream(3), num_workers=1, persistent_workers=True), "persistent_workers=False"),
        (lambda: DataLoader(Stream(3), num_workers=1, in_order=False), "in_order=True"),
    ],
)
def test_bad_streams_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidValueError, match=words):
        as_batches(make())


def test_a_bad_sample_is_named_by_its_batch() -> None:
    class Spoilt(Stream):
        def __iter__(self) -> Iterator[tuple[Tensor, int]]:
            for y, x in super().__iter__():
                yield (y * math.nan if x == 4 else y), x

    for spoilt in (lambda b: b.batch(1), lambda b: b.batch(2), lambda b: list(b.ordered())):
        with pytest.raises(TorchliftError, match=r"data epoch 0 batch 1 inputs: .*got nan at sample 1"):
            spoilt(as_batches(Spoilt(9), batch_size=3))


def test_streams_that_share_one_iterator_are_refused() -> None:
    class Once(IterableDataset):
        def __init__(self) -> None:
            self.items = iter([(torch.ones(1), 0)] * 5)

        def __iter__(self) -> Iterator[tuple[Tensor, int]]:
            return self.items

    with pytest.raises(InvalidValueError, match=r"a new iterator each time, got the same one twice.*yield"):
        as_batches(Once())


def test_evaluation_in_the_middle_of_an_epoch_does_not_disturb_it() -> None:
    batches, plain = as_batches(Stream(6, 7), batch_size=3), as_batches(Stream(6, 6), batch_size=3)
    for each in (batches, plain):
        list(each.ordered())
    assert torch.equal(batches.batch(2).y, plain.batch(2).y)
    list(batches.ordered())  # tells the stream that it is in epoch 0
    assert torch.equal(batches.batch(2).y, plain.batch(2).y)


def test_shuffling_by_a_buffer_is_repeated() -> None:
    class Shuffled(Stream):
        def __iter__(self) -> Iterator[tuple[Tensor, int]]:
            items = list(super().__iter__())
            random.shuffle(items)
            yield from items

    batches = as_batches(Shuffled(20), batch_size=5, seed=2)
    list(batches.ordered())
    orders = [_epoch(batches, epoch) for epoch in (0, 1, 0, 1)]
    assert orders[0] == orders[2] != orders[1] == orders[3]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(20))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with one core
def test_workers_share_a_stream() -> None:
    def fresh() -> Batches:
        return as_batches(DataLoader(Sized(11), batch_size=4, num_workers=2), seed=5)

    batches = fresh()
    assert not batches.sized, "eleven samples are 4 + 2 and 4 + 1, not 4 + 4 + 3"
    first = [batches.batch(k) for k in range(6)]
    assert (batches.samples, batches.per_epoch) == (11, 4)
    assert sorted(label for batch in first[:4] for label in batch.x.tolist()) == list(range(11))
    again = fresh().batch(5)
    assert torch.equal(again.y, first[5].y) and not torch.equal(again.y, first[1].y)
    assert [len(part.y) for part in batches.ordered()] == [4, 4, 3]


def test_a_batch_that_failed_can_be_asked_for_again() -> None:
    class Flaky(Stream):
        def __iter__(self) -> Iterator[tuple[Tensor, int]]:
            for item in super().__iter__():
                if self.reads == 5:
                    raise OSError("the network is down")
                yield item

    batches = as_batches(Flaky(8), batch_size=2)
    batches.batch(1)
    with pytest.raises(OSError, match="the network is down"):
        batches.batch(2)
    assert torch.equal(batches.batch(2).y, as_batches(Stream(8), batch_size=2).batch(2).y)
