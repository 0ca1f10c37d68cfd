"""Cholesky factors of symmetric matrices that may turn out not to be positive definite."""

from __future__ import annotations

import torch
from torch import Tensor


def cholesky(matrix: Tensor, ridge: float | Tensor = 0.0) -> Tensor | None:
    """Lower factors of A + ρI for A of shape (…, n, n); None where one of these matrices is not positive definite.

    Arguments:
        matrix: A, symmetric.
        ridge: ρ, a number or one for each row.
    """
    if isinstance(ridge, Tensor) or ridge:
        matrix = matrix.clone()
        matrix.diagonal(dim1=-2, dim2=-1).add_(ridge)
    factor, info = torch.linalg.cholesky_ex(matrix)
    return None if bool(info.any()) else factor
