"""Arrays of numpy in place of tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from torchlift.core.errors import InvalidValueError
from torchlift.data import as_batches

Y = np.arange(18.0).reshape(6, 3) / 7
X = Y[:, :2] - 1
LABELS = np.array([0, 1, 2, 1, 0, 2])
LIKE = torch.zeros(1)

FLOATS = [np.float16, np.float32, np.float64, np.longdouble, ">f4", ">f8"]
INTEGERS = [np.int8, np.uint8, np.int16, ">u2", np.uint16, np.int32, np.uint32, np.int64, np.uint64, ">i8"]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("like", [torch.zeros(1), torch.zeros(1).double()], ids=["single", "double"])
def test_floating_point_arrays_take_the_dtype_of_the_network(dtype: str, like: torch.Tensor) -> None:
    y, x = Y.astype(dtype), X.astype(dtype)
    batch = as_batches((y, x), like=like).batch(0)
    assert batch.y.dtype == batch.x.dtype == like.dtype
    torch.testing.assert_close(batch.y, torch.tensor(y.astype(np.float64)).to(like.dtype), rtol=0, atol=0)


def test_without_a_network_they_keep_theirs() -> None:
    assert as_batches((Y, X.astype(np.float32))).example().y.dtype == torch.float64
    assert as_batches((Y, X.astype(np.float32))).example().x.dtype == torch.float32


def test_tensors_are_still_not_cast() -> None:
    with pytest.raises(InvalidValueError, match=r"data inputs: expected dtype torch.float32, got torch.float64"):
        as_batches((torch.tensor(Y), X), like=LIKE)
    with pytest.raises(InvalidValueError, match=r"data targets: expected dtype torch.float32, got torch.float64"):
        as_batches((Y, torch.tensor(X)), like=LIKE)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_labels_of_any_integer_type_become_int64(dtype: str) -> None:
    batch = as_batches((Y, LABELS.astype(dtype)), like=LIKE).batch(0)
    assert batch.x.dtype == torch.int64 and batch.x.tolist() == LABELS.tolist()


def test_masks_stay_masks() -> None:
    context = as_batches((Y, X, {"mask": Y > 1, "weight": Y}), like=LIKE).batch(0).context
    assert {name: tensor.dtype for name, tensor in context.items()} == {"mask": torch.bool, "weight": torch.float32}
    assert as_batches((Y, X, Y), like=LIKE).batch(0).context.dtype == torch.float32


@pytest.mark.parametrize("view", [Y[::-1], Y[:, ::2], np.asfortranarray(Y), np.broadcast_to(Y[:1], (6, 3))])
def test_arrays_in_any_order(view: np.ndarray) -> None:
    np.testing.assert_array_equal(as_batches((view, X)).batch(0).y.numpy(), view)


def test_arrays_are_copied_and_may_be_read_only() -> None:
    for dtype in (np.float32, np.float64):
        y, x = Y.astype(dtype), LABELS.copy()
        batches = as_batches((y, x), like=LIKE)
        before = batches.batch(0).y.clone()
        y[:] = 5
        x[:] = 5
        assert torch.equal(batches.batch(0).y, before) and batches.batch(0).x.tolist() == LABELS.tolist()
        y.flags.writeable = False
        batches = as_batches((y, x), like=LIKE)
        batches.batch(0).y.zero_()
        assert (y == 5).all()


class Frame:
    """A table of another library, which turns into an array."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __array__(self, dtype: object = None, copy: bool | None = None) -> np.ndarray:
        return self.values.astype(dtype or self.values.dtype)


def test_whatever_turns_into_an_array() -> None:
    batch = as_batches((Frame(Y), Frame(LABELS)), like=LIKE).batch(0)
    assert (batch.y.dtype, batch.x.dtype) == (torch.float32, torch.int64)
    with pytest.raises(InvalidValueError, match="data inputs: expected an array of real numbers, got dtype object"):
        as_batches((Frame(Y.astype(object)), LABELS), like=LIKE)


class Items(Dataset):
    """Samples of numpy with a number of Python, or of numpy, as target."""

    def __init__(self, scalar: type = float) -> None:
        self.scalar = scalar

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple:
        return Y[index], self.scalar(LABELS[index]), {"mask": Y[index] > 1, "weight": Y[index]}


class Streamed(IterableDataset):
    def __iter__(self) -> Iterator[tuple]:
        yield from ((Y[index], X[index]) for index in range(6))


class Arrays(IterableDataset):
    """Batches of arrays."""

    def __iter__(self) -> Iterator[tuple]:
        yield Y[:4], LABELS[:4].astype(np.uint8)
        yield Y[4:], LABELS[4:].astype(np.uint8)


@pytest.mark.parametrize("scalar", [float, np.float64, np.float32])
@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: DataLoader(data, batch_size=2)])
def test_samples_of_a_data_set(scalar: type, wrap: type) -> None:
    batches = as_batches(wrap(Items(scalar)), batch_size=2, like=LIKE)
    for batch in (batches.batch(1), batches.example(), next(batches.ordered())):
        assert batch.y.dtype == batch.x.dtype == batch.context["weight"].dtype == torch.float32
        assert batch.context["mask"].dtype == torch.bool


@pytest.mark.parametrize("scalar", [int, np.uint8, np.int16])
def test_labels_of_a_data_set(scalar: type) -> None:
    batches = as_batches(DataLoader(Items(scalar), batch_size=6), like=LIKE)
    assert batches.batch(0).x.dtype == torch.int64 and batches.batch(0).x.tolist() == LABELS.tolist()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # on a machine with one core
def test_workers_make_the_same_batches() -> None:
    alone, helped = (as_batches(DataLoader(Items(), batch_size=2, num_workers=n), like=LIKE) for n in (0, 2))
    for k in range(3):
        assert torch.equal(alone.batch(k).y, helped.batch(k).y) and helped.batch(k).x.dtype == torch.float32


def test_a_loader_is_left_as_it_was() -> None:
    loader = DataLoader(Items(), batch_size=2)
    as_batches(loader, like=LIKE).batch(0)
    assert next(iter(loader))[0].dtype == torch.float64


def test_a_collation_of_one_s_own_may_give_arrays() -> None:
    def collate(items: list) -> tuple[np.ndarray, np.ndarray]:
        return np.stack([item[0] for item in items]), np.array([item[1] for item in items])

    batch = as_batches(DataLoader(Items(), batch_size=3, collate_fn=collate), like=LIKE).batch(0)
    assert batch.y.dtype == batch.x.dtype == torch.float32


def test_samples_and_batches_of_a_stream() -> None:
    batch = as_batches(Streamed(), batch_size=2, like=LIKE).batch(1)
    assert batch.y.dtype == batch.x.dtype == torch.float32
    batches = as_batches(DataLoader(Arrays(), batch_size=None), like=LIKE)
    assert batches.batch(1).y.dtype == torch.float32 and batches.batch(1).x.dtype == torch.int64
    assert [len(part.y) for part in batches.ordered()] == [4, 2]


def test_a_draw_of_arrays() -> None:
    batch = as_batches(lambda generator: (Y, X), like=LIKE).batch(0)
    assert batch.y.dtype == batch.x.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_indices_are_inputs_too(dtype: torch.dtype) -> None:
    tokens = torch.arange(12, dtype=dtype).view(6, 2)
    assert as_batches((tokens, LABELS), like=LIKE).batch(0).y.dtype == dtype
    assert as_batches((tokens.numpy(), LABELS), like=LIKE).batch(0).y.dtype == torch.int64
