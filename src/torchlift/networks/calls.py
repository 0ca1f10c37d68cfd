"""What a recorded call is: linear, a proximal activation, linear at a context, or none of these."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
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
