"""The Fenchel penalty, written out per activation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.errors import invalid_value
from torchlift.liftings.base import weighted
from torchlift.liftings.bregman import BiconvexLifting
from torchlift.prox import Box, Identity, LeakyReLU, ProximalActivation, ReLU, Sigmoid, SoftThreshold, Tanh
from torchlift.prox.base import infinite_outside


@dataclass(frozen=True)
class Fenchel(BiconvexLifting):
    """The biconvex function B_σ ≥ 0 that vanishes exactly when z = σ(v).

        D(z, v) = μ B_σ(z, v)

    B_σ is written for each activation as the literature gives it: see the
    functions of this module. It is the same function as `Bregman`'s, which
    covers every activation and rounds better; here D is non-negative, and 0 at
    z = σ(v), only up to the rounding of the terms that are added.

    Arguments:
        mu: μ > 0, one number for all layers or one per layer.

    Reference: Gu, Askari & El Ghaoui, Fenchel lifted networks (AISTATS 2020),
    for ReLU and its construction by Fenchel duality.
    """

    def check(self, activation: ProximalActivation) -> None:
        super().check(activation)
        _written(activation)

    def value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        return weighted(activation, _written(activation)(activation, z, v), weight)


def identity(activation: Identity, z: Tensor, v: Tensor) -> Tensor:
    """B(z, v) = ½(z − v)²."""
    return 0.5 * (z - v).square()


def relu(activation: ReLU, z: Tensor, v: Tensor) -> Tensor:
    """B(z, v) = ½z² + ½max(v, 0)² − vz for z ≥ 0."""
    return infinite_outside(0.5 * z.square() + 0.5 * F.relu(v).square() - v * z, z >= 0)


def leaky_relu(activation: LeakyReLU, z: Tensor, v: Tensor) -> Tensor:
    """B(z, v) = ½max(z, 0)² + min(z, 0)²/(2a) + ½max(v, 0)² + (a/2)min(v, 0)² − vz with slope a."""
    a = activation.slope
    potential = 0.5 * F.relu(z).square() + F.relu(-z).square() / (2 * a)
    conjugate = 0.5 * F.relu(v).square() + 0.5 * a * F.relu(-v).square()
    return potential + conjugate - v * z


def soft_threshold(activation: SoftThreshold, z: Tensor, v: Tensor) -> Tensor:
    """B(z, v) = ½z² + λ|z| + ½max(|v| − λ, 0)² − vz."""
    threshold = activation.psi(torch.ones_like(z))  # λ, aligned with z where there is one per channel
    return 0.5 * z.square() + threshold * z.abs() + 0.5 * F.relu(v.abs() - threshold).square() - v * z


def box(activation: Box, z: Tensor, v: Tensor) -> Tensor:
    """B(z, v) = ½z² + p(v − ½p) − vz for lo ≤ z ≤ hi, with p the point of [lo, hi] nearest to v."""
    lo, hi = torch.as_tensor(activation.lo).to(v), torch.as_tensor(activation.hi).to(v)
    p = torch.minimum(torch.maximum(v, lo), hi)
    return infinite_outside(0.5 * z.square() + p * (v - 0.5 * p) - v * z, (z >= lo) & (z <= hi))


def sigmoid(activation: Sigmoid, z: Tensor, v: Tensor) -> Tensor:
    """B(z, v) = z log z + (1 − z) log(1 − z) + log(1 + e^v) − vz for 0 ≤ z ≤ 1."""
    c = z.clamp(0, 1)
    entropy = torch.xlogy(c, c) + torch.xlogy(1 - c, 1 - c)
    return infinite_outside(entropy + torch.logaddexp(v, torch.zeros_like(v)) - v * c, (z >= 0) & (z <= 1))


def tanh(activation: Tanh, z: Tensor, v: Tensor) -> Tensor:
    """B(z, v) = ½(1 + z) log(1 + z) + ½(1 − z) log(1 − z) + log cosh v − vz for |z| ≤ 1."""
    c = z.clamp(-1, 1)
    entropy = 0.5 * (torch.xlogy(1 + c, 1 + c) + torch.xlogy(1 - c, 1 - c))
    return infinite_outside(entropy + torch.logaddexp(v, -v) - math.log(2) - v * c, z.abs() <= 1)


#: B_σ by activation. A new one adds its function and its line; the contract tests compare it with `Bregman`.
WRITTEN: dict[type[ProximalActivation], Callable[[Any, Tensor, Tensor], Tensor]] = {
    Box: box,
    Identity: identity,
    LeakyReLU: leaky_relu,
    ReLU: relu,
    Sigmoid: sigmoid,
    SoftThreshold: soft_threshold,
    Tanh: tanh,
}


def _written(activation: ProximalActivation) -> Callable[[Any, Tensor, Tensor], Tensor]:
    """The function B_σ of an activation; subclasses may change σ, so the type must match exactly."""
    function = WRITTEN.get(type(activation))
    if function is None:
        names = ", ".join(cls.__name__ for cls in WRITTEN)
        hint = "Try Bregman(mu): the same penalty, defined for every proximal activation."
        invalid_value("Fenchel", f"an activation whose B_σ is written out ({names})", activation, hint)
    return function
