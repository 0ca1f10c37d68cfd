"""Arrays of numpy and whatever turns into one as tensors, also in the batches of a loader."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate, default_convert

from torchlift.core.errors import invalid_type, invalid_value

_LARGEST = np.iinfo(np.int64).max


def is_array(value: object) -> bool:
    """True for an array or a scalar of numpy, and for what turns into one by `__array__`, such as a data frame."""
    return hasattr(value, "__array__") and not isinstance(value, (Tensor, type))


def as_tensor(where: str, value: object, like: Tensor | None, *, inputs: bool = False) -> Tensor:
    """A tensor as it is, or a copy of an array as `numpy_rule` says; later changes of the array do not reach the copy.

    Arguments:
        where: begins messages.
        value: a tensor, or something with `__array__`.
        like: a parameter of the network, or None.
        inputs: whether these are inputs.
    """
    if isinstance(value, Tensor):
        return value
    if not is_array(value):
        several = list(value.values()) if isinstance(value, Mapping) else value
        hint = "Try torch.as_tensor(...)."
        if isinstance(several, list | tuple) and any(isinstance(item, Tensor) or is_array(item) for item in several):
            hint = "Join several targets to one tensor."
            if inputs:
                hint = "Data of a module with two inputs are (first, targets, second): it is called with the context."
        invalid_type(where, "a torch.Tensor or a numpy array", value, hint)
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        hint = "Turn categories into labels 0, 1, … and leave columns of text out."
        invalid_value(where, "an array of real numbers", f"dtype {array.dtype}", hint)
    if array.dtype.kind == "u" and array.size and int(array.max()) > _LARGEST:
        invalid_value(where, f"integers up to {_LARGEST}", int(array.max()))
    return numpy_rule(torch.tensor(array.astype(_torch_type(array.dtype))), like, inputs=inputs)


def numpy_rule(tensor: Tensor, like: Tensor | None, *, inputs: bool) -> Tensor:
    """A tensor that came from numpy, in the dtype that a network expects.

    Floating-point numbers, which numpy has in double precision unless told otherwise, take the dtype of `like`;
    integers become int64. Only bytes among the inputs stay as they are: they are pictures rather than indices, and
    are refused with a word about their scale.
    """
    if tensor.is_floating_point():
        return tensor if like is None else tensor.to(like.dtype)
    if tensor.dtype == torch.bool or (inputs and tensor.dtype == torch.uint8):
        return tensor
    return tensor.long()


def _torch_type(dtype: np.dtype) -> np.dtype:
    """The nearest type that torch has, in the byte order of this machine."""
    if dtype.kind == "f":
        return np.dtype(np.float64) if dtype.itemsize > 8 else dtype.newbyteorder("=")
    return dtype if dtype in (np.dtype(np.bool_), np.dtype(np.uint8)) else np.dtype(np.int64)


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
