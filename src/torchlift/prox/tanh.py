"""The hyperbolic tangent."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.special import xlog1py

from torchlift.prox.base import infinite_outside
from torchlift.prox.smooth import SmoothActivation


@dataclass(frozen=True)
class Tanh(SmoothActivation):
    """Hyperbolic tangent.

        σ(v)  = tanh(v)
        Ψ(u)  = ½[(1 + u) log(1 + u) + (1 − u) log(1 − u)] − ½u² if |u| ≤ 1, +∞ otherwise
        Φ*(v) = log cosh(v)

    Ψ is continuous up to its ends, Ψ(±1) = log 2 − ½, where some texts put +∞:
    lower semicontinuity asks for the finite value, and rounding reaches it.

    Reference: Combettes & Pesquet, Set-Valued and Variational Analysis 28
    (2020), there written u artanh(u) + ½(log(1 − u²) − u²).
    """

    def __call__(self, v: Tensor) -> Tensor:
        return torch.tanh(v)

    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.tanh(t)
        return value, 1 - value * value

    def apply_(self, v: Tensor) -> Tensor:
        return v.tanh_()

    def psi(self, u: Tensor) -> Tensor:
        c = u.clamp(-1, 1)
        entropy = xlog1py(1 + c, c) + xlog1py(1 - c, -c)
        return infinite_outside(0.5 * (entropy - c * c), u.abs() <= 1)

    def conjugate(self, v: Tensor) -> Tensor:
        # log cosh v = −½ log(1 − tanh² v) loses nothing near 0; the other form nothing far away.
        near = -0.5 * torch.log1p(-torch.tanh(v.clamp(-1, 1)).square())
        far = v.abs() + F.softplus(-2 * v.abs()) - math.log(2)
        return torch.where(v.abs() < 1, near, far)

    def to_module(self) -> nn.Module:
        return nn.Tanh()
