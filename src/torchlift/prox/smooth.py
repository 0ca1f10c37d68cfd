"""Shared base of smooth elementwise activations whose prox has no closed form, and Newton's iteration for it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from torchlift.prox.base import ProximalActivation, at_least_single, check_step

#: A generous cap: for steps between 1e-6 and 1e4 our equations need at most 25 iterations, usually five.
ITERATIONS = 40


def solve_increasing(
    function: Callable[[Tensor], tuple[Tensor, Tensor, Tensor]], start: Tensor, least_slope: float | Tensor
) -> Tensor:
    """The root t of each entry of an increasing function, to rounding.

    Solves g(t) = 0 where `function` maps t to g(t), g'(t) ≥ `least_slope` > 0,
    and the size of the terms that g adds up. An entry is done once |g| is no
    more than the rounding of those terms and of t itself. The slope bound puts the root
    between `start` and `start − g(start) / least_slope`; a Newton step that
    leaves the bracket, which shrinks with every evaluation, is replaced by
    bisection. The loop has a fixed bound and stops early once all entries are
    done; under `torch.compile` it runs to the bound.
    """
    eps = torch.finfo(start.dtype).eps
    t = start
    g, slope, size = function(t)
    low = t - g.clamp(min=0) / least_slope
    high = t - g.clamp(max=0) / least_slope
    for _ in range(ITERATIONS):
        # Written so that NaN counts as done, since it would never get better.
        moving = g.abs() > 2 * eps * (size + slope * t.abs())
        if not torch.compiler.is_compiling() and not bool(moving.any()):
            break
        newton = t - g / slope
        # Bisection by halves, since low + high may overflow.
        proposal = torch.where((newton >= low) & (newton <= high), newton, 0.5 * low + 0.5 * high)
        t = torch.where(moving, proposal, t)
        g, slope, size = function(t)
        low = torch.where(g <= 0, t, low)
        high = torch.where(g >= 0, t, high)
    return t


class SmoothActivation(ProximalActivation):
    """An elementwise σ with a continuous slope 0 ≤ σ' ≤ 1.

    Here Ψ'(u) = σ⁻¹(u) − u, so the optimality condition of prox_{sΨ}(u) reads,
    with p = σ(t),

        g(t) = σ(t) + s·(t − σ(t)) − u = 0,      min(1, s) ≤ g' ≤ max(1, s),

    one increasing equation per entry, solved by safeguarded Newton. One last
    Newton step is recorded by autograd, which by the implicit function theorem
    makes the prox differentiable once (not twice) in `u` and `step`.
    """

    @abstractmethod
    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """σ(t) and σ'(t), to full precision."""

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        wide = at_least_single(u)
        step = check_step(step, wide)
        if not isinstance(step, Tensor) and step == 1.0:
            return self(u)
        return self.linearise(self.preimage(wide, step))[0].to(u.dtype)

    def preimage(self, u: Tensor, step: float | Tensor) -> Tensor:
        """The t with σ(t) + step·(t − σ(t)) = u, so that prox(u, step) = σ(t)."""

        def equation(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            value, slope = self.linearise(t)
            size = u.abs() + value.abs() + step * (t.abs() + value.abs())
            return (value - u) + step * (t - value), slope + step * (1 - slope), size

        least_slope = step.clamp(max=1) if isinstance(step, Tensor) else min(1.0, step)
        with torch.no_grad():
            start = u + torch.zeros_like(step) if isinstance(step, Tensor) else u
            t = solve_increasing(equation, start, least_slope)
        residual, slope, _ = equation(t)
        # σ(±∞) is the end of the range whatever the step; the equation itself would give ∞ − ∞.
        return torch.where(u.isinf(), u, t - residual / slope)
