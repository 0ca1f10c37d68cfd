"""Projection onto a Euclidean ball."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.prox.base import GroupwiseActivation, ProximalActivation, check_dim, check_step, indicator
from torchlift.prox.norm import group_norm


@dataclass(frozen=True)
class L2Ball(GroupwiseActivation):
    """Projection of each group onto the Euclidean ball of radius r.

        σ(v)  = v if ‖v‖ ≤ r, r v/‖v‖ otherwise
        Ψ(u)  = 0 if ‖u‖ ≤ r, +∞ otherwise
        Φ*(v) = m(‖v‖ − ½m) with m = min(‖v‖, r)

    Membership of the ball is checked up to a relative (8 + n) eps for n entries.

    Arguments:
        radius: r > 0.
        dim: the axis along which entries form a vector.

    Reference: Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    radius: float = 1.0
    dim: int = -1

    def __post_init__(self) -> None:
        check_positive("L2Ball radius", self.radius)
        check_dim("L2Ball dim", self.dim)

    def __call__(self, v: Tensor) -> Tensor:
        return v * (self.radius / group_norm(v, self.dim).clamp(min=self.radius))

    def psi(self, u: Tensor) -> Tensor:
        norm = group_norm(u, self.dim).squeeze(self.dim)
        tolerance = (8 + u.shape[self.dim]) * torch.finfo(u.dtype).eps
        return indicator(norm <= self.radius * (1 + tolerance), norm)

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        check_step(step, u)
        return self(u)

    def conjugate(self, v: Tensor) -> Tensor:
        norm = group_norm(v, self.dim).squeeze(self.dim)
        inner = norm.clamp(max=self.radius)
        return inner * (norm - 0.5 * inner)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(), cls(0.5, dim=0)
