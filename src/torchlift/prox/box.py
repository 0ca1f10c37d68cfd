"""Projections: onto an interval, Box and its names in torch, Hardtanh and ReLU6, and onto a Euclidean ball."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchlift.core.checks import check_positive, check_tensor
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.prox.base import GroupwiseActivation, Projection, ProximalActivation, check_dim, group_norm, indicator


@dataclass(frozen=True, eq=False)
class Box(Projection, ProximalActivation):
    """Projection onto the interval [lo, hi].

        σ(v)  = min(max(v, lo), hi)
        Ψ(u)  = 0 if lo ≤ u ≤ hi, +∞ otherwise
        Φ*(v) = σ(v) (v − ½σ(v))

    Arguments:
        lo, hi: the ends, lo < hi; lo = −inf or hi = inf leaves a side open.
            Each may be a 0-d tensor, which then receives gradients: with
            Box(−λ, λ, validate=False) primal-dual networks learn λ.
        validate: whether to check lo < hi when one of them is a tensor. Turn
            this off where the order holds by construction: the check makes
            the device wait, and stops tracing.

    Reference: Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    lo: float | Tensor
    hi: float | Tensor
    validate: bool = True

    def __post_init__(self) -> None:
        learned = [_check_bound(f"Box {name}", end) for name, end in (("lo", self.lo), ("hi", self.hi))]
        if (self.validate or not any(learned)) and not bool(self.lo < self.hi):
            invalid_value("Box", "lo < hi", f"lo={self.lo}, hi={self.hi}", "Swap the two, or widen the interval.")

    def __call__(self, v: Tensor) -> Tensor:
        if isinstance(self.lo, Tensor) or isinstance(self.hi, Tensor):
            return v.clamp(min=_like(self.lo, v)).clamp(max=_like(self.hi, v))
        return F.hardtanh(v, self.lo, self.hi)

    def psi(self, u: Tensor) -> Tensor:
        return indicator((u >= _like(self.lo, u)) & (u <= _like(self.hi, u)), u)

    def conjugate_slopes(self, v: Tensor) -> dict[str, Tensor]:
        """v − σ(v), the multiplier of the constraint, summed where each end is active."""
        slopes = {}
        if isinstance(self.lo, Tensor) and self.lo.requires_grad:
            slopes["lo"] = (v - self.lo.detach()).clamp_(max=0).sum()
        if isinstance(self.hi, Tensor) and self.hi.requires_grad:
            slopes["hi"] = (v - self.hi.detach()).clamp_(min=0).sum()
        return slopes

    def carried(self, z: Tensor, to: ProximalActivation) -> Tensor:
        """From interval to interval: scaled, or shifted where one side is open."""
        assert isinstance(to, Box)  # of the same kind
        ends, others = (_ends(self, z), _ends(to, z))
        bounded = [bool(end.isfinite()) for end in ends]
        scale = (others[1] - others[0]) / (ends[1] - ends[0]) if all(bounded) else 1.0
        side = 0 if bounded[0] else 1
        moved = others[side] + scale * (z - ends[side]) if any(bounded) else z
        inside = ((z >= ends[0]) & (z <= ends[1])).detach()
        # rounding must not leave the interval; gradients pass as if there were none
        return moved + torch.where(inside, moved.clamp(*others) - moved, 0.0).detach()

    def to_module(self) -> nn.Module:
        if isinstance(self.lo, Tensor) or isinstance(self.hi, Tensor):
            return super().to_module()
        return nn.Hardtanh(self.lo, self.hi)

    @classmethod
    def example(cls) -> ProximalActivation:
        return cls(0.0, 1.0)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        end = torch.tensor(0.75, dtype=torch.float64)
        return cls(0.0, 1.0), cls(-math.inf, 0.5), cls(-end, end, validate=False), cls(-1, end)


def Hardtanh(min_val: float | Tensor = -1.0, max_val: float | Tensor = 1.0) -> Box:
    """torch's name for Box(min_val, max_val)."""
    return Box(min_val, max_val)


def ReLU6() -> Box:
    """torch's name for Box(0, 6)."""
    return Box(0.0, 6.0)


def _check_bound(where: str, end: object) -> bool:
    """Refuse what is no end of an interval; true for tensors."""
    if isinstance(end, Tensor):
        if check_tensor(where, end).ndim != 0:
            invalid_value(where, "a number or a 0-d tensor", f"shape {tuple(end.shape)}")
        return True
    if isinstance(end, bool) or not isinstance(end, Real):
        invalid_type(where, "a real number or a 0-d tensor", end)
    if math.isnan(end):
        invalid_value(where, "a number", end)
    return False


def _ends(box: Box, like: Tensor) -> tuple[Tensor, Tensor]:
    lo, hi = (end.to(like) if isinstance(end, Tensor) else like.new_tensor(end) for end in (box.lo, box.hi))
    return lo, hi


def _like(end: float | Tensor, v: Tensor) -> float | Tensor:
    return end.to(v) if isinstance(end, Tensor) else end


@dataclass(frozen=True)
class L2Ball(Projection, GroupwiseActivation):
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

    def conjugate(self, v: Tensor) -> Tensor:
        norm = group_norm(v, self.dim).squeeze(self.dim)
        inner = norm.clamp(max=self.radius)
        return inner * (norm - 0.5 * inner)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(), cls(0.5, dim=0)
