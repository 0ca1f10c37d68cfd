"""Arrays of numpy, and whatever turns into one, as tensors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

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
