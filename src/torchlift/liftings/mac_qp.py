"""The quadratic penalty of the method of auxiliary coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.liftings.base import Lifting, weighted
from torchlift.prox import Identity, ProximalActivation


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
