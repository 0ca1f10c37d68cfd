"""Samples of numpy and Python collated in the dtype of the network."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, default_collate, default_convert

from torchlift.core.errors import invalid_value
from torchlift.data.arrays import is_array, numpy_rule


class Collate:
    """`default_collate`, with the numbers of numpy and Python as `numpy_rule` says.

    torch's own collation makes tensors in double precision of them, which cannot be told from tensors that were
    meant to be in double precision.

    Arguments:
        like: a parameter of the network, or None.
    """

    def __init__(self, like: Tensor | None) -> None:
        # Without storage: loaders send this object to their workers.
        self.like = None if like is None else like.detach().new_empty(0, device="cpu")

    def __call__(self, samples: list[Any]) -> Any:
        sample = samples[0]
        try:
            batch = default_collate(samples)
        except (TypeError, RuntimeError) as error:
            hint = "Pictures need a transform to tensors, samples of several sizes a collate_fn that pads them."
            invalid_value("data", "samples that stack to one tensor", str(error).partition("\n")[0], hint)
        if not isinstance(sample, (tuple, list)) or not isinstance(batch, (tuple, list)):
            return batch
        pairs = enumerate(zip(sample, batch, strict=True))
        return [self._fitted(part, collated, inputs=place == 0) for place, (part, collated) in pairs]

    def _fitted(self, part: object, collated: Any, *, inputs: bool) -> Any:
        """The collated tensor; `part`, as one sample has it, says whether it was a tensor from the beginning."""
        if isinstance(part, Mapping):
            return {key: self._fitted(part[key], value, inputs=inputs) for key, value in collated.items()}
        plain = is_array(part) or isinstance(part, (int, float))
        return numpy_rule(collated, self.like, inputs=inputs) if plain and isinstance(collated, Tensor) else collated


def collating(loader: DataLoader[Any], like: Tensor | None) -> DataLoader[Any]:
    """A copy of the loader that leaves arrays to us, if it collates as torch does; otherwise the loader itself."""
    if loader.collate_fn not in (default_collate, default_convert):
        return loader
    fitted = copy.copy(loader)  # the data set, the samplers and their generators are shared
    fitted.collate_fn = Collate(like) if loader.collate_fn is default_collate else _as_it_is
    return fitted


def _as_it_is(batch: Any) -> Any:
    """The item unchanged: the default of torch for batch_size=None turns arrays into tensors."""
    return batch
