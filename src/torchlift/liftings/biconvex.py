"""The gradients that Fenchel and Bregman liftings share."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.liftings.base import Lifting, weighted
from torchlift.prox import ProximalActivation


class BiconvexLifting(Lifting):
    """The derivatives of D = μ[Φ(z) + Φ*(v) − ⟨z, v⟩], Φ = ½‖·‖² + Ψ, however its value is written.

        smooth part in z: μ[½‖z‖² − ⟨z, v⟩], gradient μ(z − v)
        nonsmooth part:   μΨ(z), with prox_{step·μΨ}
        gradient in v:    μ(σ(v) − z), since ∇Φ* = σ

    No derivative of σ appears. Both gradients are 1-Lipschitz for μ = 1: σ is
    a proximal map, hence firmly nonexpansive.
    """

    def nonsmooth_value(self, activation: ProximalActivation, z: Tensor, weight: float | Tensor) -> Tensor:
        return weighted(activation, activation.psi(z), weight)

    def smooth_value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weighted(activation, activation.conjugate(v) + activation.reduce(z * (0.5 * z - v)), weight)

    def grad_z(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weight * (z - v)

    def grad_v(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weight * (activation(v) - z)

    def prox_z(self, activation: ProximalActivation, z: Tensor, step: float | Tensor, weight: float | Tensor) -> Tensor:
        return activation.prox(z, step * weight)

    def gradients(
        self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """(grad_z, grad_v), where grad_z overwrites v and σ(v) is all that is allocated.

        Not for tensors that autograd watches: engines call this in every step, without a tape.
        """
        residual = activation(v)
        if residual is v or residual.data_ptr() == v.data_ptr():
            residual = residual.clone()  # the identity hands back its argument, which is about to change
        residual.sub_(z)
        torch.sub(z, v, out=v)
        if isinstance(weight, Tensor):
            residual.mul_(weight)
            v.mul_(weight)
        elif weight != 1:
            torch._foreach_mul_((residual, v), weight)  # pyright: ignore[reportPrivateImportUsage]
        return v, residual

    def curvature_z(self, activation: ProximalActivation) -> float:
        return 1.0

    def curvature_v(self, activation: ProximalActivation) -> float:
        return 1.0
