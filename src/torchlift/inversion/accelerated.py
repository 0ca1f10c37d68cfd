"""Accelerated proximal gradient on the composed network: how the default algorithm finishes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_size
from torchlift.functions.base import along
from torchlift.inversion.nested import curvature_at, too_steep
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.proximal import prior_step
from torchlift.inversion.solver import InversionState, Nested, block_bound, choose, rounding
from torchlift.solvers.momentum import next_momentum


@dataclass(frozen=True, eq=False)
class Extrapolation:
    """Where the next gradient step starts, and what is known there.

    Arguments:
        smooth: f at the input itself: (B,).
        at: x̃.
        smooth_at, gradient: f and ∇f at x̃.
        t: Nesterov's t, 1 where an image starts anew: (B,).
        curvature: L: (B,).
    """

    smooth: Tensor
    at: Tensor
    smooth_at: Tensor
    gradient: Tensor
    t: Tensor
    curvature: Tensor


@dataclass(frozen=True, kw_only=True)
class Accelerated(Nested):
    """Proximal gradient with momentum, the prior's own proximal map and a curvature per image.

        x⁺ = prox_{ρR/L}(x̃ − ∇f(x̃)/L),   x̃⁺ = x⁺ + β(x⁺ − x),   f(x) = L(N(x); y) + λ/2 ‖x − x₀‖²

    L is estimated by power iteration, grows where f is steeper than it says and
    shrinks otherwise. An image whose objective would increase stays where it is
    and loses its momentum, so that the objective decreases. A step costs two
    forward passes and one backward pass. Few dual steps per proximal map are
    enough, since duals go on from those of the step before.

    Arguments:
        patience, visible: by default an image is done when 20 steps take less than 0.01 % off its objective.
        inner: dual steps of the prior in every step.
        power_steps: of the first estimate of L.

    Reference: Beck & Teboulle, SIAM Journal on Imaging Sciences 2 (2009);
    O'Donoghue & Candès, Foundations of Computational Mathematics 15 (2015).
    """

    monotonic: ClassVar[bool] = True

    patience: int = 20
    visible: float = 1e-4
    inner: int = 6
    power_steps: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("Accelerated inner", self.inner)
        check_size("Accelerated power_steps", self.power_steps)

    def remember(self, problem: InversionProblem, state: InversionState) -> Extrapolation:
        smooth, gradient = problem.smooth_gradient(state.x)
        curvature = curvature_at(problem, state.x, self.power_steps)
        return Extrapolation(smooth, state.x, smooth, gradient, torch.ones_like(smooth), curvature)

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        memory, watch = state.memory, state.watch
        at, L = memory.at, memory.curvature
        x, duals, products = prior_step(problem, at - memory.gradient / along(L, at), 1 / L, state.duals, self.inner)
        smooth = problem.smooth_value(x)
        value = smooth + problem.weight * problem.free_split.value(x, products)
        steep = too_steep(memory.smooth_at, memory.gradient, x - at, smooth, L, watch)
        bound = block_bound((2 * along(L, at)) * (at - x), x, problem.guess) + problem.dual_gap(products, duals)
        # near the solution, where objectives differ by no more than an inexact proximal map explains, the bound decides
        room = rounding(watch, value) + torch.where(bound < state.bound, 1e-5 * value.abs(), 0.0)
        # rejected images keep x, with the better duals, and go on from there without momentum
        rejected = steep if problem.blind else steep | ~(value <= watch.value + room)
        if bool(rejected.any()):
            old = (state.x, state.products, memory.smooth, state.bound)
            x, products, smooth, bound = choose(rejected, old, (x, products, smooth, bound))
        t = next_momentum(memory.t)
        t = torch.where(rejected, 1.0, t)
        beta = torch.where(rejected, 0.0, (memory.t - 1) / t)
        at = torch.addcmul(x, torch.as_tensor(along(beta, x)), x - state.x)
        curvature = torch.where(steep, 2.0 * L, 0.97 * L)
        new = Extrapolation(smooth, at, *problem.smooth_gradient(at), t, curvature)
        return replace(state, x=x, duals=duals, products=products, memory=new, bound=bound)
