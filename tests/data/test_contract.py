"""The contract of batches: every kind of data gives the same numbers whenever it is asked."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from torchlift.data import Batch, Batches, DrawnBatches, IterableBatches, LoaderBatches, TensorBatches, as_batches

SAMPLES, SIZE, PER_EPOCH = 11, 4, 3


def _tensors(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    """y of sample i is (i, −i, 0), x its label i."""
    label = torch.arange(samples)
    return torch.stack([label, -label, 0 * label], 1).double(), label


class Noisy(Dataset):
    """Items whose last entry is noise from all three global streams, with the label as context."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.y, self.x = _tensors(samples)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        noise = torch.rand(()).item() + random.random() + np.random.rand()  # noqa: NPY002
        y = self.y[index] + torch.tensor([0.0, 0.0, noise])
        return y, self.x[index], {"label": self.x[index]}


class NoisyArrays(Noisy):
    """The same as arrays of numpy, labels as numbers of Python."""

    def __getitem__(self, index: int) -> tuple:
        y, x, context = super().__getitem__(index)
        return y.numpy(), int(x), {"label": context["label"].numpy()}


class NoisyStream(IterableDataset):
    """The same, one after the other."""

    def __iter__(self) -> Iterator[tuple]:
        items = Noisy()
        for index in range(SAMPLES):
            yield items[index]


class SizedStream(NoisyStream):
    def __len__(self) -> int:
        return SAMPLES


class BatchStream(IterableDataset):
    """The same, several at a time."""

    def __iter__(self) -> Iterator[tuple]:
        items = Noisy()
        for first in range(0, SAMPLES, SIZE):
            yield default_collate([items[index] for index in range(first, min(first + SIZE, SAMPLES))])


def _draw(generator: torch.Generator) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    y, x = _tensors()
    noise = torch.rand(SAMPLES, 3, generator=generator, dtype=torch.float64) * torch.tensor([0, 0, 1])
    return y + noise, x, {"label": x}


def _draw_without_generator(_: torch.Generator) -> tuple[Tensor, Tensor]:
    y, x = _tensors()
    return y + torch.rand(SAMPLES, 1).double() * torch.tensor([0, 0, 1]), x


def _loader(**options: object) -> DataLoader:
    return DataLoader(Noisy(), **{"batch_size": SIZE, "shuffle": True, **options})


DATA: dict[str, Callable[[], object]] = {
    "tensors": _tensors,
    "tensors and context": lambda: (*_tensors(), {"label": _tensors()[1]}),
    "TensorDataset": lambda: TensorDataset(*_tensors()),
    "Dataset": Noisy,
    "DataLoader": _loader,
    "DataLoader in order": lambda: _loader(shuffle=False),
    "DataLoader with a generator": lambda: _loader(generator=torch.Generator().manual_seed(5)),
    "sampler with a generator": lambda: _loader(
        shuffle=None, sampler=RandomSampler(range(SAMPLES), generator=torch.Generator().manual_seed(5))
    ),
    "batch sampler": lambda: DataLoader(
        Noisy(), batch_sampler=BatchSampler(SubsetRandomSampler(range(SAMPLES)), SIZE, False)
    ),
    "list of batches": lambda: DataLoader(Noisy(), batch_sampler=[[0, 7, 2, 3], [8, 5, 6, 1], [9, 10, 4]]),
    "draw": lambda: _draw,
    "draw without the generator": lambda: _draw_without_generator,
    "arrays": lambda: tuple(tensor.numpy() for tensor in _tensors()),
    "Dataset of arrays": NoisyArrays,
    "draw of arrays": lambda: lambda generator: tuple(tensor.numpy() for tensor in _draw(generator)[:2]),
    "stream": NoisyStream,
    "stream of known length": SizedStream,
    "DataLoader of a stream": lambda: DataLoader(NoisyStream(), batch_size=SIZE),
    "stream of batches": lambda: DataLoader(BatchStream(), batch_size=None),
}
STREAMS = {name for name in DATA if "stream" in name}
NOT_SHUFFLED = {"DataLoader in order", "list of batches", *STREAMS}
NOISY = {name for name in DATA if name not in ("tensors", "tensors and context", "TensorDataset", "arrays")}

kinds = pytest.mark.parametrize("kind", DATA)


def _batches(kind: str, seed: int = 0) -> Batches:
    return as_batches(DATA[kind](), batch_size=SIZE, seed=seed)


def _equal(one: Batch, other: Batch) -> bool:
    contexts = [list(c.values()) if isinstance(c, dict) else [] for c in (one.context, other.context)]
    pairs = [(one.y, other.y), (one.x, other.x), *zip(*contexts, strict=True)]
    return all(torch.equal(a, b) for a, b in pairs)


def _labels(parts: list[Batch]) -> list[int]:
    return [label for part in parts for label in part.x.tolist()]


@kinds
def test_sizes(kind: str) -> None:
    batches = _batches(kind)
    if not batches.sized:
        assert kind in STREAMS
        assert sum(len(part.y) for part in batches.ordered()) == SAMPLES, "an epoch shows the length"
    assert batches.sized
    assert (batches.samples, batches.batch_size, batches.per_epoch) == (SAMPLES, SIZE, PER_EPOCH)
    assert [len(batches.batch(k).y) for k in range(2 * PER_EPOCH)] == 2 * [4, 4, 3]


@kinds
def test_the_parts_of_a_sample_stay_together(kind: str) -> None:
    for k in range(PER_EPOCH + 1):
        y, x, context = _batches(kind).batch(k)
        assert torch.equal(y[:, 0], x.double()) and torch.equal(y[:, 1], -x.double())
        assert context is None or torch.equal(context["label"], x)


@kinds
def test_every_sample_once_per_epoch_in_a_new_order(kind: str) -> None:
    batches = _batches(kind)
    orders = [_labels([batches.batch(PER_EPOCH * epoch + k) for k in range(PER_EPOCH)]) for epoch in range(3)]
    assert [sorted(order) for order in orders] == 3 * [list(range(SAMPLES))]
    assert len(set(map(tuple, orders))) == (1 if kind in NOT_SHUFFLED else 3)


@kinds
def test_the_same_count_gives_the_same_numbers(kind: str) -> None:
    batches = _batches(kind)
    first = [batches.batch(k) for k in range(2 * PER_EPOCH + 1)]
    for k in (6, 0, 0, 5, 1, 3, 2, 4):  # backwards, twice, over the border of epochs
        assert _equal(batches.batch(k), first[k])
        assert _equal(_batches(kind).batch(k), first[k]), "a run that is resumed here"


@kinds
def test_seeds_and_epochs_differ(kind: str) -> None:
    first = _batches(kind, seed=1).batch(0)
    assert not _equal(first, _batches(kind, seed=2).batch(0))
    assert not _equal(first, _batches(kind, seed=1).batch(PER_EPOCH))


@pytest.mark.parametrize("kind", sorted(NOISY))
def test_noise_is_fresh_in_every_epoch_and_the_same_in_evaluation(kind: str) -> None:
    batches = _batches(kind)
    ordered = list(batches.ordered())
    noise = [
        {float(each) for k in range(PER_EPOCH) for each in batches.batch(PER_EPOCH * epoch + k).y[:, 2]}
        for epoch in range(2)
    ]
    assert len(noise[0]) == len(noise[1]) == SAMPLES and not noise[0] & noise[1]
    assert all(map(_equal, batches.ordered(), ordered))


@kinds
@pytest.mark.parametrize("size", [None, 1, 5, SAMPLES, 100])
def test_ordered_visits_all_in_their_own_order(kind: str, size: int | None) -> None:
    parts = list(_batches(kind).ordered(size))
    assert _labels(parts) == list(range(SAMPLES))
    length = min(size or SIZE, SAMPLES)
    assert [len(part.y) for part in parts[:-1]] == [length] * (len(parts) - 1)
    assert all(torch.equal(part.y[:, 0], part.x.double()) for part in parts)


@kinds
def test_ordered_does_not_disturb_the_batches(kind: str) -> None:
    plain, asked = _batches(kind), _batches(kind)
    for k in range(PER_EPOCH + 2):
        list(asked.ordered(3))
        asked.example()
        assert _equal(plain.batch(k), asked.batch(k))


@kinds
def test_example_is_one_sample(kind: str) -> None:
    batches = _batches(kind)
    assert _equal(batches.example(), next(batches.ordered(1)))
    assert tuple(batches.example().y.shape) == (1, 3)


def _global_draws() -> list[float]:
    return [float(torch.rand(())), random.random(), float(np.random.rand())]  # noqa: NPY002


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


@kinds
def test_data_do_not_depend_on_the_global_streams(kind: str) -> None:
    _seed_all(1)
    quiet = _batches(kind)
    expected = [quiet.batch(k) for k in range(PER_EPOCH + 1)]
    ordered = list(quiet.ordered())
    _seed_all(2)
    busy = _batches(kind)
    for k, batch in enumerate(expected):
        _global_draws()
        assert _equal(busy.batch(k), batch)
    _global_draws()
    assert all(map(_equal, busy.ordered(), ordered))


@kinds
def test_the_global_streams_do_not_depend_on_data(kind: str) -> None:
    data = DATA[kind]()
    _seed_all(3)
    expected = [_global_draws() for _ in range(4)]
    _seed_all(3)
    found = [_global_draws()]
    batches = as_batches(data, batch_size=SIZE, seed=0)
    found.append(_global_draws())
    for k in range(PER_EPOCH + 1):
        batches.batch(k)
    found.append(_global_draws())
    for _ in batches.ordered():
        pass
    found.append(_global_draws())
    assert found == expected


def test_a_generator_that_is_shared_with_the_loader_is_left_as_it_was() -> None:
    shared = torch.Generator().manual_seed(7)
    before = shared.get_state()
    batches = as_batches(_loader(generator=shared), seed=0)
    first = batches.batch(0)
    assert torch.equal(shared.get_state(), before)
    torch.rand(3, generator=shared)
    assert _equal(first, as_batches(_loader(generator=shared), seed=0).batch(0))


@pytest.mark.parametrize("kind", ["tensors", "arrays", "TensorDataset", "Dataset", "draw", "stream of known length"])
def test_without_a_batch_size_all_samples_come_at_once_in_order(kind: str) -> None:
    batches = as_batches(DATA[kind](), seed=3)
    assert (batches.per_epoch, batches.batch_size) == (1, SAMPLES)
    for k in (0, 1):
        assert batches.batch(k).x.tolist() == list(range(SAMPLES))


def test_a_full_batch_is_not_copied() -> None:
    y, x = _tensors()
    batch = as_batches((y, x)).batch(4)
    assert batch.y is y and batch.x is x
    assert batch.inputs is y and batch.targets is x


def test_kinds() -> None:
    expected = {"tensors": TensorBatches, "TensorDataset": TensorBatches, "Dataset": LoaderBatches}
    expected |= {"stream": IterableBatches, "DataLoader of a stream": IterableBatches, "arrays": TensorBatches}
    for kind, cls in {**expected, "DataLoader": LoaderBatches, "draw": DrawnBatches}.items():
        assert type(_batches(kind)) is cls


def test_a_function_that_draws_nothing_gives_the_batches_of_its_tensors() -> None:
    plain = as_batches(_tensors(), batch_size=SIZE, seed=4)
    drawn = as_batches(lambda generator: _tensors(), batch_size=SIZE, seed=4)
    assert all(_equal(plain.batch(k), drawn.batch(k)) for k in range(2 * PER_EPOCH))


def test_orders_are_those_on_record() -> None:
    """Changing them would change every run that is resumed."""
    batches = as_batches(_tensors(), batch_size=SIZE, seed=3)
    for count in range(2 * PER_EPOCH):
        epoch, k = divmod(count, PER_EPOCH)
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(3 * 1_000_003 + epoch))
        assert batches.batch(count).x.tolist() == order[SIZE * k : SIZE * (k + 1)].tolist()


def test_very_large_seeds_work() -> None:
    for kind in ("tensors", "Dataset", "draw", "stream"):
        assert len(_batches(kind, seed=10**30).batch(1).y) == SIZE


@given(samples=st.integers(1, 40), size=st.integers(1, 50), loader=st.booleans(), count=st.integers(0, 200))
def test_any_sizes(samples: int, size: int, loader: bool, count: int) -> None:
    data = Noisy(samples) if loader else _tensors(samples)
    batches = as_batches(data, batch_size=size, seed=1)
    assert batches.batch_size == min(size, samples)
    assert batches.per_epoch == -(-samples // batches.batch_size)
    first = count // batches.per_epoch * batches.per_epoch
    epoch = [batches.batch(first + k) for k in range(batches.per_epoch)]
    assert sorted(_labels(epoch)) == list(range(samples))
    assert _equal(epoch[count - first], as_batches(data, batch_size=size, seed=1).batch(count))
    assert _labels(list(batches.ordered(size))) == list(range(samples))


def test_tensors_go_to_the_device_of_the_network() -> None:
    like = torch.empty(0, dtype=torch.float64, device="meta")  # a device that is not the CPU, on every machine
    for kind in ("tensors and context", "Dataset", "draw", "stream", "Dataset of arrays"):
        batches = as_batches(DATA[kind](), batch_size=SIZE, like=like)
        y, x, context = batches.batch(0)
        assert {y.device.type, x.device.type, context["label"].device.type} == {"meta"}
        assert next(batches.ordered()).y.device.type == "meta"


@given(samples=st.integers(1, 40), size=st.integers(1, 12))
def test_no_sample_is_alone_where_others_are_not(samples: int, size: int) -> None:
    """Normalisation over a batch needs two samples or more: what is left over joins the last batch."""
    batches = as_batches(_tensors(samples), batch_size=size, seed=0)
    labels = [batches.batch(count).x for count in range(batches.per_epoch)]
    assert sorted(torch.cat(labels).tolist()) == list(range(samples))
    assert all(torch.equal(batches.indices(count), x) for count, x in enumerate(labels))  # type: ignore[arg-type]
    assert all(len(x) == batches.batch_size for x in labels[:-1])
    if samples > 1 and size > 1:
        assert 1 < len(labels[-1]) <= batches.batch_size + 1


def test_a_list_of_samples_is_a_data_set() -> None:
    y, x = _tensors()
    batches = as_batches([(row, int(label)) for row, label in zip(y, x, strict=True)], batch_size=SIZE, seed=0)
    epoch = [batches.batch(count) for count in range(batches.per_epoch)]
    order = torch.cat([batch.x for batch in epoch])
    assert sorted(order.tolist()) == x.tolist()
    assert torch.equal(torch.cat([batch.y for batch in epoch]), y[order])
