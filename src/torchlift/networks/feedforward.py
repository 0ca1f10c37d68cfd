"""Perceptron, MLP, ResNet and a linear map, and shallow networks of blocks side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_positive, check_shape, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.networks.base import Network
from torchlift.networks.chain import Chain
from torchlift.networks.form import UnifiedForm, assemble
from torchlift.networks.modules import Residual, RungeKutta, Tableau, as_tableau
from torchlift.networks.stacks import ActivationList, Layer, maps_of, stack_layers
from torchlift.operators import Context, Dense, LinearOperator
from torchlift.prox import ProximalActivation, ReLU, as_activation
from torchlift.prox.base import tensors_of

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


class Shallow(Network):
    """N(y) = Σ_j C_j σ_j(W_j y + b_j), all J blocks side by side.

    W has blocks in its first column only, and K = (0 C_1 ⋯ C_J). With
    `hidden=[1] * J` every neuron is a block of its own.

    Arguments:
        in_features, out_features: sizes of y and N(y).
        hidden: sizes of the blocks; one number means one block.
        activation: one for all blocks, or one per block.
        output_bias: whether there is a learnable d.
        generator: source of randomness for the weights; torch's default otherwise.
    """

    def __init__(
        self,
        in_features: int,
        hidden: int | Sequence[int],
        out_features: int = 1,
        activation: Activations = ReLU(),
        *,
        bias: bool = True,
        output_bias: bool = False,
        generator: torch.Generator | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        before, after = check_size("Shallow in_features", in_features), check_size("Shallow out_features", out_features)
        sizes = check_shape("Shallow hidden", hidden)
        if not sizes:
            invalid_value("Shallow hidden", "at least one block", hidden)
        super().__init__((before,), (after,))
        self.activation = ActivationList(one_each("Shallow", activation, len(sizes)))
        inner = [linear_module(before, size, bias, generator, dtype, device) for size in sizes]
        joint = linear_module(sum(sizes), after, output_bias, generator, dtype, device)
        self.hidden, _ = stack_layers([Layer(Dense(m.weight.detach()), m) for m in inner])
        outer = joint.weight.detach().split(sizes, dim=1)
        self.output, _ = stack_layers([Layer(Dense(part), _linear(part, None)) for part in outer])
        self.bias = joint.bias

    @property
    def activations(self) -> tuple[ProximalActivation, ...]:
        return self.activation.current()

    def operators(self) -> UnifiedForm:
        layers, outputs = self._maps()
        return assemble(
            self.in_shape,
            W={(j, 0): operator for j, (operator, _) in enumerate(layers)},
            b=[bias for _, bias in layers],
            activations=self.activations,
            K={j + 1: operator for j, (operator, _) in enumerate(outputs)},
            d=self.bias,
            like=self.like,
        )

    def to_sequential(self, context: Context = None) -> nn.Module:
        """Two linear modules around one activation, where all blocks share an elementwise one."""
        first = self.activations[0]
        plain = first.dim is None and not tensors_of(first)
        if len(self.activations) > 1 and not (plain and all(activation is first for activation in self.activations)):
            return super().to_sequential(context)
        layers, outputs = self._maps()
        biases = [bias for _, bias in layers if bias is not None]
        inner = _linear(torch.cat([W.to_dense() for W, _ in layers]), torch.cat(biases) if biases else None)
        outer = _linear(torch.cat([C.to_dense() for C, _ in outputs], dim=1), self.bias)
        return nn.Sequential(inner, first.to_module(), outer)

    def _maps(self) -> tuple[list, list]:
        """(W_j, b_j) and (C_j, None) of each block."""
        return list(chain(*maps_of(self.hidden))), list(chain(*maps_of(self.output)))


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """`nn.Linear` with copies of the given tensors."""
    module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    module.weight = nn.Parameter(weight.detach().clone())
    if bias is not None:
        module.bias = nn.Parameter(bias.detach().clone())
    return module


class Linear(Network):
    """N(x) = H x, with which `invert` solves linear inverse problems.

    Arguments:
        H: image → measurement.
    """

    def __init__(self, H: LinearOperator) -> None:
        super().__init__(H.in_shape, H.out_shape)
        self.H = H

    def operators(self) -> UnifiedForm:
        return assemble(self.in_shape, {}, [], [], {0: self.H})
