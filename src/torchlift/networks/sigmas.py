"""Proximal activations in recorded calls, by module, function or method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx

from torchlift import prox
from torchlift.core.errors import TorchliftError
from torchlift.networks.calls import SIGNATURES, arguments, name_of
from torchlift.networks.trace import refuse
from torchlift.prox import ProximalActivation

#: Activations by the name of the function; their arguments are those of `SIGNATURES`.
_SIGMAS: dict[str, Callable[..., ProximalActivation]] = {
    "relu": prox.ReLU,
    "relu6": prox.ReLU6,
    "sigmoid": prox.Sigmoid,
    "tanh": prox.Tanh,
    "atan": prox.Arctan,
    "softsign": prox.Softsign,
    "hardtanh": lambda min_val=-1.0, max_val=1.0: prox.Box(min_val, max_val),
    "clamp": lambda min=None, max=None: prox.Box(-math.inf if min is None else min, math.inf if max is None else max),
    "leaky_relu": lambda negative_slope=0.01: prox.LeakyReLU(negative_slope),
    "prelu": prox.PReLU,
    "elu": prox.ELU,
    "celu": prox.CELU,
    "softplus": prox.Softplus,
    "softshrink": lambda lambd=0.5: prox.SoftThreshold(lambd),
    "softmax": prox.Softmax,
}


def is_activation(node: fx.Node, changing: Sequence[fx.Node]) -> bool:
    """True if a call is a proximal activation of one value, its arguments included (a slope above 1 is none)."""
    if node.op == "call_module":
        return bool(node.meta["sigma"])
    name = name_of(node)
    first = node.args[0] if node.args else node.kwargs.get("input")
    if name not in _SIGMAS or list(changing) != [first]:
        return False
    settings = _settings(node)
    if name == "softmax":
        _check_axis(node, settings.get("dim"))
    if any(isinstance(value, fx.Node) for value in settings.values()):
        return name == "prelu"
    try:
        _SIGMAS[name](**settings)
    except (TorchliftError, TypeError):
        return False  # such as a slope above 1, or clamp with one bound: still a function with a derivative
    return True


def activation(node: fx.Node, value: Callable[[Any], Any]) -> ProximalActivation:
    """σ at the current parameters.

    Arguments:
        value: the tensor of a node, or the module of a path.
    """
    if node.op == "call_module":
        return value(str(node.target)).activation
    settings = {key: value(item) if isinstance(item, fx.Node) else item for key, item in _settings(node).items()}
    return _SIGMAS[name_of(node)](**settings)


def _settings(node: fx.Node) -> dict[str, Any]:
    name = name_of(node)
    if name not in SIGNATURES:
        return {}
    given = {key: item for key, item in arguments(node).items() if key in SIGNATURES[name] and key != "input"}
    return {"slope": given["weight"]} if name == "prelu" else given


def _check_axis(node: fx.Node, dim: Any) -> None:
    value = node.meta["value"]
    axes = value.ndim if isinstance(value, Tensor) else 0
    if isinstance(dim, int) and dim % max(axes, 1) == 0:
        refuse(node.meta["path"], f"softmax over axis {dim} mixes the samples of a batch", "Use dim=1 or dim=-1.")
