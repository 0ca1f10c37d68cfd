"""Shapes of what convolutions and norms give.

torch's own answer on tensors without memory loads its compiler first, which takes a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx

from torchlift.networks.calls import SIGNATURES, name_of

_SAME = {
    *("batch_norm", "layer_norm", "group_norm", "instance_norm", "dropout", "prelu", "relu", "relu6", "hardtanh"),
    *("leaky_relu", "elu", "celu", "sigmoid", "tanh", "softplus", "softsign", "softshrink", "softmax", "clamp"),
    *("gelu", "silu", "mish", "hardswish", "hardsigmoid", "neg", "contiguous", "clone"),
}
_ELEMENTWISE = {"add", "sub", "mul", "div"}


def shape_of(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The shape of the result, or None for functions that are not known here or have unusual arguments."""
    name = name_of(node)
    if not args or kwargs.get("dtype") is not None or not name:
        return None
    if name == "cat" and len({part.ndim for part in args[0]}) == 1:
        return _concatenated(args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0))
    if not isinstance(args[0], Tensor):
        return None
    if name in _SAME:
        return tuple(args[0].shape)
    if name in _ELEMENTWISE and len(args) == 2:
        return _broadcast(args[0], args[1])
    if name == "linear" and len(args) > 1 and args[0].shape[-1] == args[1].shape[-1]:
        return (*args[0].shape[:-1], args[1].shape[0])
    if name == "matmul" and args[0].ndim == args[1].ndim > 2 and args[0].shape[-1] == args[1].shape[-2]:
        return (*_joined(args[0].shape[:-2], args[1].shape[:-2]), args[0].shape[-2], args[1].shape[-1])
    if name == "pad" and len(args) > 1 and all(isinstance(amount, int) for amount in args[1]):
        return _padded(args[0].shape, args[1])
    if name in ("pixel_shuffle", "pixel_unshuffle") and args[0].ndim == 4 and len(args) == 2:
        return _shuffled(args[0].shape, args[1], name == "pixel_shuffle")
    pooled = "_pool" in name and args[0].ndim == int(name[-2]) + 2 and not kwargs.get("return_indices")
    if pooled or (name in ("interpolate", "upsample") and args[0].ndim > 2):
        # the sizes of one channel, by torch itself
        sizes = node.target(torch.zeros(1, 1, *args[0].shape[2:]), *args[1:], **kwargs).shape[2:]  # type: ignore[operator]
        return (*args[0].shape[:2], *sizes)
    return _convolved(name, args, kwargs) if name.startswith("conv") and len(args) > 1 else None


def _convolved(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = {**dict(zip(SIGNATURES[name], args, strict=False)), **kwargs}
    x, weight, groups, padding = given["input"], given["weight"], given.get("groups", 1), given.get("padding", 0)
    axes, transposed = weight.ndim - 2, "transpose" in name
    if x.ndim != weight.ndim or x.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups):
        return None  # torch says what is wrong
    stride, dilation = (_each(given.get(name, 1), axes) for name in ("stride", "dilation"))
    if transposed:
        spare = _each(given.get("output_padding", 0), axes)
        rows = zip(x.shape[2:], weight.shape[2:], stride, _each(padding, axes), dilation, spare, strict=True)
        sizes = [(n - 1) * s - 2 * p + d * (k - 1) + more + 1 for n, k, s, p, d, more in rows]
        return (x.shape[0], weight.shape[1] * groups, *sizes) if min(sizes) > 0 else None
    if padding == "same":
        return (x.shape[0], weight.shape[0], *x.shape[2:])
    pads = (0,) * axes if padding == "valid" else _each(padding, axes)
    rows = zip(x.shape[2:], weight.shape[2:], stride, pads, dilation, strict=True)
    sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in rows]
    return (x.shape[0], weight.shape[0], *sizes) if min(sizes) > 0 else None


def _broadcast(one: Tensor, other: Any) -> tuple[int, ...] | None:
    if not isinstance(other, Tensor):
        return tuple(one.shape) if isinstance(other, int | float) else None
    return _joined(one.shape, other.shape) if one.dtype == other.dtype else None


def _joined(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """Sizes after broadcasting; `torch.broadcast_shapes` loads the compiler too."""
    pairs = zip_longest(reversed(one), reversed(other), fillvalue=1)
    return tuple(reversed([b if a == 1 else a for a, b in pairs]))


def _shuffled(sizes: Sequence[int], factor: int, up: bool) -> tuple[int, ...] | None:
    batch, channels, height, width = sizes
    if up:
        whole = channels % factor**2 == 0
        return (batch, channels // factor**2, height * factor, width * factor) if whole else None
    whole = height % factor == width % factor == 0
    return (batch, channels * factor**2, height // factor, width // factor) if whole else None


def _padded(sizes: Sequence[int], amounts: Sequence[int]) -> tuple[int, ...]:
    """Amounts are given for the last axis first, before and after."""
    padded = list(sizes)
    for axis in range(len(amounts) // 2):
        padded[-1 - axis] += amounts[2 * axis] + amounts[2 * axis + 1]
    return tuple(padded)


def _concatenated(parts: Sequence[Tensor], dim: int) -> tuple[int, ...] | None:
    sizes = list(parts[0].shape)
    others = [[n for axis, n in enumerate(part.shape) if axis != dim % part.ndim] for part in parts]
    if any(other != others[0] for other in others) or len({part.dtype for part in parts}) > 1:
        return None
    sizes[dim] = sum(part.shape[dim] for part in parts)
    return tuple(sizes)


def _each(value: Any, axes: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    return values * axes if len(values) == 1 else values
