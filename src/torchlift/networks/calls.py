"""What a recorded call is: linear, a proximal activation, linear at a context, or none of these; and shapes.

torch's own answer about shapes, on tensors without memory, loads its compiler first, which takes a second.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
_STATISTICS = ("input", "running_mean", "running_var", "weight", "bias")
_WINDOWS = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")

#: Names of the arguments of functions that are looked into.
SIGNATURES: dict[str, tuple[str, ...]] = {
    "linear": ("input", "weight", "bias"),
    **{f"conv{n}d": _CONVOLUTION for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _TRANSPOSED for n in (1, 2, 3)},
    "batch_norm": (*_STATISTICS, "training", "momentum", "eps"),
    "instance_norm": (*_STATISTICS, "use_input_stats", "momentum", "eps"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    **dict.fromkeys(("dropout", "dropout1d", "dropout2d", "dropout3d"), ("input", "p", "training")),
    **dict.fromkeys(("alpha_dropout", "feature_alpha_dropout"), ("input", "p", "training")),
    "pad": ("input", "pad", "mode", "value"),
    **{f"max_pool{n}d": _WINDOWS for n in (1, 2, 3)},
    **{f"adaptive_max_pool{n}d": ("input", "output_size", "return_indices") for n in (1, 2, 3)},
    "add": ("input", "other", "alpha"),
    "sub": ("input", "other", "alpha"),
    "mul": ("input", "other"),
    "div": ("input", "other", "rounding_mode"),
    "softmax": ("input", "dim"),
    "hardtanh": ("input", "min_val", "max_val"),
    "leaky_relu": ("input", "negative_slope"),
    "prelu": ("input", "weight"),
    "elu": ("input", "alpha"),
    "celu": ("input", "alpha"),
    "softplus": ("input", "beta", "threshold"),
    "softshrink": ("input", "lambd"),
    "clamp": ("input", "min", "max"),
}

#: Other spellings.
_SPELLINGS = {
    **{"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div", "truediv": "div", "true_divide": "div"},
    **{"divide": "div", "multiply": "mul", "subtract": "sub", "concat": "cat", "concatenate": "cat"},
    **{"negative": "neg", "clip": "clamp", "arctan": "atan", "special_expit": "sigmoid"},
}

DROPOUTS = {name for name in SIGNATURES if "dropout" in name}
WEIGHTED = {"linear", *(f"conv{n}d" for n in (1, 2, 3)), *(f"conv_transpose{n}d" for n in (1, 2, 3))}
ADDITIVE = {"add", "sub", "cat", "stack", "hstack", "vstack", "dstack"}
PRODUCTS = {"mul", "div", "matmul", "bmm", "mm", "einsum"}
CONTEXTUAL = {
    *(f"max_pool{n}d" for n in (1, 2, 3)),
    *(f"adaptive_max_pool{n}d" for n in (1, 2, 3)),
    *("layer_norm", "group_norm", "instance_norm", "batch_norm"),
}
#: Linear in the first argument, and rearrangements that cost nothing.
REARRANGEMENTS = {
    *("reshape", "view", "flatten", "unflatten", "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis"),
    *("squeeze", "unsqueeze", "expand", "contiguous", "getitem", "narrow", "select", "chunk", "split", "unbind"),
    *("tensor_split", "flip", "roll", "clone", "alias", "identity", "pixel_shuffle", "pixel_unshuffle", "t"),
    *("channel_shuffle", "broadcast_to", "ravel", "mT", "mH"),
}
LINEAR_IN_FIRST = {
    *REARRANGEMENTS,
    *("repeat", "tile", "pad", "interpolate", "upsample", "neg", "mean", "sum", "diff", "cumsum", "tril", "triu"),
    *("diagonal", "unfold", "fold", "index_select", "repeat_interleave", "rot90"),
    *(f"{kind}avg_pool{n}d" for n in (1, 2, 3) for kind in ("", "adaptive_")),
}
_CASTS = {"to", "float", "double", "half", "bfloat16", "type", "type_as"}
_NOT_OF_TORCH = {"batch_norm", "instance_norm"}  # torch's own take their arguments in another order than F's


#: Functions that read only the shape of a tensor.
_OF_SHAPES = {
    *("zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"),
    *("new_tensor", "size"),
}


def dependents(nodes: Iterable[fx.Node], source: fx.Node) -> frozenset[fx.Node]:
    """The calls whose values depend on those of the input, not only on its shape."""
    depends = {source}
    for node in nodes:
        valued = not isinstance(node.meta["value"], int | float) and name_of(node) not in _OF_SHAPES
        if valued and any(argument in depends for argument in node.all_input_nodes):
            depends.add(node)
    return frozenset(depends)


def name_of(node: fx.Node) -> str:
    """The function of a call without regard to its spelling, "" where it is not one of torch's."""
    if "name" not in node.meta:  # networks ask in every evaluation
        node.meta["name"] = _name_of(node)
    return node.meta["name"]


def _name_of(node: fx.Node) -> str:
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        homes: Iterable[Any] = (F, operator, *(() if name in _NOT_OF_TORCH else (torch, torch.special)))
        if not any(getattr(home, name, None) is node.target for home in homes):
            return ""
    else:
        return ""
    plain = name.rstrip("_") if not name.startswith("_") else name
    return _SPELLINGS.get(plain, plain)


def arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of a call by name, for functions in `SIGNATURES`."""
    return {**dict(zip(SIGNATURES[name_of(node)], node.args, strict=False)), **node.kwargs}


def is_off(node: fx.Node) -> bool:
    """Whether a dropout does nothing."""
    given = arguments(node)
    return not given.get("training", name_of(node) != "dropout1d") or given.get("p", 0.5) == 0


def uses_batch_statistics(node: fx.Node) -> bool:
    return name_of(node) == "batch_norm" and bool(
        arguments(node).get("training") or arguments(node).get("running_mean") is None
    )


def is_linear(node: fx.Node, depends: Callable[[fx.Node], bool]) -> bool:
    """Whether a call is affine in those of its arguments that depend on the input."""
    name = name_of(node)
    changing = [argument for argument in node.all_input_nodes if depends(argument)]
    first = node.args[0] if node.args else node.kwargs.get("input")
    only_first = changing == [first]
    if name in ADDITIVE:
        return not isinstance(node.kwargs.get("alpha"), fx.Node)
    if name in PRODUCTS:
        repeated = sum(argument in changing for argument in tree_leaves(node.args))
        fits = len(changing) == 1 and repeated == 1 and not node.kwargs.get("rounding_mode")
        return fits and (name != "div" or only_first)
    if not only_first or sum(argument is first for argument in tree_leaves((node.args, node.kwargs))) != 1:
        return False
    if name in DROPOUTS:
        return is_off(node)
    if name == "batch_norm":
        return not uses_batch_statistics(node)
    if name == "instance_norm":
        return not arguments(node).get("use_input_stats", True)
    if name in _CASTS:
        return isinstance(first, fx.Node) and node.meta["value"].dtype == first.meta["value"].dtype
    return name in WEIGHTED or name in LINEAR_IN_FIRST


def is_contextual(node: fx.Node, depends: Callable[[fx.Node], bool]) -> bool:
    """True for max-pooling and norms: linear once a statistic or a selection of the sample is given."""
    changing = [argument for argument in node.all_input_nodes if depends(argument)]
    first = node.args[0] if node.args else node.kwargs.get("input")
    return name_of(node) in CONTEXTUAL and changing == [first] and not node.kwargs.get("return_indices")


def has_constant(node: fx.Node) -> bool:
    """True if an affine call adds a constant itself: a bias, a number, a padding value."""
    name = name_of(node)
    if name in ADDITIVE or name == "batch_norm":
        return name == "batch_norm" or any(isinstance(value, int | float) for value in node.args[:2])
    if name == "pad":
        return bool(arguments(node).get("value"))
    return name in SIGNATURES and arguments(node).get("bias") is not None


def call(node: fx.Node, args: Any, kwargs: Any, module: Callable[[str], Any]) -> Any:
    """The result of a recorded call, with in-place functions replaced by those that return a new tensor."""
    if node.op == "call_module":
        return module(str(node.target))(*args, **kwargs)
    if kwargs.get("inplace"):
        kwargs = {**kwargs, "inplace": False}
    if name_of(node) == "batch_norm" and uses_batch_statistics(node):
        # running statistics belong to the module's own forward pass
        given = {**dict(zip(SIGNATURES["batch_norm"], args, strict=False)), **kwargs}
        return F.batch_norm(**{**given, "running_mean": None, "running_var": None, "training": True})
    if node.op == "call_method":
        name = str(node.target)
        overwrites = name.endswith("_") and not name.endswith("__")
        return getattr(args[0], name[:-1] if overwrites else name)(*args[1:], **kwargs)
    return _not_in_place(node.target)(*args, **kwargs)


def _not_in_place(function: Any) -> Callable[..., Any]:
    """The function that gives a new tensor instead of overwriting its first argument."""
    name = getattr(function, "__name__", "")
    if name.startswith("i") and getattr(operator, name, None) is function:
        return getattr(operator, name[1:], function)
    if name.endswith("_") and not name.endswith("__"):
        return getattr(torch, name[:-1], None) or getattr(F, name[:-1], function)
    return function


def is_batch_first(node: fx.Node, batch: int) -> bool:
    """Whether the value of a node is a batch of real numbers."""
    value = node.meta["value"]
    real = isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0
    return real and value.shape[0] == batch


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
