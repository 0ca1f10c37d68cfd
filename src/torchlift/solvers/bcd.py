"""Exact block-coordinate descent."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.core.problem import Problem
from torchlift.core.tensors import Point, norm, subtract
from torchlift.solvers.backtracking import Backtracking
from torchlift.solvers.base import NAN, Measure, Solver, State
from torchlift.solvers.drive import solve
from torchlift.solvers.momentum import Nesterov
from torchlift.solvers.proximal_gradient import ProximalGradient, check_problem, check_proximable
from torchlift.solvers.step_size import FromBound
from torchlift.solvers.stopping import Stopping


@dataclass(frozen=True)
class BlockCoordinateDescent(Solver[Problem, State]):
    """Minimises F over one block after the other, the others fixed.

        x_b ← argmin F(x_1, …, x_b, …, x_n)   for b = 1, …, n

    A block is minimised by the problem itself where it knows how (least
    squares, generalised linear models), otherwise by accelerated proximal
    gradient, with steps from the block's bound or by backtracking. Each block
    problem should be convex. F never increases: an inner solution that is not
    better than its start, to rounding, is dropped.

    Arguments:
        tolerance: of each inner problem: the factor by which the norm of its
            gradient mapping must shrink.
        inner_steps: at most so many inner steps per block.
        blocks: order of the blocks; the problem's own by default.

    Reference: Tseng, Journal of Optimization Theory and Applications 109 (2001).
    """

    exact: ClassVar[bool] = True

    tolerance: float = 1e-8
    inner_steps: int = 500
    blocks: tuple[str, ...] | None = field(default=None)

    def __post_init__(self) -> None:
        check_positive("BlockCoordinateDescent tolerance", self.tolerance)
        check_size("BlockCoordinateDescent inner_steps", self.inner_steps)

    def check(self, problem: Problem, point: Point) -> None:
        check_problem("BlockCoordinateDescent", problem, point)
        unknown = [block for block in self._order(problem) if block not in problem.blocks]
        if unknown:
            invalid_value("BlockCoordinateDescent blocks", f"some of {list(problem.blocks)}", unknown)
        for block in self._order(problem):
            check_proximable("BlockCoordinateDescent", problem, block)

    def init(self, problem: Problem, point: Point) -> State:
        return State(0, point, NAN)

    def step(self, problem: Problem, state: State) -> State:
        point, value = state.point, problem.value(state.point)
        for block in self._order(problem):
            new = problem.minimise(point, block, self.tolerance)
            if new is None:
                new = self._descend(problem, point, block)
            reached = problem.value(new)
            if reached <= value:
                point, value = new, reached
        return State(state.count + 1, point, norm(subtract(point, state.point)))

    def measure(self, problem: Problem, state: State) -> Measure:
        parts = dict(problem.parts(state.point))
        return Measure(sum(parts.values()), extra=parts)

    def _descend(self, problem: Problem, point: Point, block: str) -> Point:
        """Accelerated proximal gradient on one block."""
        inner = self._inner(problem, point, block)
        first = inner.step(problem, inner.init(problem, point))
        if not math.isfinite(first.residual) or first.residual == 0.0:
            return point
        stopping = Stopping(self.inner_steps, change=None, residual=self.tolerance * first.residual)
        return solve(problem, inner, state=first, stopping=stopping, record_every=0).point

    def _inner(self, problem: Problem, point: Point, block: str) -> ProximalGradient:
        bound = problem.bound(point, block)
        bounded = bound is not None and 0 < bound < math.inf
        # the bound of one block does not change while the others are fixed
        rule = FromBound(every=10**9) if bounded else Backtracking()
        return ProximalGradient(rule, Nesterov(), blocks=(block,))

    def _order(self, problem: Problem) -> tuple[str, ...]:
        return problem.blocks if self.blocks is None else self.blocks
