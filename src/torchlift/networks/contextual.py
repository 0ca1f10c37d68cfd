"""Maps that are linear once something of the sample is given: max-pooling and norms.

Each has a context (the positions of the maxima; one over the standard deviation) that its forward pass computes anew,
and a function that is linear at this context.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Contextual(NamedTuple):
    """x ↦ scale(apply(x, context(x))) + bias."""

    context: Callable[[Tensor], Tensor]
    """What the map takes from the sample: (B, …)."""
    apply: Callable[[Tensor, Tensor], Tensor]
    """(x, context) ↦ the result without weight and bias; linear in x."""


def contextual(name: str, given: Mapping[str, Any]) -> Contextual:
    """The map of a function of torch, by its arguments."""
    settings = {key: value for key, value in given.items() if key not in ("input", "weight", "bias")}
    if "max_pool" in name:
        settings.pop("return_indices", None)
        pool = getattr(F, name)
        return Contextual(lambda x: pool(x, **settings, return_indices=True)[1], _select)
    eps = settings.get("eps", 1e-5)
    if name == "layer_norm":
        count = len(settings["normalized_shape"])
        return _standardised(lambda x: tuple(range(x.ndim - count, x.ndim)), eps)
    if name == "group_norm":
        return _grouped(settings["num_groups"], eps)
    if name == "instance_norm":
        return _standardised(lambda x: tuple(range(2, x.ndim)), eps)
    return _standardised(lambda x: (0, *range(2, x.ndim)), eps)


def _select(x: Tensor, positions: Tensor) -> Tensor:
    """The entries at the given positions of each channel; those of one-dimensional pooling count alike."""
    channels = x.flatten(2)
    return channels.gather(2, positions.long().flatten(2)).reshape(*positions.shape)


def _standardised(axes: Callable[[Tensor], tuple[int, ...]], eps: float) -> Contextual:
    def context(x: Tensor) -> Tensor:
        factor = torch.rsqrt(x.var(axes(x), unbiased=False, keepdim=True) + eps)
        return factor.expand(x.shape[0], *factor.shape[1:])  # a batch norm has one for all samples

    return Contextual(context, lambda x, factor: (x - x.mean(axes(x), keepdim=True)) * factor)


def scale_and_shift(
    mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """A norm with fixed statistics is x ↦ scale·x + shift, one of each per channel."""
    scale = torch.rsqrt(variance + eps)
    scale = scale if weight is None else scale * weight
    return scale, -mean * scale if bias is None else bias - mean * scale


def _grouped(groups: int, eps: float) -> Contextual:
    inner = _standardised(lambda x: (2,), eps)

    def split(x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], groups, -1)

    return Contextual(
        lambda x: inner.context(split(x)), lambda x, factor: inner.apply(split(x), factor).reshape(x.shape)
    )
