"""`as_batches`: numbered batches from tensors, data sets, loaders or functions; and a share held out for validation."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from torchlift.core.checks import check_number, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data.base import Batches
from torchlift.data.loader import IterableBatches, LoaderBatches, check_map_style, stream_loader
from torchlift.data.passes import permutation
from torchlift.data.read import read_batch, split
from torchlift.data.tensors import Draw, DrawnBatches, TensorBatches, clip_size, take

Data: TypeAlias = tuple[Any, ...] | Dataset[Any] | DataLoader[Any] | Draw


def as_batches(
    data: Data,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    like: Tensor | None = None,
    where: str = "data",
) -> Batches:
    """Numbered batches of any kind of training data.

    | data | batches |
    |---|---|
    | `(inputs, targets)` or `(inputs, targets, context)` | `TensorBatches` |
    | a `TensorDataset` | its tensors, as above |
    | a map-style `Dataset` of such items, or a list of more than three | `LoaderBatches`, shuffled |
    | an `IterableDataset` of such items | `IterableBatches`, in its own order |
    | a `DataLoader` of one of these | the same, with its own batch size and order |
    | `draw(generator)` that returns such tensors | `DrawnBatches`, drawn anew every epoch |

    Arrays of numpy, and what turns into one by `__array__`, may stand for tensors everywhere. They are copied;
    floating-point arrays take the dtype of `like`, integers become int64. Tensors are neither cast nor copied, so
    that changing them in place changes the data.

    Arguments:
        data: one of these; the context is what operators know of each sample.
        batch_size: samples per batch, at most all; None for all at once (100 of a stream without a length). A
            DataLoader keeps its own.
        seed: of orders, and of all that the data draws at random.
        like: a parameter of the network: inputs have its dtype or are integers, and batches are on its device.
        where: what error messages call the data.
    """
    data = unwrapped(data)
    if isinstance(data, (tuple, list)):
        return TensorBatches(*split(where, data), batch_size=batch_size, seed=seed, like=like, where=where)
    if isinstance(data, IterableDataset):
        data = stream_loader(data, batch_size)
    if isinstance(data, DataLoader) and isinstance(data.dataset, IterableDataset):
        return IterableBatches(data, seed=seed, like=like, where=where)
    if isinstance(data, DataLoader):
        return LoaderBatches(data, seed=seed, like=like, where=where)
    if isinstance(data, Dataset):
        check_map_style(where, data)
        loader = DataLoader(data, clip_size(batch_size, len(data)), shuffle=batch_size is not None)  # type: ignore[arg-type]
        return LoaderBatches(loader, seed=seed, like=like, where=where)
    if callable(data):
        return DrawnBatches(data, batch_size=batch_size, seed=seed, like=like, where=where)
    expected = "(inputs, targets), (inputs, targets, context), a Dataset, a DataLoader or a function draw(generator)"
    invalid_type(where, expected, data, "Try (inputs, targets): two tensors or arrays with a row for each sample.")


def unwrapped(data: Any) -> Any:
    """The tensors of a `TensorDataset`; a list of samples as a data set; anything else as it is.

    Samples have two parts or three each, and there are more of them than that.
    """
    if isinstance(data, TensorDataset):
        return tuple(data.tensors)
    several = isinstance(data, (tuple, list)) and len(data) > 3
    if several and all(isinstance(sample, (tuple, list)) and len(sample) in (2, 3) for sample in data):
        return Subset(data, range(len(data)))  # type: ignore[arg-type]
    return data


def hold_out(data: Data, share: float, *, seed: int = 0, like: Tensor | None = None) -> tuple[Data, Data]:
    """Samples to train with and samples to validate with, drawn at random: always the same ones for a seed.

    Arguments:
        data: (inputs, targets), (inputs, targets, context) or a map-style data set, or a list of samples.
        share: of the samples that is held out, between 0 and 1; at least one sample stays on either side.
        seed: of the choice.
        like: a parameter of the network, whose dtype arrays take.
    """
    if not 0 < check_number("validation", share) < 1:
        invalid_value("validation", "data, or a share of the training data between 0 and 1", share)
    data = unwrapped(data)
    batch = read_batch("data", data, like) if isinstance(data, (tuple, list)) else None
    if batch is None and (not isinstance(data, Dataset) or isinstance(data, IterableDataset)):
        kind = "a DataLoader" if isinstance(data, DataLoader) else type(data).__name__
        hint = "Divide it before, for example with torch.utils.data.random_split."
        invalid_value("validation", f"data of its own beside {kind}", share, hint)
    if batch is None:
        check_map_style("data", data)
    samples = len(data) if batch is None else len(batch.y)  # type: ignore[arg-type]
    if samples < 2:
        invalid_value("validation", "at least two samples to divide", samples)
    held = min(max(round(share * samples), 1), samples - 1)
    order = permutation(samples, torch.Generator().manual_seed(check_size("seed", seed, minimum=0)))
    parts = [part.sort().values for part in (order[held:], order[:held])]  # in their own order
    chosen: list[Any] = (
        [Subset(data, part.tolist()) for part in parts]  # type: ignore[arg-type]
        if batch is None
        else [take(batch, part.to(batch.y.device), 0, samples) for part in parts]
    )
    return chosen[0], chosen[1]
