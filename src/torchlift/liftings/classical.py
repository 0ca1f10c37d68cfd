"""The classical lifted penalty, whose energy the contrastive lifting has too."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.liftings.base import Lifting, weighted
from torchlift.prox import ProximalActivation


class QuadraticLifting(Lifting):
    """D(z, v) = μ/2 ‖z − v‖² + Ψ(z), where Ψ is not multiplied by μ."""

    def value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return self.smooth_value(activation, z, v, weight) + activation.psi(z)

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


@dataclass(frozen=True)
class Classical(QuadraticLifting):
    """The distance to the pre-activation, with the activation's Ψ as a regulariser.

        D(z, v) = μ/2 ‖z − v‖² + Ψ(z)

    For ReLU, Ψ is the constraint z ≥ 0. Over z, D is least at prox_{Ψ/μ}(v),
    which is σ(v) if μ = 1 or Ψ is an indicator. D is not 0 there and, unlike
    the other penalties, also pulls v towards z: training tends to an affine
    network, so this lifting serves to initialise others.

    Arguments:
        mu: μ > 0, one number for all layers or one per layer.

    Reference: Askari et al., Lifted neural networks (2018).
    """
