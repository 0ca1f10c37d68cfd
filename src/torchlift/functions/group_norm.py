"""Norms of groups of entries, with corners or without."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_number, check_positive
from torchlift.functions.base import ROUNDING, Amount, Function, along, at_least_tiny, check_step, per_sample


@dataclass(frozen=True)
class GroupNorm(Function):
    """Lengths of groups of entries; after finite differences, total variation.

        g(x)  = w Σ_groups h(‖x_group‖),   h(s) = s − δ/2 if s ≥ δ, s²/2δ otherwise
        g*(p) = δ‖p‖²/2w if every group is at most w long, +∞ otherwise

    With δ = 0, h(s) = s: the group lasso, or ℓ1 for single entries. With δ > 0 g
    is smooth: Huber's function.

    Arguments:
        weight: w > 0.
        dim: the axis or axes whose entries belong together, counted with the batch axis; None for single entries.
        delta: δ ≥ 0.

    Reference: Yuan & Lin, Journal of the Royal Statistical Society B 68 (2006);
    Huber, Annals of Mathematical Statistics 35 (1964).
    """

    weight: float = 1.0
    dim: int | tuple[int, ...] | None = 1
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_positive("GroupNorm weight", self.weight)
        check_number("GroupNorm delta", self.delta, minimum=0)
        if isinstance(self.dim, int):
            object.__setattr__(self, "dim", (self.dim,))

    def value(self, x: Tensor) -> Tensor:
        length = self.lengths(x)
        if self.delta:
            below = length.clamp_max(self.delta)
            length = length - below + below.square() / (2 * self.delta)
        return self.weight * per_sample(length)

    def grad(self, x: Tensor) -> Tensor:
        if not self.dim:
            slope = x.clamp(-self.delta, self.delta) / self.delta if self.delta else torch.sign(x)
            return self.weight * slope
        return x * (self.weight / self.lengths(x).clamp_min(max(self.delta, torch.finfo(x.dtype).tiny)))

    def curvature(self) -> float:
        return self.weight / self.delta if self.delta else math.inf

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        threshold = self.weight * check_step(step, x)
        reach = (self.lengths(x) - self.delta).clamp_min(at_least_tiny(threshold, x))
        # exactly 0 + δ where the length is below the threshold, whatever its size
        return x * ((reach - threshold + self.delta) / (reach + self.delta))

    def conjugate(self, p: Tensor) -> Tensor:
        length = self.lengths(p)
        outside = length > self.weight * (1 + ROUNDING * torch.finfo(p.dtype).eps)
        value = self.delta / (2 * self.weight) * length.square()
        return per_sample(value.masked_fill(outside, math.inf))

    def prox_conjugate(self, p: Tensor, step: Amount = 1.0, weight: Amount = 1.0) -> Tensor:
        step, weight = along(step, p), along(self.weight * weight, p)
        if self.delta:
            p = p * (weight / (weight + step * self.delta))
        if not self.dim:
            return p.maximum(-weight).minimum(weight) if isinstance(weight, Tensor) else p.clamp(-weight, weight)
        return p * (weight / self.lengths(p).clamp_min(at_least_tiny(weight, p)))

    def lengths(self, x: Tensor) -> Tensor:
        """‖x‖ of each group, its axes kept with size 1."""
        if not self.dim:
            return x.abs()
        if self.dim == (1,) and x.shape[1] == 2:
            # much faster than a norm over an axis of two entries
            return torch.addcmul(x[:, :1].square(), x[:, 1:], x[:, 1:]).sqrt_()
        return x.square().sum(self.dim, keepdim=True).sqrt_()

    @classmethod
    def examples(cls) -> tuple[Function, ...]:
        return cls(0.6), cls(1.5, (1, 2)), cls(0.7, None), cls(0.7, None, 0.3), cls(2.0, 1, 0.5)
