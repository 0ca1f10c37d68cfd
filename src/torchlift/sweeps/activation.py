"""σ as a node of autograd whose way back is a finite difference, and the functions of torch that are such a σ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.prox import Identity, ProximalActivation, ReLU, SoftThreshold
from torchlift.sweeps.perturbation import (
    Activation,
    Mean,
    Perturbation,
    relu_difference,
    soft_threshold_difference,
    transformed,
)

_MARK = torch.empty(0)


class PerturbedActivation(torch.autograd.Function):
    """σ(v) forwards; backwards R = [σ(v + s g) − σ(v − s g)] / (2s) instead of σ'(v) g.

    Learned tensors θ of a proximal activation get ∂_θ Σ [Φ*(v + s g) − Φ*(v − s g)] / (2s).
    A way back that is itself recorded (`create_graph=True`) asks for derivatives of the
    network, such as those in a differential equation or a penalty of gradients: it has σ'(v) g.

    The arguments are those of `perturb`.
    """

    @staticmethod
    def forward(ctx: Any, v: Tensor, sigma: Activation, *others: Any) -> Tensor:
        _save(ctx, v, sigma, *others[:3])
        return _value(sigma, v)

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> Any:
        return _differentiate(ctx, signals[0]) if torch.is_grad_enabled() else _respond(ctx, signals[0], host=True)


class _FunctionalActivation(torch.autograd.Function):
    """The same in the form that `torch.func` asks for, which costs more per call."""

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, sigma: Activation, *others: Any) -> Tensor:
        return _value(sigma, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _save(ctx, *inputs[:5])

    @staticmethod
    def backward(ctx: Any, *signals: Tensor) -> tuple[Tensor | None, ...]:
        return _respond(ctx, signals[0], host=False)


def perturb(
    v: Tensor,
    sigma: Activation,
    perturbation: Perturbation,
    mean: Mean | None,
    own: ProximalActivation | None = None,
    *learned: Tensor,
) -> Tensor:
    """σ(v), perturbed on the way back."""
    function = _FunctionalActivation if transformed() else PerturbedActivation
    return function.apply(v, sigma, perturbation, mean, own, *learned)


def _value(sigma: Activation, v: Tensor) -> Tensor:
    value = sigma.call(v)
    return value.view_as(v) if value is v else value  # a Function does not return an input as it is


def _save(ctx: Any, v: Tensor, sigma: Activation, perturbation: Perturbation, mean: Mean | None, own: Any) -> None:
    ctx.sigma, ctx.perturbation, ctx.mean, ctx.own = sigma, perturbation, mean, own
    # The empty tensor tells a checkpointed region that was run again outside of `sweeping` from one inside.
    ctx.save_for_backward(v, _MARK)


def _respond(ctx: Any, g: Tensor, host: bool) -> tuple[Tensor | None, ...]:
    v, _ = ctx.saved_tensors  # which may repeat a checkpointed part of the forward pass
    with plain_functions():
        residual, size = ctx.perturbation.response(ctx.sigma, v, g, ctx.mean, host=host)
        slopes = () if ctx.own is None else _slopes(ctx.own, v, g, size)
    return residual, None, None, None, None, *slopes


def _differentiate(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    v, _ = ctx.saved_tensors
    learned = () if ctx.own is None else trained(ctx.own)
    with plain_functions():
        slope, *slopes = torch.autograd.grad(ctx.sigma.call(v), (v, *learned), g, create_graph=True)
    return slope, None, None, None, None, *slopes


def plain_functions() -> AbstractContextManager[object]:
    """No function mode sees what happens inside, which would cost more than the arithmetic of small layers."""
    disable = getattr(torch._C, "DisableTorchFunction", None)
    return nullcontext() if disable is None else disable()


def perturbed(
    activation: ProximalActivation, v: Tensor, perturbation: Perturbation, mean: Mean | None = None
) -> Tensor:
    """σ(v) of a proximal activation, perturbed on the way back."""
    if isinstance(activation, Identity):
        return activation(v)
    sigma = as_sigma(activation, any(isinstance(value, Tensor) for value in vars(activation).values()))
    if not (learned := trained(activation)):
        return perturb(v, sigma, perturbation, mean)
    return perturb(v, sigma, perturbation, mean, activation, *learned)


def trained(activation: ProximalActivation) -> list[Tensor]:
    """Its learned tensors that need a gradient."""
    return [value for value in vars(activation).values() if isinstance(value, Tensor) and value.requires_grad]


def as_sigma(activation: ProximalActivation, learned: bool = False) -> Activation:
    """σ of a proximal activation, with its closed forms; `learned` says whether it holds tensors."""
    difference = None
    if type(activation) is ReLU:
        difference = relu_difference
    elif type(activation) is SoftThreshold and not isinstance(activation.threshold, Tensor):
        difference = partial(soft_threshold_difference, activation.threshold)
    return Activation(activation, activation.apply_, activation.dim is None and not learned, difference)


def _slopes(activation: ProximalActivation, v: Tensor, g: Tensor, size: float | Tensor) -> list[Tensor]:
    high, low = (activation.conjugate_slopes(v + sign * size * g) for sign in (1, -1))
    return [(slope - low[name]) * (0.5 / size) for name, slope in high.items()]


# -- functions of torch -----------------------------------------------------------------------------------------------


def always(*_: Any, **__: Any) -> bool:
    return True


def _slope_at_most_one(negative_slope: float = 0.01, **_: Any) -> bool:
    return 0 <= negative_slope <= 1


def _alpha_at_most_one(alpha: float = 1.0, **_: Any) -> bool:
    return 0 <= alpha <= 1


def _keeps_dtype(*_: Any, dtype: torch.dtype | None = None, **__: Any) -> bool:
    return dtype is None


_RELU = frozenset((torch.relu, F.relu, Tensor.relu))
#: Elementwise functions that are proximal maps for the arguments that the condition accepts.
_ELEMENTWISE: dict[Callable[..., Any], Callable[..., bool]] = {
    **dict.fromkeys(_RELU, always),
    **dict.fromkeys((torch.tanh, F.tanh, Tensor.tanh), always),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, Tensor.sigmoid, torch.special.expit), always),
    **dict.fromkeys((torch.atan, torch.arctan, Tensor.atan, Tensor.arctan), always),
    **dict.fromkeys((F.relu6, F.hardtanh, F.hardsigmoid, F.softplus, F.softsign, F.softshrink), always),
    **dict.fromkeys((F.logsigmoid, F.tanhshrink, F.celu, torch.celu), always),
    F.leaky_relu: _slope_at_most_one,
    F.elu: _alpha_at_most_one,
}
#: Functions that treat the entries along an axis together.
_GROUPWISE = dict.fromkeys((F.softmax, torch.softmax, Tensor.softmax), _keeps_dtype)
#: What overwrites its argument, and what it is the other form of.
IN_PLACE: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.relu_: torch.relu,
    Tensor.relu_: torch.relu,
    torch.tanh_: torch.tanh,
    Tensor.tanh_: torch.tanh,
    torch.sigmoid_: torch.sigmoid,
    Tensor.sigmoid_: torch.sigmoid,
    F.leaky_relu_: F.leaky_relu,
    F.elu_: F.elu,
    F.hardtanh_: F.hardtanh,
    F.celu_: F.celu,
}
#: Functions with a form that overwrites its argument, which saves memory on the way back.
_OVERWRITING = {torch.relu: torch.relu_, F.relu: torch.relu_, torch.tanh: torch.tanh_, torch.sigmoid: torch.sigmoid_}


def proximal_function(function: Callable[..., Any]) -> Callable[..., bool] | None:
    """The condition on its arguments under which a function of torch is a proximal map; None where it never is."""
    return _ELEMENTWISE.get(function) or _GROUPWISE.get(function)


def settings_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a function of torch was called with beside v and whether to overwrite it: by place, and by name."""
    rest = args[1:-1] if len(args) > 1 and isinstance(args[-1], bool) else args[1:]
    return rest, {name: value for name, value in kwargs.items() if name not in ("input", "inplace", "_stacklevel")}


def as_called(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Activation:
    """σ as a function of v alone."""
    elementwise = function not in _GROUPWISE
    difference = relu_difference if function in _RELU else None
    if function is F.softshrink:
        threshold = args[0] if args else kwargs.get("lambd", 0.5)
        difference = partial(soft_threshold_difference, threshold)
    if not args and not kwargs:
        return Activation(function, _OVERWRITING.get(function, function), elementwise, difference)
    rest = dict(kwargs)
    call = lambda v: function(v, *args, **rest)  # noqa: E731
    return Activation(call, call, elementwise, difference)
