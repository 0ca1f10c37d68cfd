"""Exact minimisation over the weights of dense layers with their inputs and outputs fixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from torchlift.core.cholesky import cholesky
from torchlift.core.shard import WHOLE, Shard
from torchlift.solvers.momentum import next_momentum

Direction: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Θ ↦ the step of the majoriser, and the norm by which it is judged, (J,)."""


@dataclass(frozen=True, eq=False)
class LayerFit:
    """J independent layers: min_Θ (1/B) Σ_i D(z_i, Θ x_i) + ρ/2 ‖Θ − Θ₀‖², with x = (u, 1) where there is a bias.

    Arguments:
        inputs: u, (J, B, in).
        residual: ∇_v D, a function of v (J, B, out).
        curvature: a Lipschitz constant of ∇_v D, (J, 1, 1) or a number.
        anchor: Θ₀ as (weight, bias), or None for zero.
        strength: ρ ≥ 0.
        target: t, (J, B, out), where ∇_v D = c(v − t); None elsewhere.
        shard: which samples of the batch these are. They stay where they are: XᵀX and TᵀX are summed over the
            processes once, or RᵀX in every iteration where there is no target, so that all find the same Θ and stop
            at the same iteration.
    """

    inputs: Tensor
    residual: Callable[[Tensor], Tensor]
    curvature: float | Tensor
    anchor: tuple[Tensor, Tensor | None] | None = None
    strength: float = 0.0
    target: Tensor | None = None
    shard: Shard = WHOLE

    def mean(self, *means: Tensor) -> tuple[Tensor, ...]:
        """Means over the whole batch from those over the samples here, which are overwritten; in one exchange."""
        self.shard.mean_(*means)
        return means


@torch.no_grad()
def fit(problem: LayerFit, weight: Tensor, bias: Tensor | None, tolerance: float, steps: int = 500) -> tuple:
    """(weight, bias) by the ridge majoriser.

    ∇_v D has curvature at most c, so (c/B) XᵀX + ρI bounds the Hessian and

        Θ ← Θ − (RᵀX/B + ρ(Θ − Θ₀)) ((c/B) XᵀX + ρI)⁻¹

    decreases the objective without a step size; one Cholesky factor serves all
    iterations, and it is exact at once where D is quadratic in v. Nesterov's
    extrapolation with restart speeds it up.

    Arguments:
        weight: (J, out, in), where to start.
        bias: (J, out), or None.
        tolerance: stop when the gradient, or the step, has shrunk by this factor, or to rounding.
        steps: at most so many iterations.
    """
    X = joined(problem.inputs, None if bias is None else problem.inputs.new_ones(problem.inputs.shape[:2]))
    theta = joined(weight, bias)
    anchor = torch.zeros_like(theta) if problem.anchor is None else joined(*problem.anchor)
    descent = _by_sums if not problem.shard.whole and problem.target is not None else _by_samples
    direction = descent(problem, X, anchor)
    ahead, momentum, first = theta, 1.0, None
    for _ in range(steps):
        step, size = direction(ahead)
        first = size if first is None else first
        shrunk = size <= tolerance * first.clamp_min(torch.finfo(size.dtype).tiny)
        still = torch.linalg.matrix_norm(step) <= torch.finfo(size.dtype).eps * torch.linalg.matrix_norm(ahead)
        if bool((shrunk | still).all()):
            theta = ahead
            break
        new = ahead - step
        following = next_momentum(momentum)
        # the step turns against the momentum: start anew (gradient restart)
        turned = float(((ahead - new) * (new - theta)).sum()) > 0
        extrapolation = 0.0 if turned else (momentum - 1) / following
        momentum = 1.0 if turned else following
        ahead, theta = new + extrapolation * (new - theta), new
    return parted(theta, bias is not None)


def _by_samples(problem: LayerFit, X: Tensor, anchor: Tensor) -> Direction:
    """R at the samples here, anew in every iteration."""
    (gram,) = problem.mean(X.transpose(1, 2) @ X / X.shape[1])
    factor = definite_factor(problem.curvature * gram, problem.strength)
    # Without a pull towards an anchor the step is Rᵀ(XG⁻¹)/B: solve for the B inputs once, not for every gradient.
    solved = None if problem.strength else torch.cholesky_solve(X.transpose(1, 2), factor).transpose(1, 2)

    def direction(theta: Tensor) -> tuple[Tensor, Tensor]:
        residual = problem.residual(X @ theta.transpose(1, 2)).transpose(1, 2) / X.shape[1]
        if solved is not None:
            (step,) = problem.mean(residual @ solved)
            return step, torch.linalg.matrix_norm(step)
        gradient = problem.mean(residual @ X)[0] + problem.strength * (theta - anchor)
        return _solve(factor, gradient), torch.linalg.matrix_norm(gradient)

    return direction


def _by_sums(problem: LayerFit, X: Tensor, anchor: Tensor) -> Direction:
    """RᵀX = c(Θ XᵀX − TᵀX), whose sums over the samples of all processes are found once."""
    assert problem.target is not None  # since `fit`
    target = problem.target.transpose(1, 2)
    gram, cross = problem.mean(X.transpose(1, 2) @ X / X.shape[1], target @ X / X.shape[1])
    gram, cross = problem.curvature * gram, problem.curvature * cross
    factor = definite_factor(gram, problem.strength)

    def direction(theta: Tensor) -> tuple[Tensor, Tensor]:
        gradient = theta @ gram - cross + problem.strength * (theta - anchor)
        step = _solve(factor, gradient)
        return step, torch.linalg.matrix_norm(gradient if problem.strength else step)

    return direction


def _solve(factor: Tensor, gradient: Tensor) -> Tensor:
    """∇ G⁻¹."""
    return torch.cholesky_solve(gradient.transpose(1, 2), factor).transpose(1, 2)


def definite_factor(gram: Tensor, strength: float = 0.0) -> Tensor:
    """Cholesky factors of Gram matrices + ρI, (J, n, n); a ridge at the level of rounding keeps them definite."""
    diagonal = gram.diagonal(dim1=1, dim2=2)
    scale = diagonal.mean(1, keepdim=True).clamp_min(torch.finfo(gram.dtype).tiny)
    for power in range(8):
        factor = cholesky(gram, strength + scale * torch.finfo(gram.dtype).eps * 10.0 ** (2 * power))
        if factor is not None:
            return factor
    return torch.linalg.cholesky(gram + torch.diag_embed(scale.expand_as(diagonal)))


def few_samples(shard: Shard, X: Tensor, columns: int | None = None) -> bool:
    """Whether a batch has fewer samples than X has columns: they are less to send than XᵀX, which is singular."""
    return shard.samples(X) < (X.shape[1] if columns is None else columns)


def joined(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Θ = (W, b), or W where there is no bias."""
    return weight if bias is None else torch.cat([weight, bias.unsqueeze(-1)], dim=-1)


def parted(theta: Tensor, with_bias: bool) -> tuple[Tensor, Tensor | None]:
    """W and b of Θ."""
    return (theta[..., :-1].contiguous(), theta[..., -1].contiguous()) if with_bias else (theta, None)
