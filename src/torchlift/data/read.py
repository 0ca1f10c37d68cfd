"""Checks of (inputs, targets, context) when data come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import check_like
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data.arrays import as_tensor, is_array
from torchlift.data.base import Batch
from torchlift.operators.context import Context, map_context

PAIR = "a pair (inputs, targets) or a triple (inputs, targets, context)"

_COMPLEX = "torch.view_as_real gives real and imaginary parts along an axis of their own."

#: Types of integer inputs, such as indices of tokens.
INDICES = (torch.int64, torch.int32)


def read_batch(where: str, item: object, like: Tensor | None) -> Batch:
    """(inputs, targets) or (inputs, targets, context) as a batch on the device of `like`.

    Inputs are a floating-point tensor (B, …) in the dtype of `like`, or indices (B, …) of type int64 or int32 where
    `like` is given. Targets are a tensor (B, …) that is in this dtype or not floating-point, such as labels. Tensors
    are never cast; arrays of numpy are (see `numpy_rule`). The first sample that is not finite is named. Without
    `like`, the device is that of the inputs.
    """
    y, x, raw_context = split(where, item)
    y = as_tensor(f"{where} inputs", y, like, inputs=True)
    _check_inputs(where, y, like)
    x = as_tensor(f"{where} targets", x, like)
    if x.is_complex():
        invalid_value(f"{where} targets", "real numbers", x.dtype, _COMPLEX)
    context = _as_context(where, raw_context, like)
    for name, tensor in (("targets", x), *_named(context)):
        _check_samples(where, name, tensor, len(y))
    _check_finite(f"{where} inputs", y)
    _check_finite(f"{where} targets", x)
    device = y.device if like is None else like.device
    y, x, context = _detached(y), _detached(x), map_context(context, _detached)
    batch = Batch(y.to(device), x.to(device), map_context(context, lambda tensor: tensor.to(device)))
    if like is not None:
        for name, tensor in (("inputs", batch.y), ("targets", batch.x)):
            if tensor.is_floating_point():
                check_like(f"{where} {name}", tensor, like)
    return batch


def split(where: str, item: object) -> tuple[Any, Any, Any]:
    """The three parts of a pair or a triple, as they are."""
    if not isinstance(item, (tuple, list)):
        keys = [f"item[{key!r}]" for key in item] if isinstance(item, Mapping) else []
        hint = f"Return a tuple such as ({keys[0]}, {keys[-1]})." if len(keys) > 1 else ""
        invalid_type(where, PAIR, item, hint)
    if len(item) not in (2, 3):
        invalid_value(where, PAIR, f"{len(item)} parts" if len(item) != 1 else "1 part")
    inputs, targets = item[:2]
    return inputs, targets, item[2] if len(item) == 3 else None


def _check_inputs(where: str, inputs: Tensor, like: Tensor | None) -> None:
    if not inputs.is_floating_point() and (like is None or inputs.dtype not in INDICES):
        hint = "Pictures of bytes: `.float() / 255`." if inputs.dtype == torch.uint8 else ""
        hint = _COMPLEX if inputs.is_complex() else hint or "Try `.float()` or `.double()`."
        invalid_value(f"{where} inputs", "a floating-point tensor", inputs.dtype, hint)
    if inputs.ndim < 2:
        hint = "One number per sample is `inputs[:, None]`."
        invalid_value(f"{where} inputs", "shape (samples, …) with two axes or more", tuple(inputs.shape), hint)
    if len(inputs) == 0:
        invalid_value(where, "at least one sample", f"inputs of shape {tuple(inputs.shape)}")


def _detached(tensor: Tensor) -> Tensor:
    """Features that another network made without its graph, which the first step would go through and free."""
    return tensor.detach() if tensor.requires_grad else tensor


def _as_context(where: str, context: Any, like: Tensor | None) -> Context:
    if context is None:
        return None
    if isinstance(context, Mapping):
        return {key: as_tensor(f"{where} context {key!r}", value, like) for key, value in context.items()}
    if not isinstance(context, Tensor) and not is_array(context):
        invalid_type(f"{where} context", "a tensor or a mapping of names to tensors", context)
    return as_tensor(f"{where} context", context, like)


def _named(context: Context) -> list[tuple[str, Tensor]]:
    """Every tensor of a context, with its name in messages."""
    if isinstance(context, Mapping):
        return [(f"context {key!r}", tensor) for key, tensor in context.items()]
    return [] if context is None else [("context", context)]


def _check_samples(where: str, name: str, tensor: Tensor, samples: int) -> None:
    if tensor.ndim == 0:
        invalid_value(f"{where} {name}", "shape (samples, …)", "a tensor without axes")
    if len(tensor) != samples:
        hint = "Row i of inputs, targets and context belongs to sample i."
        invalid_value(f"{where} {name}", f"{samples} samples, as many as the inputs", len(tensor), hint)


def _check_finite(where: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()):
        return
    position = tuple((~torch.isfinite(tensor)).nonzero()[0].tolist())
    hint = "Remove such samples, or mend them with torch.nan_to_num."
    invalid_value(where, "finite values", f"{float(tensor[position])} at sample {position[0]}", hint)
