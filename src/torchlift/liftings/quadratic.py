"""The energy that the classical and the contrastive lifting share."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.liftings.base import Lifting, weighted
from torchlift.prox import ProximalActivation


class QuadraticLifting(Lifting):
    """D(z, v) = μ/2 ‖z − v‖² + Ψ(z), where Ψ is not multiplied by μ."""

    def value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        square = activation.reduce((z - v).square())
        return weighted(activation, 0.5 * square, weight) + activation.psi(z)

    def nonsmooth_value(self, activation: ProximalActivation, z: Tensor, weight: float | Tensor) -> Tensor:
        return activation.psi(z)

    def smooth_value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weighted(activation, 0.5 * activation.reduce((z - v).square()), weight)

    def grad_z(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weight * (z - v)

    def grad_v(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weight * (v - z)

    def prox_z(self, activation: ProximalActivation, z: Tensor, step: float | Tensor, weight: float | Tensor) -> Tensor:
        return activation.prox(z, step)

    @torch.no_grad()
    def gradients(
        self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """(grad_z, grad_v), where grad_z overwrites v."""
        v.sub_(z).mul_(-weight)
        return v, v.neg()

    def curvature_z(self, activation: ProximalActivation) -> float:
        return 1.0

    def curvature_v(self, activation: ProximalActivation) -> float:
        return 1.0
