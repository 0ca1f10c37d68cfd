"""Power iteration for the largest eigenvalue of a symmetric map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_positive, check_size, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.core.solution import Result


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
