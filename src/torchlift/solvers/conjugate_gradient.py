"""Conjugate gradients: one linear system, or one per sample of a batch, from products alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_interval, check_size, check_tensor
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
