"""Quadratic penalties: the classical one, MAC-QP, and the contrastive scheme."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.liftings.base import Lifting, weighted
from torchlift.prox import Identity, ProximalActivation


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


@dataclass(frozen=True)
class MACQP(Lifting):
    """The squared distance to the activated output.

        D(z, v) = μ/2 ‖z − σ(v)‖²
        ∇_v D   = μ σ'(v)ᵀ(σ(v) − z)

    Smooth in z, so prox_z is the identity. In v it is neither convex nor, in
    general, of Lipschitz gradient: `curvature_v` is 1 for the identity and
    infinite otherwise. The gradient of ReLU's D jumps by z at v = 0 (likewise
    at every kink), and that of a smooth σ contains σ''(v)(σ(v) − z), which
    grows with z without bound.

    Arguments:
        mu: μ > 0, one number for all layers or one per layer.

    Reference: Carreira-Perpiñán & Wang, Distributed optimization of deeply
    nested systems (AISTATS 2014).
    """

    smooth_in_z: ClassVar[bool] = True

    def value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weighted(activation, 0.5 * activation.reduce((z - activation(v)).square()), weight)

    def grad_z(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weight * (z - activation(v))

    def grad_v(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return self.gradients(activation, z, v, weight)[1]

    def prox_z(self, activation: ProximalActivation, z: Tensor, step: float | Tensor, weight: float | Tensor) -> Tensor:
        return z

    def gradients(
        self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """(grad_z, grad_v) from one evaluation of σ; under `no_grad` and `inference_mode` too."""
        with torch.inference_mode(False), torch.enable_grad():
            leaf = (v.clone() if v.is_inference() else v.detach()).requires_grad_()
            p = activation(leaf)
            residual = weight * (p.detach() - z.detach())
            (slope,) = torch.autograd.grad(p, leaf, residual)
        return -residual, slope

    def curvature_z(self, activation: ProximalActivation) -> float:
        return 1.0

    def curvature_v(self, activation: ProximalActivation) -> float:
        return 1.0 if isinstance(activation, Identity) else math.inf


@dataclass(frozen=True)
class Contrastive(QuadraticLifting):
    """The gap between the clamped and the free energy, both of them classical.

        E(z; θ)  = Σ_j μ_j/2 ‖z_j − v_j‖² + Ψ_j(z_j)
        minimise over θ:  min_z [L + E(z; θ)] − min_z E(z; θ)

    As a lifting this class is one layer's term of E: value, gradients and
    prox equal those of `Classical`. What makes it contrastive, the difference
    of two inner minimisations over z, involves the loss and all layers; the
    objective does it, told by `contrastive`.

    Arguments:
        mu: μ > 0, one number for all layers or one per layer.

    Reference: Zach & Estellers, Contrastive learning for lifted networks
    (BMVC 2019).
    """

    contrastive: ClassVar[bool] = True
