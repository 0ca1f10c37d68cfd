"""From modules, functions and names of torch to proximal activations, refusing by name what is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from torchlift.core.errors import InvalidValueError, NotProximalError, did_you_mean, invalid_type, invalid_value
from torchlift.prox.base import ActivationModule, ProximalActivation
from torchlift.prox.box import Box, Hardtanh, L2Ball, ReLU6
from torchlift.prox.relu import Identity, LeakyReLU, ReLU
from torchlift.prox.saturating import ISRU, Arctan, Sigmoid, Softsign, Tanh
from torchlift.prox.simplex import Simplex, Softmax
from torchlift.prox.smooth_rectifiers import CELU, ELU, Softplus, Squareplus
from torchlift.prox.soft_threshold import GroupSoftThreshold, SoftThreshold

#: Every built-in activation by name. A new one adds its line here and inherits all contract tests.
ACTIVATIONS: dict[str, type[ProximalActivation]] = {
    "arctan": Arctan,
    "box": Box,
    "celu": CELU,
    "elu": ELU,
    "group-soft-threshold": GroupSoftThreshold,
    "identity": Identity,
    "isru": ISRU,
    "l2-ball": L2Ball,
    "leaky-relu": LeakyReLU,
    "relu": ReLU,
    "sigmoid": Sigmoid,
    "simplex": Simplex,
    "soft-threshold": SoftThreshold,
    "softmax": Softmax,
    "softplus": Softplus,
    "softsign": Softsign,
    "squareplus": Squareplus,
    "tanh": Tanh,
}

#: Names of activations that a name alone does not define, with an example.
_NEEDS_ARGUMENTS = {
    "box": "Box(0, 1)",
    "group-soft-threshold": "GroupSoftThreshold(0.2, dim=1)",
    "soft-threshold": "SoftThreshold(0.2)",
    "softshrink": "SoftThreshold(0.2)",
}

#: Names that need no argument.
_BY_NAME: dict[str, Callable[[], ProximalActivation]] = {
    **{name: kind for name, kind in ACTIVATIONS.items() if name not in _NEEDS_ARGUMENTS},
    "hardtanh": Hardtanh,
    "relu6": ReLU6,
}

#: Exact types only: a subclass may have another forward pass.
_BY_MODULE: dict[type[nn.Module], Callable[[Any], ProximalActivation]] = {
    ActivationModule: lambda module: module.activation,
    nn.CELU: lambda module: CELU(module.alpha),
    nn.ELU: lambda module: ELU(module.alpha),
    nn.Hardtanh: lambda module: Box(module.min_val, module.max_val),
    nn.Identity: lambda module: Identity(),
    nn.LeakyReLU: lambda module: LeakyReLU(module.negative_slope),
    nn.ReLU: lambda module: ReLU(),
    nn.ReLU6: lambda module: ReLU6(),
    nn.Sigmoid: lambda module: Sigmoid(),
    nn.Softmax: lambda module: _from_softmax(module),
    nn.Softmax2d: lambda module: Softmax(dim=-3),
    nn.Softplus: lambda module: Softplus(module.beta, module.threshold),
    nn.Softshrink: lambda module: SoftThreshold(module.lambd),
    nn.Softsign: lambda module: Softsign(),
    nn.Tanh: lambda module: Tanh(),
}

#: Functions of torch by the same names; of softmax the axis is unknown.
_BY_FUNCTION: dict[Callable[..., Any], Callable[[], ProximalActivation]] = {
    getattr(home, name.replace("-", "_")): kind
    for name, kind in {**_BY_NAME, "atan": Arctan}.items()
    for home in (F, torch)
    if hasattr(home, name.replace("-", "_")) and kind is not Softmax
}

_NOT_MONOTONE = "it is not monotone: it falls before it rises"
_DISCONTINUOUS = "it jumps, and proximal maps are continuous"

#: Why an activation is not a proximal map, and the nearest one that is.
_NOT_PROXIMAL = {
    "gelu": (_NOT_MONOTONE, "Softplus()"),
    "glu": ("it gates one half of its input with the other, so it is not a gradient", "Sigmoid()"),
    "hardshrink": (_DISCONTINUOUS, "SoftThreshold(threshold)"),
    "hardswish": (_NOT_MONOTONE, "ReLU()"),
    "heaviside": (_DISCONTINUOUS, "Box(0, 1) or Sigmoid()"),
    "logsoftmax": ("its Jacobian is not symmetric, so it is not a gradient", "Softmax() with the cross-entropy loss"),
    "mish": (_NOT_MONOTONE, "Softplus()"),
    "prelu": ("its slopes are learned and may leave (0, 1]", "LeakyReLU(slope)"),
    "rrelu": ("its slope is drawn at random", "LeakyReLU(slope)"),
    "selu": ("its slope is up to 1.76, and proximal maps never stretch", "ELU()"),
    "sign": (_DISCONTINUOUS, "Hardtanh() or Tanh()"),
    "silu": (_NOT_MONOTONE, "Softplus()"),
    "softmin": ("it is decreasing", "Softmax() after negating the weights of the layer before"),
    "swish": (_NOT_MONOTONE, "Softplus()"),
    "threshold": ("it jumps at its threshold unless the value equals it", "ReLU() or Box(lo, hi)"),
}

#: Proximal maps that nobody has needed yet.
_NOT_BUILT_IN = ("hardsigmoid", "logsigmoid", "tanhshrink")

_ACCEPTED = "a proximal activation, an activation module or function of torch, or a name"


def as_activation(value: object) -> ProximalActivation:
    """The proximal activation that `value` denotes.

    Arguments:
        value: a `ProximalActivation` (returned as it is), a module of torch
            such as `nn.ReLU()` or `nn.Softshrink(0.1)`, a function such as
            `torch.tanh` (with its default arguments), or a name such as
            "leaky-relu". Spelling of names is forgiving about case, spaces
            and underscores.

    Raises:
        NotProximalError: it is known, and not the proximal map of anything.
        InvalidValueError: it is known but not built in, or needs arguments, or a name is unknown.
        InvalidTypeError: anything else.
    """
    if isinstance(value, ProximalActivation):
        return value
    if isinstance(value, str):
        return _from_name(value)
    if isinstance(value, nn.Module):
        return _from_module(value)
    if isinstance(value, type):
        invalid_type("activation", _ACCEPTED, value)
    if callable(value):
        return _from_function(value)
    invalid_type("activation", _ACCEPTED, value, "Try ReLU() or 'relu'.")


def _from_name(text: str) -> ProximalActivation:
    plain = text.strip().lower().replace("_", "-").replace(" ", "-")
    # Squeezing out hyphens also accepts "LeakyReLU" and "softthreshold".
    names = {name.replace("-", ""): name for name in (*_BY_NAME, *_NEEDS_ARGUMENTS)}
    name = names.get(plain.replace("-", ""), plain)
    if name in _BY_NAME:
        return _BY_NAME[name]()
    if name in _NEEDS_ARGUMENTS:
        hint = f"Pass the object instead, for example {_NEEDS_ARGUMENTS[name]}."
        invalid_value("activation", "a name that needs no arguments", repr(text), hint)
    _refuse_known(plain.replace("-", ""), text)
    hint = did_you_mean(text, [*_BY_NAME, *_NEEDS_ARGUMENTS])
    invalid_value("activation", f"one of {', '.join(_BY_NAME)}", repr(text), hint)


def _from_module(module: nn.Module) -> ProximalActivation:
    build = _BY_MODULE.get(type(module))
    if build is not None:
        return build(module)
    name = type(module).__name__
    if type(module).__module__.startswith("torch.nn."):
        _refuse_known(name.lower(), f"nn.{name}")
    hint = "Subclass ProximalActivation for an activation of your own."
    invalid_type("activation", _ACCEPTED, module, hint)


def _from_function(function: Callable[..., Any]) -> ProximalActivation:
    build = _BY_FUNCTION.get(function)
    if build is not None:
        return build()
    # Not `__name__`: that of F.logsigmoid, for one, is spelt differently.
    for name, known in (*vars(F).items(), *vars(torch).items()):
        if known is function:
            _refuse_known(name.replace("_", ""), name)
    hint = "Subclass ProximalActivation for an activation of your own; for softmax and softshrink pass the object."
    invalid_type("activation", _ACCEPTED, function, hint)


def _from_softmax(module: nn.Softmax) -> Softmax:
    if module.dim is None:
        invalid_value("nn.Softmax", "an explicit dim", "dim=None", "Try nn.Softmax(dim=1).")
    return Softmax(module.dim)


def _refuse_known(key: str, shown: str) -> None:
    """Raise for activations that we know and do not offer; return for all others."""
    if key in _NOT_PROXIMAL:
        reason, nearest = _NOT_PROXIMAL[key]
        raise NotProximalError(f"activation: {shown} is not a proximal map: {reason}. Try {nearest}.")
    if key in _NOT_BUILT_IN:
        how = "Write it in one file: subclass ProximalActivation, as torchlift/prox/saturating.py does."
        raise InvalidValueError(f"activation: {shown} is proximal, but not built in. {how}")
