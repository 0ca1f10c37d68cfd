"""The probability simplex: softmax and the Euclidean projection."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchlift.prox.base import (
    GroupwiseActivation,
    Projection,
    ProximalActivation,
    at_least_single,
    check_dim,
    check_group_step,
    indicator,
    infinite_outside,
)
from torchlift.prox.smooth import solve_increasing
from torchlift.prox.smooth_rectifiers import ELU


def on_simplex(u: Tensor, dim: int) -> Tensor:
    """Whether each group is in {u ≥ 0, Σu = 1}, up to rounding.

    A group of n entries may miss either condition by (8 + n) eps of its dtype.
    """
    tolerance = (8 + u.shape[dim]) * torch.finfo(u.dtype).eps
    return (u >= -tolerance).all(dim) & ((u.sum(dim) - 1).abs() <= tolerance)


@dataclass(frozen=True)
class Softmax(GroupwiseActivation):
    """Softmax.

        σ(v)_i = e^{v_i} / Σ_k e^{v_k}
        Ψ(u)   = Σ u_i log u_i − ½‖u‖² if u ≥ 0 and Σu_i = 1, +∞ otherwise
        Φ*(v)  = log Σ e^{v_i}

    Membership of the simplex is checked up to (8 + n) eps for n entries.

    prox with step s: p = e^t, where t and one multiplier ν per group solve
    e^{t_i} + s(t_i − e^{t_i}) = u_i − ν and Σe^{t_i} = 1, by one safeguarded
    Newton iteration for ν around another for t. Differentiable once.

    Arguments:
        dim: the axis along which entries form a distribution.

    Reference: Combettes & Pesquet, Set-Valued and Variational Analysis 28
    (2020).
    """

    dim: int = -1

    def __post_init__(self) -> None:
        check_dim("Softmax dim", self.dim)

    def __call__(self, v: Tensor) -> Tensor:
        return torch.softmax(v, self.dim)

    def psi(self, u: Tensor) -> Tensor:
        c = u.clamp(min=0)
        return infinite_outside(self.reduce(torch.xlogy(c, c) - 0.5 * u * u), on_simplex(u, self.dim))

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        wide = at_least_single(u)
        step = check_group_step(step, wide, self.dim)
        if not isinstance(step, Tensor) and step == 1.0:
            return self(u)
        return torch.softmax(self._logarithm(wide, step), self.dim).to(u.dtype)

    def conjugate(self, v: Tensor) -> Tensor:
        return torch.logsumexp(v, self.dim)

    def to_module(self) -> nn.Module:
        return nn.Softmax(self.dim)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(), cls(dim=0)

    def _logarithm(self, u: Tensor, step: float | Tensor) -> Tensor:
        """t = log prox(u, step)."""
        unit, dim = ELU(1.0), self.dim
        # The prox does not see a constant added to a group; small entries round better.
        u = u - u.detach().amax(dim, keepdim=True)
        least_slope = 1 / (step.clamp(min=1) if isinstance(step, Tensor) else max(1.0, step))

        def logarithms(multiplier: Tensor) -> Tensor:
            # On t ≤ 0, which contains the solution, e^t = 1 + ELU(t); beyond, ELU keeps the equation increasing.
            return unit.preimage(u - multiplier - (1 - step), step)

        def slopes(t: Tensor) -> Tensor:
            return torch.exp(t.clamp(max=0)) * (1 - step) + step

        def excess(negated: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            t = logarithms(-negated)
            weights = torch.softmax(t, dim) / slopes(t)
            size = weights * (1 + step - step * t + (u + negated).abs())
            return torch.logsumexp(t, dim, keepdim=True), weights.sum(dim, keepdim=True), size.sum(dim, keepdim=True)

        with torch.no_grad():
            multiplier = -solve_increasing(excess, torch.zeros_like(u.narrow(dim, 0, 1)), least_slope)
            t = logarithms(multiplier)
            p, slope = torch.exp(t), slopes(t)
        # The last joint Newton step, recorded by autograd.
        residual = (u - multiplier) - (p + step * (t - p))
        shift = (p / slope * residual).sum(dim, keepdim=True) / (p / slope).sum(dim, keepdim=True)
        return t + (residual - shift) / slope


@dataclass(frozen=True)
class Simplex(Projection, GroupwiseActivation):
    """Euclidean projection onto the probability simplex (sparsemax).

        σ(v)  = max(v − θ, 0) with the θ that makes the entries sum to 1
        Ψ(u)  = 0 if u ≥ 0 and Σu_i = 1, +∞ otherwise
        Φ*(v) = ⟨σ(v), v − ½σ(v)⟩

    Membership of the simplex is checked up to (8 + n) eps for n entries.

    Arguments:
        dim: the axis along which entries form a distribution.

    Reference: Held, Wolfe & Crowder, Mathematical Programming 6 (1974);
    Martins & Astudillo, From softmax to sparsemax (2016), algorithm 1.
    """

    dim: int = -1

    def __post_init__(self) -> None:
        check_dim("Simplex dim", self.dim)

    def __call__(self, v: Tensor) -> Tensor:
        # Entries more than 1 below the largest are never in the support: cutting them off avoids overflow.
        shifted = (v - v.detach().amax(self.dim, keepdim=True)).clamp(min=-1)
        ordered = shifted.sort(self.dim, descending=True).values
        count = torch.ones_like(v).cumsum(self.dim)
        excess = ordered.cumsum(self.dim) - 1
        support = (ordered * count > excess).sum(self.dim, keepdim=True)
        # Not clamp, whose slope at 0 is 1: entries at the rim of the support must not leak gradients.
        return F.relu(shifted - excess.gather(self.dim, support - 1) / support)

    def psi(self, u: Tensor) -> Tensor:
        return indicator(on_simplex(u, self.dim), u.sum(self.dim))

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(), cls(dim=0)
