"""Exact minimisation over the weights of dense layers with their inputs and outputs fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LayerFit:
    """J independent layers: min_Θ (1/B) Σ_i D(z_i, Θ x_i) + ρ/2 ‖Θ − Θ₀‖², with x = (u, 1) where there is a bias.

    Args:
        inputs: u, (J, B, in).
        residual: ∇_v D, a function of v (J, B, out).
        curvature: a Lipschitz constant of ∇_v D, (J, 1, 1) or a number.
        anchor: Θ₀ as (weight, bias), or None for zero.
        strength: ρ ≥ 0.
    """

    inputs: Tensor
    residual: Callable[[Tensor], Tensor]
    curvature: float | Tensor
    anchor: tuple[Tensor, Tensor | None] | None = None
    strength: float = 0.0


@torch.no_grad()
def fit(problem: LayerFit, weight: Tensor, bias: Tensor | None, tolerance: float, steps: int = 500) -> tuple:
    """(weight, bias) by the ridge majoriser.

    ∇_v D has curvature at most c, so (c/B) XᵀX + ρI bounds the Hessian and

        Θ ← Θ − (RᵀX/B + ρ(Θ − Θ₀)) ((c/B) XᵀX + ρI)⁻¹

    decreases the objective without a step size; one Cholesky factor serves all
    iterations, and it is exact at once where D is quadratic in v. Nesterov's
    extrapolation with restart speeds it up.

    Args:
        weight: (J, out, in), where to start.
        bias: (J, out), or None.
        tolerance: stop when the gradient, or the step, has shrunk by this factor.
        steps: at most so many iterations.
    """
    X = problem.inputs
    if bias is not None:
        X = torch.cat([X, X.new_ones(*X.shape[:2], 1)], dim=2)
    theta = weight if bias is None else torch.cat([weight, bias.unsqueeze(2)], dim=2)
    anchor = torch.zeros_like(theta) if problem.anchor is None else _joined(*problem.anchor)
    factor = _factor(X, problem)
    # Without a pull towards an anchor the step is Rᵀ(XG⁻¹)/B: solve for the B inputs once, not for every gradient.
    solved = None if problem.strength else torch.cholesky_solve(X.transpose(1, 2), factor).transpose(1, 2)
    ahead, momentum, first = theta, 1.0, None
    for _ in range(steps):
        residual = problem.residual(X @ ahead.transpose(1, 2)).transpose(1, 2) / X.shape[1]
        if solved is None:
            gradient = residual @ X + problem.strength * (ahead - anchor)
            step = torch.cholesky_solve(gradient.transpose(1, 2), factor).transpose(1, 2)
            size = torch.linalg.matrix_norm(gradient)
        else:
            step = residual @ solved
            size = torch.linalg.matrix_norm(step)
        first = size if first is None else first
        if bool((size <= tolerance * first.clamp_min(torch.finfo(size.dtype).tiny)).all()):
            theta = ahead
            break
        new = ahead - step
        following = 0.5 * (1 + (1 + 4 * momentum**2) ** 0.5)
        # the step turns against the momentum: start anew (gradient restart)
        turned = float(((ahead - new) * (new - theta)).sum()) > 0
        extrapolation = 0.0 if turned else (momentum - 1) / following
        momentum = 1.0 if turned else following
        ahead, theta = new + extrapolation * (new - theta), new
    if bias is None:
        return theta, None
    return theta[..., :-1].contiguous(), theta[..., -1].contiguous()


def _factor(X: Tensor, problem: LayerFit) -> Tensor:
    """Cholesky factor of (c/B) XᵀX + ρI; a ridge at the level of rounding keeps it definite."""
    gram = problem.curvature * (X.transpose(1, 2) @ X) / X.shape[1]
    diagonal = gram.diagonal(dim1=1, dim2=2)
    scale = diagonal.mean(1, keepdim=True).clamp_min(torch.finfo(X.dtype).tiny)
    for power in range(8):
        ridge = problem.strength + scale * torch.finfo(X.dtype).eps * 10.0 ** (2 * power)
        factor, info = torch.linalg.cholesky_ex(gram + torch.diag_embed(ridge.expand_as(diagonal)))
        if not bool(info.any()):
            return factor
    return torch.linalg.cholesky(gram + torch.diag_embed(scale.expand_as(diagonal)))


def _joined(weight: Tensor, bias: Tensor | None) -> Tensor:
    return weight if bias is None else torch.cat([weight, bias.unsqueeze(2)], dim=2)
