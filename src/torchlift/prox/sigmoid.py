"""The logistic sigmoid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.special import xlog1py

from torchlift.prox.base import infinite_outside
from torchlift.prox.smooth import SmoothActivation


@dataclass(frozen=True)
class Sigmoid(SmoothActivation):
    """Logistic sigmoid.

        σ(v)  = 1 / (1 + e^{−v})
        Ψ(u)  = u log u + (1 − u) log(1 − u) − ½u² if 0 ≤ u ≤ 1, +∞ otherwise
        Φ*(v) = log(1 + e^v)

    Ψ(0) = 0 and Ψ(1) = −½.

    Reference: Combettes & Pesquet, Set-Valued and Variational Analysis 28
    (2020) (there shifted by ½).
    """

    def __call__(self, v: Tensor) -> Tensor:
        return torch.sigmoid(v)

    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.sigmoid(t)
        return value, value * (1 - value)

    def apply_(self, v: Tensor) -> Tensor:
        return v.sigmoid_()

    def psi(self, u: Tensor) -> Tensor:
        c = u.clamp(0, 1)
        value = torch.xlogy(c, c) + xlog1py(1 - c, -c) - 0.5 * c * c
        return infinite_outside(value, (u >= 0) & (u <= 1))

    def conjugate(self, v: Tensor) -> Tensor:
        # Not F.softplus, which drops e^{−v} beyond v = 20.
        return -F.logsigmoid(-v)

    def to_module(self) -> nn.Module:
        return nn.Sigmoid()
