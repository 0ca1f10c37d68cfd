"""Checks of (y, x, context) at the door."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from torchlift.core.checks import check_like, check_tensor
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data.base import Batch
from torchlift.operators.context import Context, map_context

PAIR = "a pair (y, x) or a triple (y, x, context)"


def read_batch(where: str, item: object, like: Tensor | None) -> Batch:
    """(y, x) or (y, x, context) as a batch on the device of `like`; nothing is cast.

    y is a floating-point tensor (B, …) in the dtype of `like`, x a tensor (B, …)
    that is in this dtype or not floating-point, such as labels. The first
    sample that is not finite is named. Without `like`, the device is that of y.
    """
    y, x, context = split(where, item)
    if check_tensor(f"{where} y", y).ndim < 2:
        hint = "One number per sample is `y[:, None]`."
        invalid_value(f"{where} y", "shape (samples, …) with two axes or more", tuple(y.shape), hint)
    if len(y) == 0:
        invalid_value(where, "at least one sample", f"y of shape {tuple(y.shape)}")
    for name, tensor in (("x", x), *_named(context)):
        _check_samples(where, name, tensor, len(y))
    _check_finite(f"{where} y", y)
    _check_finite(f"{where} x", x)
    device = y.device if like is None else like.device
    batch = Batch(y.to(device), x.to(device), map_context(context, lambda tensor: tensor.to(device)))
    if like is not None:
        check_like(f"{where} y", batch.y, like)
        if batch.x.is_floating_point():
            check_like(f"{where} x", batch.x, like)
    return batch


def split(where: str, item: object) -> tuple[Tensor, Tensor, Context]:
    """The three parts of a pair or a triple."""
    if not isinstance(item, (tuple, list)):
        invalid_type(where, PAIR, item)
    if len(item) not in (2, 3):
        invalid_value(where, PAIR, f"{len(item)} parts" if len(item) != 1 else "1 part")
    y, x = item[:2]
    context = item[2] if len(item) == 3 else None
    if context is not None and not isinstance(context, (Tensor, Mapping)):
        invalid_type(f"{where} context", "a tensor or a mapping of names to tensors", context)
    return y, x, context


def _named(context: Context) -> list[tuple[str, Tensor]]:
    """Every tensor of a context, with its name in messages."""
    if isinstance(context, Mapping):
        return [(f"context {key!r}", tensor) for key, tensor in context.items()]
    return [] if context is None else [("context", context)]


def _check_samples(where: str, name: str, tensor: object, samples: int) -> None:
    if not isinstance(tensor, Tensor):
        invalid_type(f"{where} {name}", "a torch.Tensor", tensor, "Try torch.as_tensor(...).")
    if tensor.ndim == 0:
        invalid_value(f"{where} {name}", "shape (samples, …)", "a tensor without axes")
    if len(tensor) != samples:
        hint = "Row i of y, x and context belongs to sample i."
        invalid_value(f"{where} {name}", f"{samples} samples, as many as y has", len(tensor), hint)


def _check_finite(where: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()):
        return
    position = tuple((~torch.isfinite(tensor)).nonzero()[0].tolist())
    hint = "Remove such samples, or mend them with torch.nan_to_num."
    invalid_value(where, "finite values", f"{float(tensor[position])} at sample {position[0]}", hint)
