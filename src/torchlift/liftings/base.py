"""The contract of a lifting: a penalty D_σ(z, v) in place of the constraint z = σ(v)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_instance, check_positive
from torchlift.core.errors import invalid_value
from torchlift.prox import ProximalActivation


@dataclass(frozen=True)
class Lifting(ABC):
    """A penalty D_σ(z, v) between an activation z and a pre-activation v, weighted by μ.

    It sees only an activation, z and v, so that every lifting meets every
    architecture. D splits into a part that is smooth in z and a part whose
    proximal map is known. All methods act on tensors of any shape, without a
    factor for the number of samples; `weight` is μ_j, a number or a tensor
    like z that broadcasts over the layers of a stack (for groupwise
    activations of size 1 along `dim`).

    Arguments:
        mu: μ > 0, one number for all layers or one per layer.
    """

    #: Whether z = σ(v) is a hard constraint, so that there is no penalty to differentiate.
    hard: ClassVar[bool] = False
    #: Whether the objective is the difference of two minimised energies, not D itself.
    contrastive: ClassVar[bool] = False
    #: Whether D has no part that is nonsmooth in z, so that `prox_z` is the identity.
    smooth_in_z: ClassVar[bool] = False

    mu: float | tuple[float, ...] = 1.0

    def __post_init__(self) -> None:
        where = f"{type(self).__name__} mu"
        if isinstance(self.mu, Sequence) and not isinstance(self.mu, str):
            weights = tuple(check_positive(f"{where}[{j}]", weight) for j, weight in enumerate(self.mu))
            if not weights:
                invalid_value(where, "a number, or one per layer", "an empty sequence")
            object.__setattr__(self, "mu", weights)
        else:
            object.__setattr__(self, "mu", check_positive(where, self.mu))

    def weights(self, depth: int) -> tuple[float, ...]:
        """μ_1, …, μ_J for a network of J layers."""
        if not isinstance(self.mu, tuple):
            return (float(self.mu),) * depth
        if len(self.mu) != depth:
            invalid_value(f"{type(self).__name__} mu", f"one weight, or {depth}: one per layer", len(self.mu))
        return self.mu

    def check(self, activation: ProximalActivation) -> None:
        """Refuse an activation for which this lifting is not defined."""
        hint = "Try torchlift.prox.as_activation(...)."
        check_instance("activation", activation, ProximalActivation, "a proximal activation", hint)

    @abstractmethod
    def value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        """D(z, v), one term per entry, or per group for groupwise activations; +∞ off its domain."""

    def nonsmooth_value(self, activation: ProximalActivation, z: Tensor, weight: float | Tensor) -> Tensor:
        """The part of D that `prox_z` belongs to, one term per entry or group; zero where there is none."""
        return torch.zeros_like(activation.reduce(z))

    def smooth_value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        """The rest of D, finite for every z: what `grad_z` and `grad_v` are the gradients of."""
        return self.value(activation, z, v, weight)

    @abstractmethod
    def grad_z(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        """Gradient in z of the smooth part of D."""

    @abstractmethod
    def grad_v(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        """Gradient of D in v."""

    @abstractmethod
    def prox_z(self, activation: ProximalActivation, z: Tensor, step: float | Tensor, weight: float | Tensor) -> Tensor:
        """Proximal map of step times the part of D that is not smooth in z; the identity where there is none."""

    def gradients(
        self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """(grad_z, grad_v); grad_z may be v, overwritten, which saves an engine one buffer; grad_v never is."""
        return self.grad_z(activation, z, v, weight), self.grad_v(activation, z, v, weight)

    @abstractmethod
    def curvature_z(self, activation: ProximalActivation) -> float:
        """A Lipschitz constant of grad_z in z for weight 1."""

    @abstractmethod
    def curvature_v(self, activation: ProximalActivation) -> float:
        """A Lipschitz constant of grad_v in v for weight 1; infinite where there is none."""


def weighted(activation: ProximalActivation, terms: Tensor, weight: float | Tensor) -> Tensor:
    """μ times the terms of D; a tensor μ, shaped to broadcast against z, loses the axis that groups lose."""
    if not isinstance(weight, Tensor) or weight.ndim == 0 or activation.dim is None:
        return weight * terms
    sizes = (1,) * (terms.ndim + 1 - weight.ndim) + tuple(weight.shape)
    if sizes[activation.dim] != 1:
        hint = "A groupwise activation takes one weight per group."
        invalid_value("weight", f"a tensor of size 1 along dim {activation.dim}", tuple(weight.shape), hint)
    return weight.view(sizes).squeeze(activation.dim) * terms
