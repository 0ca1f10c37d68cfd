"""The nuclear norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_value
from torchlift.functions.regularisers.base import Regulariser, check_step


@dataclass(frozen=True)
class NuclearNorm(Regulariser):
    """The sum of singular values, for weights of low rank.

        R(X) = w Σ_i σ_i(X)
        prox with step s soft-thresholds the singular values at sw.

    A tensor of more than two axes is a batch of the matrices of its last two.
    A tensor step has size 1 along those two, or no axes at all.

    Arguments:
        weight: w > 0.

    Reference: Cai, Candès & Shen, A singular value thresholding algorithm for
    matrix completion, SIAM Journal on Optimization 20 (2010).
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_positive("NuclearNorm weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return self.weight * torch.linalg.svdvals(_check_matrix(x)).sum()

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        step = _per_matrix(check_step(step, x))
        left, values, right = torch.linalg.svd(_check_matrix(x), full_matrices=False)
        return (left * F.relu(values - step * self.weight).unsqueeze(-2)) @ right


def _check_matrix(x: Tensor) -> Tensor:
    if x.ndim < 2:
        invalid_value("NuclearNorm argument", "a matrix or a batch of matrices", f"shape {tuple(x.shape)}")
    return x


def _per_matrix(step: float | Tensor) -> float | Tensor:
    """A step of shape (…, 1, 1) without its last axis, to meet the singular values (…, k)."""
    if not isinstance(step, Tensor) or step.ndim == 0:
        return step
    if step.shape[-2:] != (1, 1):
        invalid_value("prox step", "a number, or a tensor of shape (…, 1, 1)", tuple(step.shape))
    return step.squeeze(-1)
