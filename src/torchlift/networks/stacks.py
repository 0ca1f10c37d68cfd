"""Parameters of layers: stacks of layers of equal shape, and activations that hold some."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from torchlift.operators import Dense, LinearOperator, OperatorStack
from torchlift.prox import ProximalActivation
from torchlift.prox.base import ActivationModule, learned


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear operator with the module it came from (None where it has no weights)."""

    operator: LinearOperator
    module: Any = None


class AffineStack(nn.Module):
    """Affine maps x ↦ A_j x + b_j of one shape, with all A_j in one parameter and all b_j in another."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        super().__init__()
        trainable = layers[0].module.weight.requires_grad
        self.linear = OperatorStack([layer.operator for layer in layers], trainable=True).requires_grad_(trainable)
        self.bias = None
        if layers[0].module.bias is not None:
            shape = (-1, *[1] * (len(layers[0].operator.out_shape) - 1))  # broadcasts over an image
            stacked = torch.stack([layer.module.bias.detach().reshape(shape) for layer in layers])
            self.bias = nn.Parameter(stacked, requires_grad=layers[0].module.bias.requires_grad)
        self.observers: list[Callable[[int, Tensor], None]] = []
        """Told (layer, its input) in forward passes through dense stacks."""

    @property
    def dense(self) -> bool:
        return isinstance(self.linear.template, Dense)

    def parameter_groups(self) -> list[dict[str, Any]]:
        """What an optimiser needs to know of the parameters: see `torchlift.sweeps.parameter_groups`."""
        params = [*self.linear.parameters(), *([] if self.bias is None else [self.bias])]
        kind = "dense" if self.dense else "entries"
        matrix = self.dense or getattr(self.linear.template, "groups", 0) == 1
        return [{"params": params, "kind": kind, "stacked": True, "layers": len(self.linear), "matrix": matrix}]

    def maps(self) -> Iterable[tuple[LinearOperator, Tensor | None]]:
        """Operator and bias of each layer."""
        operators = self.linear.operators()
        biases = [None] * len(operators) if self.bias is None else self.bias.unbind(0)
        return zip(operators, biases, strict=True)


def maps_of(stacks: nn.Module) -> list[list[tuple[LinearOperator, Tensor | None]]]:
    """Operator and bias of each layer of each stack, at the current parameters."""
    return [list(cast("AffineStack", stack).maps()) for stack in stacks.children()]


def stack_layers(layers: Sequence[Layer]) -> tuple[nn.ModuleList, list[tuple[int, int]]]:
    """Stacks of neighbouring dense layers of equal shape, and the place (stack, index) of each layer."""
    stacks: list[list[Layer]] = []
    places = []
    for layer in layers:
        if stacks and _stackable(stacks[-1][-1], layer):
            stacks[-1].append(layer)
        else:
            stacks.append([layer])
        places.append((len(stacks) - 1, len(stacks[-1]) - 1))
    return nn.ModuleList([AffineStack(stack) for stack in stacks]), places


def _stackable(one: Layer, other: Layer) -> bool:
    """Dense layers of equal shape that are trained, or frozen, together."""

    def kind(layer: Layer) -> tuple:
        weight, bias = layer.module.weight, layer.module.bias
        return weight.shape, weight.requires_grad, bias is not None and (True, bias.requires_grad)

    return isinstance(one.operator, Dense) and isinstance(other.operator, Dense) and kind(one) == kind(other)


class ActivationList(nn.ModuleList):
    """σ_1, …, σ_J; one that holds parameters, such as `SoftThreshold(nn.Parameter(…))`, is a module, registered once.

    Arguments:
        activations: one per layer; layers may share parameters.
    """

    def __init__(self, activations: Sequence[ProximalActivation]) -> None:
        super().__init__()
        self.fixed = tuple(activations)
        self.places: tuple[int | None, ...] = tuple(map(self._register, activations))

    def current(self) -> tuple[ProximalActivation, ...]:
        """One activation per layer, with the current parameters."""
        held = [cast("ActivationModule", module).activation for module in self]
        return tuple(s if p is None else held[p] for s, p in zip(self.fixed, self.places, strict=True))

    def place_of(self, activation: ProximalActivation) -> int | None:
        """Where the parameters of an activation are, None where it has none."""
        tensors = list(learned(activation).values())
        for place, module in enumerate(self):
            if tensors and [*module.parameters()] and next(module.parameters()) is tensors[0]:
                return place
        return None

    def _register(self, activation: ProximalActivation) -> int | None:
        if not learned(activation):
            return None
        if (place := self.place_of(activation)) is None:
            self.append(ActivationModule(activation))
            place = len(self) - 1
        return place
