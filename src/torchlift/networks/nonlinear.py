"""Recorded calls that are not affine: proximal activations, maps that are linear at a context, and any others.

Max-pooling and norms have a context (the positions of the maxima; one over the standard deviation) that their forward
pass computes anew, and a function that is linear at this context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from torchlift import prox
from torchlift.core.checks import Shape
from torchlift.core.derivatives import differentiable_twice
from torchlift.core.errors import NotRepresentableError, TorchliftError
from torchlift.networks.calls import SIGNATURES, arguments, name_of
from torchlift.networks.trace import refuse
from torchlift.operators import Context
from torchlift.operators.base import BetweenShapes
from torchlift.operators.context import context_tensor
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


def state_key(path: str, k: int) -> str:
    """Name in the context of the state u_k that an opaque row reads."""
    return f"{path}[u_{k}]"


@dataclass(frozen=True, eq=False)
class Jacobian(BetweenShapes):
    """∂g/∂u_k of an opaque row v = g(u) at the states in the context, by products with vectors.

    Arguments:
        function: g, from {k: u_k}.
        path: the call in the user's model.
        column: k.
        reads: all states that g depends on.
        from_shape, to_shape: of one sample of u_k and of v.
    """

    function: Callable[[Mapping[int, Tensor]], Tensor]
    path: str
    column: int
    reads: tuple[int, ...]
    from_shape: Shape
    to_shape: Shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        # y ↦ Jᵀy is linear, and its adjoint is J: reverse mode twice, because not all functions have a forward mode
        value, pull_back = self._pull_back(context)
        return torch.func.vjp(lambda y: pull_back(y)[0], torch.zeros_like(value))[1](x)[0]

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return self._pull_back(context)[1](y)[0]

    def norm_bound(self, context: Context = None) -> float:
        raise NotRepresentableError(
            f"{self.path} is neither linear nor a proximal activation: its Jacobian changes with its argument, so that "
            "no bound holds for an inversion or a solver of lifted variables. Take the part of the network before it."
        )

    def symbol(self) -> str:
        return f"∂({self.path})"

    def _pull_back(self, context: Context) -> tuple[Tensor, Callable[..., tuple[Tensor, ...]]]:
        u = {k: context_tensor(self.path, context, state_key(self.path, k)) for k in self.reads}
        with differentiable_twice():
            return torch.func.vjp(lambda u_k: self.function({**u, self.column: u_k}), u[self.column])[:2]
