"""Norms of groups: Euclidean norms of vectors, and the nuclear norm of matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.checks import check_number, check_positive
from torchlift.core.errors import invalid_value
from torchlift.functions.base import (
    ROUNDING,
    Amount,
    Function,
    along,
    at_least_tiny,
    check_step,
    per_sample,
    zero_or_infinite,
)


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


@dataclass(frozen=True)
class NuclearNorm(Function):
    """The sum of singular values, for weights and images of low rank.

        g(X)  = w Σ_i σ_i(X)
        prox with step s soft-thresholds the singular values at sw
        g*(P) = 0 if all σ_i(P) ≤ w, +∞ otherwise

    A tensor of more than two axes is a batch of the matrices of its last two; one
    of two axes is a single matrix. A tensor step has size 1 along those two.

    Arguments:
        weight: w > 0.

    Reference: Cai, Candès & Shen, A singular value thresholding algorithm for
    matrix completion, SIAM Journal on Optimization 20 (2010).
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_positive("NuclearNorm weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        values = torch.linalg.svdvals(_check_matrix(x))
        return self.weight * (per_sample(values) if x.ndim > 2 else values.sum())

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        step = _per_matrix(check_step(step, _check_matrix(x)))
        left, values, right = torch.linalg.svd(x, full_matrices=False)
        return (left * F.relu(values - step * self.weight).unsqueeze(-2)) @ right

    def prox_conjugate(self, p: Tensor, step: Amount = 1.0, weight: Amount = 1.0) -> Tensor:
        limit = _per_matrix(along(self.weight * weight, _check_matrix(p)))
        left, values, right = torch.linalg.svd(p, full_matrices=False)
        return (left * values.clamp_max(limit).unsqueeze(-2)) @ right

    def conjugate(self, p: Tensor) -> Tensor:
        inside = torch.linalg.svdvals(_check_matrix(p)) <= self.weight * (1 + ROUNDING * torch.finfo(p.dtype).eps)
        return zero_or_infinite(inside if p.ndim > 2 else inside.all(), p)


def _check_matrix(x: Tensor) -> Tensor:
    if x.ndim < 2:
        invalid_value("NuclearNorm argument", "a matrix or a batch of matrices", f"shape {tuple(x.shape)}")
    return x


def _per_matrix(step: Amount) -> Amount:
    """A step of shape (…, 1, 1) without its last axis, to meet the singular values (…, k)."""
    if not isinstance(step, Tensor) or step.ndim == 0:
        return step
    if step.shape[-2:] != (1, 1):
        invalid_value("prox step", "a number, or a tensor of shape (…, 1, 1)", tuple(step.shape))
    return step.squeeze(-1)
