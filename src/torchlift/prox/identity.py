"""The identity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchlift.prox.base import ProximalActivation, check_step


@dataclass(frozen=True)
class Identity(ProximalActivation):
    """No activation at all.

    σ(v)  = v
    Ψ(u)  = 0
    Φ*(v) = ½v²
    """

    def __call__(self, v: Tensor) -> Tensor:
        return v

    def apply_(self, v: Tensor) -> Tensor:
        return v

    def psi(self, u: Tensor) -> Tensor:
        return torch.zeros_like(u)

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        check_step(step, u)
        return u

    def conjugate(self, v: Tensor) -> Tensor:
        return 0.5 * v.square()

    def to_module(self) -> nn.Module:
        return nn.Identity()
