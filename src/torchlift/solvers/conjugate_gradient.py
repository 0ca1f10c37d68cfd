"""Linear systems and eigenvalues from products alone: conjugate gradients, ridge regression, power iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from torchlift.core.checks import (
    check_choice,
    check_interval,
    check_like,
    check_number,
    check_positive,
    check_size,
    check_tensor,
)
from torchlift.core.cholesky import cholesky
from torchlift.core.errors import invalid_value
from torchlift.core.solution import Result

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LinearSolution:
    """A solution of a linear system, and why the iteration stopped.

    Arguments:
        x: the solution.
        result: CONVERGED, MAX_STEPS, NOT_POSITIVE_DEFINITE or NOT_FINITE.
        steps: products with the matrix, the one for the start left out.
        residual: ‖b − Ax‖ / ‖b‖, the largest of all samples.
    """

    x: Tensor
    result: Result
    steps: int
    residual: float

    @property
    def converged(self) -> bool:
        return self.result is Result.CONVERGED


@torch.no_grad()
def conjugate_gradient(
    apply: Map,
    b: Tensor,
    x0: Tensor | None = None,
    *,
    tolerance: float = 1e-10,
    max_steps: int | None = None,
    precondition: Map | None = None,
    batched: bool = False,
) -> LinearSolution:
    """Solves Ax = b for a symmetric positive definite A, stopping when ‖b − Ax‖ ≤ tolerance·‖b‖.

        α = ⟨r, s⟩/⟨p, Ap⟩,  x ← x + αp,  r ← r − αAp,  s = Mr,  p ← s + (⟨r⁺, s⁺⟩/⟨r, s⟩)p

    Arguments:
        apply: v ↦ Av.
        b: the right-hand side, of any shape.
        x0: a start; 0 by default.
        tolerance: in (0, 1).
        max_steps: 10 times the size of one system by default, at most 10,000.
        precondition: r ↦ Mr with M close to A⁻¹, symmetric positive definite.
        batched: one system per index of the first axis, with their own α, stopped one by one.

    Reference: Hestenes & Stiefel (1952); Saad, Iterative Methods for Sparse
    Linear Systems (2003), algorithm 9.1.
    """
    check_tensor("conjugate_gradient b", b)
    check_interval("conjugate_gradient tolerance", tolerance, "(0, 1)")
    if batched and (b.ndim == 0 or len(b) == 0):
        invalid_value("conjugate_gradient b", "a batch", f"shape {tuple(b.shape)}")
    size = b.numel() // (len(b) if batched else 1)
    default = max(1, min(10 * size, 10_000))
    limit = default if max_steps is None else check_size("conjugate_gradient max_steps", max_steps)
    return _iterate(apply, b, x0, tolerance, limit, precondition or (lambda r: r), _inner(b, batched))


def _iterate(
    apply: Map,
    b: Tensor,
    x0: Tensor | None,
    tolerance: float,
    limit: int,
    precondition: Map,
    inner: Callable[[Tensor, Tensor], Tensor],
) -> LinearSolution:
    x = torch.zeros_like(b) if x0 is None else x0.clone()
    r = b.clone() if x0 is None else b - apply(x)
    goal = tolerance**2 * inner(b, b)
    s = precondition(r)
    p, rs = s, inner(r, s)
    steps, result = 0, None
    while result is None:
        active = inner(r, r) > goal
        if not bool(active.any()):
            result = _finite_or(Result.CONVERGED, r)
            break
        if steps == limit:
            result = Result.MAX_STEPS
            break
        ap = apply(p)
        steps += 1
        curvature = inner(p, ap)
        if not bool((curvature[active] > 0).all()):
            result = _finite_or(Result.NOT_POSITIVE_DEFINITE, ap)
            break
        alpha = torch.where(active, rs / torch.where(active, curvature, 1.0), 0.0)
        x, r = x + alpha * p, r - alpha * ap
        s = precondition(r)
        rs, before = inner(r, s), rs
        p = s + torch.where(active, rs / torch.where(active, before, 1.0), 0.0) * p
    scale = inner(b, b).sqrt()
    relative = inner(r, r).sqrt() / torch.where(scale > 0, scale, 1.0)
    return LinearSolution(x, result, steps, float(relative.max()))


def _finite_or(result: Result, tensor: Tensor) -> Result:
    return result if bool(tensor.isfinite().all()) else Result.NOT_FINITE


def _inner(b: Tensor, batched: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """⟨·,·⟩ over everything as a 0-d tensor, or per sample as (B, 1, …)."""
    if not batched:
        return lambda u, v: torch.dot(u.reshape(-1), v.reshape(-1))
    shape = (len(b), *(1,) * (b.ndim - 1))
    return lambda u, v: (u * v).reshape(len(b), -1).sum(1).reshape(shape)


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


@dataclass(frozen=True, eq=False)
class Eigenpair:
    """The eigenvalue of largest modulus with its unit vector, and why the iteration stopped."""

    value: float
    vector: Tensor
    result: Result
    steps: int


@torch.no_grad()
def power_iteration(
    apply: Callable[[Tensor], Tensor], start: Tensor, *, tolerance: float = 1e-6, max_steps: int = 1000
) -> Eigenpair:
    """The largest eigenvalue (by modulus) of a symmetric linear map.

        v ← Av / ‖Av‖,   λ = ⟨v, Av⟩

    stopped when ‖Av − λv‖ ≤ tolerance·|λ|, which puts an eigenvalue within that
    distance of λ. For a positive semidefinite A, λ is a *lower* bound of ‖A‖: a
    step size 1/λ may be too long. Use `LinearOperator.norm_bound` for step
    sizes; this is for maps that are only a function.

    Arguments:
        apply: v ↦ Av.
        start: a vector that is not orthogonal to the eigenvector, such as a random one.
        tolerance: relative, > 0.
        max_steps: products with A.

    Reference: Golub & Van Loan, Matrix Computations (2013), section 8.2.1.
    """
    check_positive("power_iteration tolerance", tolerance)
    check_size("power_iteration max_steps", max_steps)
    length = float(torch.linalg.vector_norm(check_tensor("power_iteration start", start)))
    if not 0 < length < float("inf"):
        invalid_value("power_iteration start", "a finite vector that is not 0", f"norm {length}")
    v, value = start / length, 0.0
    for step in range(1, max_steps + 1):
        image = apply(v)
        value = float((v * image).sum())
        length = float(torch.linalg.vector_norm(image))
        if not length < float("inf"):
            return Eigenpair(value, v, Result.NOT_FINITE, step)
        if float(torch.linalg.vector_norm(image - value * v)) <= tolerance * abs(value):
            return Eigenpair(value, v, Result.CONVERGED, step)
        v = image / length
    return Eigenpair(value, v, Result.MAX_STEPS, max_steps)
