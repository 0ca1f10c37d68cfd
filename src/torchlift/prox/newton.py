"""Safeguarded Newton iteration for increasing scalar equations, one per entry."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
