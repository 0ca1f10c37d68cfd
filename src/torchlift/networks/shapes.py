"""Shapes of what convolutions and norms give.

torch's own answer on tensors without memory loads its compiler first, which takes a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, fx

_SAME = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "dropout", "prelu")


def shape_of(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape of the result, or None for functions that are not known here or have unusual arguments."""
    name = getattr(node.target, "__name__", "")
    if node.op != "call_function" or not args or not isinstance(args[0], Tensor):
        return None
    if name in _SAME:
        return tuple(args[0].shape)
    if name not in ("conv1d", "conv2d", "conv3d") or len(args) < 2:
        return None
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, weight = given["input"], given["weight"]
    axes = weight.ndim - 2
    groups = given.get("groups", 1)
    if x.ndim != weight.ndim or x.shape[1] != weight.shape[1] * groups:
        return None  # torch says what is wrong
    stride, dilation = (_each(given.get(name, 1), axes) for name in ("stride", "dilation"))
    padding = given.get("padding", 0)
    if padding == "same":
        return (x.shape[0], weight.shape[0], *x.shape[2:])
    pads = (0,) * axes if padding == "valid" else _each(padding, axes)
    rows = zip(x.shape[2:], weight.shape[2:], stride, pads, dilation, strict=True)
    sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows]
    return (x.shape[0], weight.shape[0], *sizes) if min(sizes) > 0 else None


def _each(value: Any, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    return values * axes if len(values) == 1 else values
