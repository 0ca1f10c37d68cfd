"""Perceptron, MLP and ResNet: chains whose modules are built here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from torchlift.core.checks import check_positive, check_shape, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.networks.chain import Chain
from torchlift.networks.modules import Residual, RungeKutta, Tableau, as_tableau
from torchlift.prox import ProximalActivation, ReLU, as_activation

Activations = ProximalActivation | nn.Module | str | Sequence[Any]


class Perceptron(Chain):
    """N(y) = σ(W y + b), one layer with K = M = (0 I) and V = I.

    The historical Heaviside step is no proximal map and is refused.

    Arguments:
        in_features, out_features: sizes of y and N(y).
        activation: σ.
        generator: source of randomness for the weights; torch's default otherwise.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        activation: ProximalActivation | nn.Module | str = ReLU(),
        *,
        bias: bool = True,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        widths = _widths("Perceptron", [in_features, out_features])
        linear = linear_module(widths[0], widths[1], bias, generator, dtype, device)
        super().__init__(nn.Sequential(linear, as_activation(activation).to_module()))


class MLP(Chain):
    """u_j = σ_j(W_j u_{j-1} + b_j) for j = 1, …, J with u_0 = y, and N(y) = K u_J + d.

    Arguments:
        widths: sizes of y, u_1, …, u_J and N(y).
        activation: one for all hidden layers, or one per hidden layer.
        bias: whether there are b_j and d.
        generator: source of randomness for the weights; torch's default otherwise.

    Example:
        >>> MLP([784, 256, 256, 10], activation=ReLU()).depth
        2
    """

    def __init__(
        self,
        widths: Sequence[int],
        activation: Activations = ReLU(),
        *,
        bias: bool = True,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        sizes = _widths("MLP", widths)
        activations = one_each("MLP", activation, len(sizes) - 2)
        modules: list[nn.Module] = []
        for j, (before, after) in enumerate(pairwise(sizes)):
            modules.append(linear_module(before, after, bias, generator, dtype, device))
            if j < len(activations):
                modules.append(activations[j].to_module())
        super().__init__(nn.Sequential(*modules))


class ResNet(Chain):
    """u_j = u_{j-1} + h_j V_j σ_j(W_j u_{j-1} + b_j) for j = 1, …, J, and N(y) = K u_J + d.

    Each layer is a forward Euler step of u' = V σ(W u + b); other explicit
    Runge–Kutta methods add stages, which changes M, V and W only.

    Arguments:
        features: size of y and of every u_j.
        inner: inner widths N_j: one per layer.
        out_features: size of N(y).
        activation: one for all layers, or one per layer.
        steps: h_j: one number for all layers, or one per layer; 1/J by default.
        tableau: "euler", "midpoint", "heun", "kutta3", "rk4" or a `Tableau`.
        generator: source of randomness for the weights; torch's default otherwise.
    """

    def __init__(
        self,
        features: int,
        inner: int | Sequence[int],
        out_features: int,
        activation: Activations = ReLU(),
        *,
        steps: float | Sequence[float] | None = None,
        tableau: str | Tableau = "euler",
        bias: bool = True,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        size = check_size("ResNet features", features)
        inner_sizes = check_shape("ResNet inner", inner)
        if not inner_sizes:
            invalid_value("ResNet inner", "at least one width", inner)
        depth = len(inner_sizes)
        activations = one_each("ResNet", activation, depth)
        h = _steps(steps, depth)
        method = as_tableau(tableau)
        modules: list[nn.Module] = []
        for j, width in enumerate(inner_sizes):
            W = linear_module(size, width, bias, generator, dtype, device)
            V = linear_module(width, size, False, generator, dtype, device)
            sigma = activations[j].to_module()
            euler = len(method.b) == 1
            modules.append(Residual(W, sigma, V, step=h[j]) if euler else RungeKutta(W, sigma, V, h[j], method))
        out = check_size("ResNet out_features", out_features)
        modules.append(linear_module(size, out, bias, generator, dtype, device))
        super().__init__(nn.Sequential(*modules))


def linear_module(
    before: int,
    after: int,
    bias: bool,
    generator: torch.Generator | None,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
) -> nn.Linear:
    """`nn.Linear` with torch's default distribution, drawn from `generator`."""
    module = nn.Linear(before, after, bias=bias, dtype=dtype, device="meta").to_empty(device=device or "cpu")
    bound = 1 / math.sqrt(before)
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    return module


def _widths(name: str, widths: Any) -> tuple[int, ...]:
    if isinstance(widths, int):
        invalid_type(f"{name} widths", "a list such as [784, 256, 10]", widths)
    sizes = check_shape(f"{name} widths", widths)
    if len(sizes) < 2:
        invalid_value(f"{name} widths", "at least an input and an output size", widths)
    return sizes


def one_each(name: str, activation: Any, count: int) -> list[ProximalActivation]:
    """One activation per layer from one for all or a sequence."""
    if isinstance(activation, Sequence) and not isinstance(activation, str):
        if len(activation) != count:
            invalid_value(f"{name} activation", f"one activation, or {count}: one per hidden layer", len(activation))
        return [as_activation(item) for item in activation]
    return [as_activation(activation)] * count


def _steps(steps: Any, depth: int) -> list[float]:
    if steps is None:
        return [1.0 / depth] * depth
    if isinstance(steps, Sequence):
        if len(steps) != depth:
            invalid_value("ResNet steps", f"one step, or {depth}: one per layer", len(steps))
        return [check_positive(f"ResNet steps[{j}]", h) for j, h in enumerate(steps)]
    return [check_positive("ResNet steps", steps)] * depth
