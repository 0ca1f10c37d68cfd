"""From what users have to batches."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from torchlift.core.errors import invalid_type
from torchlift.data.base import Batches
from torchlift.data.drawn import Draw, DrawnBatches
from torchlift.data.loader import LoaderBatches, check_map_style
from torchlift.data.read import split
from torchlift.data.tensors import TensorBatches, clip_size

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
    | `(y, x)` or `(y, x, context)` | `TensorBatches` |
    | a `TensorDataset` | its tensors, as above |
    | a map-style `Dataset` of such items | `LoaderBatches`, shuffled |
    | a `DataLoader` | `LoaderBatches`, with its own batch size and order |
    | `draw(generator)` that returns such tensors | `DrawnBatches`, drawn anew every epoch |

    Args:
        data: one of these. y are inputs, x targets, context what operators know of each sample.
        batch_size: samples per batch, at most all; None for all at once. A DataLoader keeps its own.
        seed: of orders, and of all that the data draws at random.
        like: a parameter of the network: y has its dtype, and batches are on its device.
        where: what error messages call the data.
    """
    if isinstance(data, TensorDataset):
        data = tuple(data.tensors)
    if isinstance(data, (tuple, list)):
        return TensorBatches(*split(where, data), batch_size=batch_size, seed=seed, like=like, where=where)
    if isinstance(data, DataLoader):
        return LoaderBatches(data, seed=seed, like=like, where=where)
    if isinstance(data, Dataset):
        return LoaderBatches(_loader(where, data, batch_size), seed=seed, like=like, where=where)
    if callable(data):
        return DrawnBatches(data, batch_size=batch_size, seed=seed, like=like, where=where)
    expected = "(y, x), (y, x, context), a Dataset, a DataLoader or a function draw(generator)"
    invalid_type(where, expected, data, "Try (torch.as_tensor(y), torch.as_tensor(x)).")


def _loader(where: str, data: Any, batch_size: int | None) -> DataLoader[Any]:
    check_map_style(where, data)
    return DataLoader(data, clip_size(batch_size, len(data)), shuffle=batch_size is not None)
