"""Small problems with known properties: what tests and documentation run solvers on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from torchlift.core.problem import CompositeProblem, Problem
from torchlift.functions import L1, GroupNorm, SquaredDistance
from torchlift.operators import FiniteDifference
from torchlift.solvers.saddle import SaddleProblem, Term


def normal(shape: Iterable[int], seed: int) -> Tensor:
    """Reproducible Gaussian numbers in double precision."""
    return torch.randn(tuple(shape), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def lasso(rows: int = 12, columns: int = 8, weight: float = 0.3, seed: int = 0) -> Problem:
    """½‖Ax − b‖² + weight·‖x‖₁, with a bound and a prox by entries."""
    matrix, target = normal((rows, columns), seed), normal((rows,), seed + 1)
    return regression(matrix, target, L1(weight))


def ridge(rows: int = 12, columns: int = 8, weight: float = 0.3, seed: int = 0) -> Problem:
    """½‖Ax − b‖² + ½weight·‖x‖², smooth."""
    matrix, target = normal((rows, columns), seed), normal((rows,), seed + 1)
    wide = torch.cat([matrix, weight**0.5 * torch.eye(columns, dtype=matrix.dtype)])
    return regression(wide, torch.cat([target, target.new_zeros(columns)]), None)


def total_variation(size: int = 6, weight: float = 0.4, *, smooth: bool = False, seed: int = 0) -> SaddleProblem:
    """½‖x − y‖² + weight·TV(x) on a (1, 1, size, size) image; the first part as f if `smooth`, else as g."""
    data = SquaredDistance(normal((1, 1, size, size), seed))
    term = Term(GroupNorm(weight), FiniteDifference((1, size, size)))
    return SaddleProblem((term,), f=data) if smooth else SaddleProblem((term,), g=data)


def regression(matrix: Tensor, target: Tensor, regulariser: Any) -> CompositeProblem:
    """½‖Ax − b‖² + R(x)."""
    return CompositeProblem(
        lambda x: 0.5 * (matrix @ x - target).square().sum(),
        lambda x: matrix.T @ (matrix @ x - target),
        regulariser,
        float(torch.linalg.matrix_norm(matrix, 2)) ** 2,
        elementwise=True,
    )
