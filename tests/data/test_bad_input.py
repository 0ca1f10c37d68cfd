"""What is refused, and in which words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.data import DrawnBatches, IterableBatches, LoaderBatches, as_batches

Y, X = torch.ones(6, 3), torch.ones(6, 2)


def _spoilt(tensor: Tensor, sample: int, value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[sample, 1] = value
    return tensor


class Items(Dataset):
    """A data set of given items."""

    def __init__(self, *items: object) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        return self.items[index]


class Lengthless(Dataset):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return Y[0], X[0]


class Endless(IterableDataset):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield Y[0], X[0]


class Unmeasured:
    """A sampler without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(6))


def _loader(data: Dataset | None = None, **options: object) -> DataLoader:
    return DataLoader(data or TensorDataset(Y, X), **options)


PAIR = r"expected a pair \(inputs, targets\) or a triple \(inputs, targets, context\)"
VALUES = {
    "nan in y": (
        lambda: as_batches((_spoilt(Y, 4, float("nan")), X)),
        "data inputs: .*finite values, got nan at sample 4",
    ),
    "inf in x": (lambda: as_batches((Y, _spoilt(X, 2, -float("inf")))), "data targets: .*finite.*-inf at sample 2"),
    "nan in a TensorDataset": (
        lambda: as_batches(TensorDataset(_spoilt(Y, 5, float("nan")), X), batch_size=2),
        "data inputs: .*nan at sample 5",
    ),
    "fewer targets": (lambda: as_batches((Y, X[:5])), "data targets: expected 6 samples, as many as the inputs, got 5"),
    "fewer masks": (lambda: as_batches((Y, X, Y[:4])), "data context: expected 6 samples.*got 4"),
    "fewer masks by name": (lambda: as_batches((Y, X, {"mask": Y[:4]})), "data context 'mask': expected 6.*got 4"),
    "no samples": (lambda: as_batches((Y[:0], X[:0])), r"at least one sample, got inputs of shape \(0, 3\)"),
    "one axis": (lambda: as_batches((Y[:, 0], X)), r"data inputs: .*two axes or more, got \(6,\).*inputs\[:, None\]"),
    "no axes in x": (lambda: as_batches((Y, X[0, 0])), "data targets: .*without axes"),
    "whole inputs": (lambda: as_batches((Y.long(), X)), r"data inputs: .*floating-point.*int64.*\.float\(\)"),
    "whole inputs of a strange type": (
        lambda: as_batches((Y.short(), X), like=Y),
        "floating-point tensor, got .*int16",
    ),
    "bytes": (lambda: as_batches((Y.byte(), X), like=Y), r"floating-point tensor, got .*uint8.*`.float\(\) / 255`"),
    "an array of bytes": (lambda: as_batches((Y.byte().numpy(), X), like=Y), r"got .*uint8.*`.float\(\) / 255`"),
    "an array of text": (
        lambda: as_batches((Y, np.array(["a"] * 6))),
        "data targets: expected an array of real numbers, got dtype <U1.*labels",
    ),
    "an array of objects": (lambda: as_batches((Y, np.array([None] * 6))), "real numbers, got dtype object"),
    "complex inputs": (lambda: as_batches((Y + 1j, X)), r"data inputs: .*got torch.complex64. torch.view_as_real"),
    "complex targets": (lambda: as_batches((Y, X + 1j)), r"data targets: expected real numbers, got .*view_as_real"),
    "samples that do not stack": (
        lambda: as_batches(Items((Y[0], X[0]), (Y[0, :2], X[0])), batch_size=2).batch(0),
        r"samples that stack to one tensor, got stack expects.*collate_fn that pads",
    ),
    "complex numbers": (lambda: as_batches((Y.numpy() + 1j, X)), "data inputs: .*real numbers, got dtype complex64"),
    "integers that torch does not have": (
        lambda: as_batches((Y, np.full(6, 2**64 - 1, dtype=np.uint64))),
        "data targets: expected integers up to 9223372036854775807, got 18446744073709551615",
    ),
    "nan in an array": (
        lambda: as_batches((_spoilt(Y, 3, float("nan")).numpy(), X)),
        "data inputs: expected finite values, got nan at sample 3",
    ),
    "an array with too few rows": (lambda: as_batches((Y, X.numpy()[:4])), "data targets: expected 6 samples.*got 4"),
    "one part": (lambda: as_batches((Y,)), f"{PAIR}, got 1 part\\."),
    "four parts": (lambda: as_batches((Y, X, None, X)), f"{PAIR}, got 4 parts"),
    "batch size 0": (lambda: as_batches((Y, X), batch_size=0), "batch_size: expected a whole number >= 1, got 0"),
    "batch size 0 of a data set": (lambda: as_batches(Items((Y[0], X[0])), batch_size=0), "batch_size: .* >= 1"),
    "batch size 0 of a draw": (lambda: as_batches(lambda g: (Y, X), batch_size=0), "batch_size: .* >= 1"),
    "size 0 in order": (lambda: as_batches((Y, X)).ordered(0), "batch_size: .* >= 1"),
    "size 0 in order, loader": (lambda: as_batches(_loader()).ordered(0), "batch_size: .* >= 1"),
    "negative seed": (lambda: as_batches((Y, X), seed=-1), "seed: expected a whole number >= 0, got -1"),
    "negative count": (lambda: as_batches((Y, X)).batch(-1), "count: expected a whole number >= 0"),
    "negative count, loader": (lambda: as_batches(_loader()).batch(-1), "count: .* >= 0"),
    "negative count, draw": (lambda: as_batches(lambda g: (Y, X)).batch(-1), "count: .* >= 0"),
    "dtype of y": (
        lambda: as_batches((Y.double(), X), like=Y, where="validation data"),
        r"validation data inputs: expected dtype torch.float32, got torch.float64.*\.to\(torch.float32\)",
    ),
    "dtype of x": (lambda: as_batches((Y, X.double()), like=Y), "data targets: expected dtype torch.float32"),
    "dtype in a loader": (
        lambda: as_batches(_loader(), like=Y.double()),
        "data sample 0 inputs: expected dtype torch.float64, got torch.float32",
    ),
    "dtype in a draw": (lambda: as_batches(lambda g: (Y, X), like=Y.double()), "data epoch 0 inputs: expected dtype"),
    "empty data set": (lambda: as_batches(Items()), "at least one sample, got an empty data set"),
    "all dropped": (lambda: as_batches(_loader(batch_size=9, drop_last=True)), "at least one batch.*drop_last"),
    "no batches": (lambda: as_batches(DataLoader(TensorDataset(Y, X), batch_sampler=[])), "batch, got an empty loader"),
    "unbatched": (lambda: as_batches(_loader(batch_size=None)), "makes batches, got one with batch_size=None.*Set"),
    "persistent workers": (
        lambda: as_batches(_loader(num_workers=1, persistent_workers=True)),
        "persistent_workers=False.*resumed",
    ),
    "workers in any order": (lambda: as_batches(_loader(num_workers=1, in_order=False)), "in_order=True, got False"),
    "nan in a loader": (
        lambda: as_batches(_loader(TensorDataset(_spoilt(Y, 4, float("nan")), X), batch_size=3)).batch(3),
        "data epoch 1 batch 1 inputs: expected finite values, got nan at sample 1",
    ),
    "nan in order": (
        lambda: list(as_batches(_loader(TensorDataset(Y, _spoilt(X, 4, float("nan"))), batch_size=3)).ordered(2)),
        "data in order, batch 2 targets: .*nan at sample 0",
    ),
    "nan in a draw": (
        lambda: as_batches(lambda g: (_spoilt(Y, 3, float("nan") if g.initial_seed() == 1 else 0.0), X)).batch(1),
        "data epoch 1 inputs: expected finite values, got nan at sample 3",
    ),
    "a draw that shrinks": (
        lambda: as_batches(lambda g: (Y[: 6 - g.initial_seed()], X[: 6 - g.initial_seed()])).batch(2),
        r"data epoch 2 inputs: expected shape \(6, 3\), as in epoch 0, got \(4, 3\)",
    ),
    "a draw with other targets": (
        lambda: as_batches(lambda g: (Y, X[:, : 2 - g.initial_seed()])).batch(1),
        r"data epoch 1 targets: expected shape \(6, 2\), as in epoch 0, got \(6, 1\)",
    ),
}
TYPES = {
    "a tensor": (
        lambda: as_batches(Y),
        r"expected \(inputs, targets\), .*DataLoader.*got Tensor.*two tensors or arrays",
    ),
    "an array without targets": (lambda: as_batches(Y.numpy()), r"expected \(inputs, targets\), .*got ndarray"),
    "targets in a list": (
        lambda: as_batches((Y, [1] * 6)),
        "data targets: expected a torch.Tensor or a numpy array, got list",
    ),
    "a mask in a list": (lambda: as_batches((Y, X, [1] * 6)), "data context: expected a tensor or a mapping.*got list"),
    "a list by name": (
        lambda: as_batches((Y, X, {"mask": [1] * 6})),
        "data context 'mask': .*torch.Tensor or a numpy array, got list",
    ),
    "batch size True": (lambda: as_batches((Y, X), batch_size=True), "batch_size: expected a whole number, got bool"),
    "batch size 2.0": (lambda: as_batches((Y, X), batch_size=2.0), "batch_size: expected a whole number, got float"),
    "items without targets": (lambda: as_batches(Items(Y[0], Y[1])), f"{PAIR}, got Tensor"),
    "items by name": (lambda: as_batches(Items({"y": Y[0]})), f"{PAIR}, got dict"),
    "no length": (lambda: as_batches(Lengthless()), "a map-style data set, which has a length, got Lengthless"),
    "a stream as numbered data": (lambda: LoaderBatches(DataLoader(Endless())), "which has a length, got Endless"),
    "numbered data as a stream": (lambda: IterableBatches(_loader()), "of an IterableDataset, got TensorDataset"),
    "no loader of a stream": (lambda: IterableBatches(Endless()), "a DataLoader of an IterableDataset, got Endless"),
    "a loader without length": (
        lambda: as_batches(_loader(batch_sampler=Unmeasured())),
        "a loader with a length, got Unmeasured.*__len__",
    ),
    "a draw without targets": (lambda: as_batches(lambda g: Y), f"data epoch 0: {PAIR}, got Tensor"),
    "no loader": (lambda: LoaderBatches(Items()), "expected a DataLoader, got Items"),
    "no function": (lambda: DrawnBatches(Y), "expected a function of a generator, got Tensor"),
}


@pytest.mark.parametrize("case", VALUES)
def test_bad_values_are_refused(case: str) -> None:
    _refused(InvalidValueError, *VALUES[case])


@pytest.mark.parametrize("case", TYPES)
def test_bad_types_are_refused(case: str) -> None:
    _refused(InvalidTypeError, *TYPES[case])


def _refused(error: type[Exception], call: Callable[[], object], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_labels_of_any_whole_type_are_fine(dtype: torch.dtype) -> None:
    labels = torch.tensor([0, 1, 1, 0, 1, 0], dtype=dtype)
    assert as_batches((Y, labels), like=Y).batch(0).x.dtype == dtype
