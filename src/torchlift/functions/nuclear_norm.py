"""The nuclear norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_value
from torchlift.functions.base import ROUNDING, Amount, Function, along, check_step, per_sample, zero_or_infinite


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
