"""Block-coordinate descent: exact, and by a few proximal gradient steps per block."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias

from torchlift.core.checks import check_choice, check_instance, check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.core.problem import Problem
from torchlift.core.tensors import Point, norm, subtract
from torchlift.solvers.base import NAN, Measure, Solver, State
from torchlift.solvers.drive import Stopping, solve
from torchlift.solvers.momentum import Nesterov
from torchlift.solvers.proximal_gradient import ProximalGradient, ProximalGradientState, check_problem, check_proximable
from torchlift.solvers.step_size import Backtracking, FromBound


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


Sweep: TypeAlias = Literal["forward", "backward", "odd-even", "jacobi"]
SWEEPS = ("forward", "backward", "odd-even", "jacobi")


@dataclass(frozen=True)
class LinearisedState(State):
    """The point, and each block's own momentum, scaling and step size."""

    inner: tuple[ProximalGradientState, ...]

    @property
    def step_sizes(self) -> Mapping[str, float]:
        return {name: size for state in self.inner for name, size in state.step_sizes.items()}


@dataclass(frozen=True)
class LinearisedBCD(Solver[Problem, LinearisedState]):
    """Takes proximal gradient steps in one block after the other.

        x_b ← prox_{α_b g_b}(x_b − α_b ∇_b f(x))   for the blocks b in the order of the sweep

    With steps α_b ≤ 1/L_b from the blocks' own bounds, or by `Backtracking`, F never
    increases in the sequential sweeps; "jacobi" needs the bounds of all blocks moved together.

    Arguments:
        parts: the step of every block, or {block: step}, where a name such as
            "states" also serves "states 1", "states odd", …
        sweep: "forward" (in order), "backward" (the first block, then the rest
            from the last), "odd-even" (the first block, then every other one,
            then the rest), or "jacobi" (all at the same point).
        steps: steps per block and sweep.

    Reference: Bolte, Sabach & Teboulle, Mathematical Programming 146 (2014), PALM.
    """

    parts: ProximalGradient | Mapping[str, ProximalGradient] = field(default_factory=ProximalGradient)
    sweep: Sweep = "forward"
    steps: int = 1

    def __post_init__(self) -> None:
        check_choice("LinearisedBCD sweep", self.sweep, SWEEPS)
        check_size("LinearisedBCD steps", self.steps)
        named = self.parts if isinstance(self.parts, Mapping) else {"": self.parts}
        for name, part in named.items():
            check_instance(f"LinearisedBCD part {name!r}", part, ProximalGradient)

    def check(self, problem: Problem, point: Point) -> None:
        check_problem("LinearisedBCD", problem, point)
        for block in problem.blocks:
            self._part(block).check(problem, point)

    def init(self, problem: Problem, point: Point) -> LinearisedState:
        inner = tuple(self._part(block).init(problem, point) for block in problem.blocks)
        return LinearisedState(0, point, NAN, inner)

    def step(self, problem: Problem, state: LinearisedState) -> LinearisedState:
        point = state.point
        inner = dict(zip(problem.blocks, state.inner, strict=True))
        for group in self._groups(problem):
            moved = point
            for block in group:
                inner[block] = self._advance(problem, block, inner[block], point)
                moved = moved.merge(inner[block].point.select((block,)))
            point = moved
        residual = math.hypot(*(block.residual for block in inner.values()))
        return LinearisedState(state.count + 1, point, residual, tuple(inner[block] for block in problem.blocks))

    def measure(self, problem: Problem, state: LinearisedState) -> Measure:
        parts = dict(problem.parts(state.point))
        return Measure(sum(parts.values()), extra=parts)

    def _advance(
        self, problem: Problem, block: str, state: ProximalGradientState, point: Point
    ) -> ProximalGradientState:
        """The state of one block after its proximal gradient steps from the common point."""
        part = self._part(block)
        state = replace(state, point=point)
        for _ in range(self.steps):
            state = part.step(problem, state)
        return state

    def _part(self, block: str) -> ProximalGradient:
        """The step of a block: by its name, by the first word of it, or the one for all."""
        if not isinstance(self.parts, Mapping):
            return replace(self.parts, blocks=(block,))
        for name in (block, block.split()[0]):
            if name in self.parts:
                return replace(self.parts[name], blocks=(block,))
        invalid_value("LinearisedBCD parts", f"a step for block {block!r}", f"steps for {sorted(self.parts)}")

    def _groups(self, problem: Problem) -> list[tuple[str, ...]]:
        """Blocks that move from the same point, in order."""
        first, rest = problem.blocks[:1], problem.blocks[1:]
        if self.sweep == "jacobi":
            return [problem.blocks]
        if self.sweep == "odd-even":
            return [group for group in (first, rest[::2], rest[1::2]) if group]
        order = (*first, *reversed(rest)) if self.sweep == "backward" else problem.blocks
        return [(block,) for block in order]
