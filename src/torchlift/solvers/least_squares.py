"""Ridge regression: Cholesky of the smaller Gram matrix, or conjugate gradients where that is too large."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from torchlift.core.checks import check_choice, check_like, check_number, check_tensor
from torchlift.core.cholesky import cholesky
from torchlift.core.errors import invalid_value
from torchlift.solvers.conjugate_gradient import conjugate_gradient

Method = Literal["auto", "cholesky", "cg"]

#: Up to this size of the Gram matrix a factorisation is cheaper than many products.
CHOLESKY_UP_TO = 4096


@torch.no_grad()
def ridge_least_squares(
    inputs: Tensor, targets: Tensor, ridge: float = 0.0, *, method: Method = "auto", tolerance: float = 1e-10
) -> Tensor:
    """argmin_Θ ½‖XΘ − Y‖² + ½ε‖Θ‖².

        Θ = (XᵀX + εI)⁻¹XᵀY = Xᵀ(XXᵀ + εI)⁻¹Y

    by whichever Gram matrix is smaller. Without a ridge a rank-deficient X gets
    the solution of least norm.

    Arguments:
        inputs: X (rows, features).
        targets: Y (rows,) or (rows, outputs).
        ridge: ε ≥ 0.
        method: "cholesky", "cg", or by size.
        tolerance: relative residual of "cg".
    """
    _check(inputs, targets, ridge, method)
    columns = targets if targets.ndim == 2 else targets[:, None]
    if method == "auto":
        method = "cholesky" if min(inputs.shape) <= CHOLESKY_UP_TO else "cg"
    solution = (_direct if method == "cholesky" else _iterative)(inputs, columns, ridge, tolerance)
    return solution if targets.ndim == 2 else solution[:, 0]


def _direct(x: Tensor, y: Tensor, ridge: float, tolerance: float) -> Tensor:
    rows, features = x.shape
    wide = rows < features
    factor = cholesky(x @ x.T if wide else x.T @ x, ridge)
    # A pivot at the level of rounding is noise: the factor exists but its solution is worthless.
    if factor is None or (pivots := factor.diagonal().square()).min() <= 100 * torch.finfo(x.dtype).eps * pivots.max():
        return _minimal(x, y, ridge)
    return x.T @ torch.cholesky_solve(y, factor) if wide else torch.cholesky_solve(x.T @ y, factor)


def _minimal(x: Tensor, y: Tensor, ridge: float) -> Tensor:
    """The solution by singular values, with those at the level of rounding taken for 0."""
    left, values, right = torch.linalg.svd(x, full_matrices=False)
    keep = values > max(x.shape) * torch.finfo(x.dtype).eps * values.max()
    filtered = torch.where(keep, values / (values.square() + ridge).clamp_min(torch.finfo(x.dtype).tiny), 0.0)
    return right.T @ (filtered[:, None] * (left.T @ y))


def _iterative(x: Tensor, y: Tensor, ridge: float, tolerance: float) -> Tensor:
    """One system per output, all columns at once."""

    def normal(v: Tensor) -> Tensor:
        return (v @ x.T) @ x + ridge * v

    return conjugate_gradient(normal, (x.T @ y).T, tolerance=tolerance, batched=True).x.T


def _check(inputs: Tensor, targets: Tensor, ridge: float, method: str) -> None:
    if check_tensor("inputs", inputs).ndim != 2 or 0 in inputs.shape:
        invalid_value("inputs", "a matrix (rows, features)", f"shape {tuple(inputs.shape)}")
    check_like("targets", check_tensor("targets", targets), inputs)
    if targets.ndim not in (1, 2) or len(targets) != len(inputs):
        invalid_value("targets", f"{len(inputs)} rows, as the inputs", f"shape {tuple(targets.shape)}")
    check_number("ridge", ridge, minimum=0)
    check_choice("method", method, get_args(Method))
