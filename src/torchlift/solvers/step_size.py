"""Step-size rules as parts of proximal gradient."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchlift.core.checks import check_interval, check_positive, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.problem import Problem
from torchlift.core.tensors import Point
from torchlift.solvers.proposal import Proposal
from torchlift.solvers.scaling import NoScaling, Scaling


@dataclass(frozen=True)
class StepState:
    """The last step sizes, one per active block."""

    sizes: tuple[float, ...]


class StepRule(ABC):
    """Chooses α for each step, and thereby the new point."""

    def check(self, problem: Problem, blocks: Sequence[str], point: Point, scaling: Scaling) -> None:
        """Refuse a problem this rule cannot serve."""
        return

    @abstractmethod
    def init(self, problem: Problem, blocks: Sequence[str], point: Point) -> StepState:
        """The state before the first step."""

    @abstractmethod
    def take(self, proposal: Proposal, state: StepState, count: int) -> tuple[Point, StepState]:
        """The new point of step `count` (from 0)."""


class Schedule(StepRule):
    """A rule that depends on the number of the step only, the same for all blocks."""

    @abstractmethod
    def size(self, count: int) -> float:
        """α for step `count` (from 0)."""

    def init(self, problem: Problem, blocks: Sequence[str], point: Point) -> StepState:
        return StepState((self.size(0),) * len(blocks))

    def take(self, proposal: Proposal, state: StepState, count: int) -> tuple[Point, StepState]:
        state = StepState((self.size(count),) * len(proposal.blocks))
        return proposal.trial(state.sizes), state


@dataclass(frozen=True)
class Constant(StepRule):
    """α_k = α.

    Arguments:
        step: α > 0, or {block: α}.
    """

    step: float | Mapping[str, float]

    def __post_init__(self) -> None:
        named = self.step if isinstance(self.step, Mapping) else {"": self.step}
        for name, step in named.items():
            check_positive(f"Constant step{name and f' of {name!r}'}", step)

    def check(self, problem: Problem, blocks: Sequence[str], point: Point, scaling: Scaling) -> None:
        if isinstance(self.step, Mapping) and (absent := [name for name in blocks if name not in self.step]):
            invalid_value("Constant step", f"a step for each of {list(blocks)}", f"none for {absent}")

    def init(self, problem: Problem, blocks: Sequence[str], point: Point) -> StepState:
        step = self.step
        return StepState(tuple(float(step[name] if isinstance(step, Mapping) else step) for name in blocks))

    def take(self, proposal: Proposal, state: StepState, count: int) -> tuple[Point, StepState]:
        return proposal.trial(state.sizes), state


@dataclass(frozen=True)
class Diminishing(Schedule):
    """α_k = α₀ / (k + 1)^p: sums to infinity, for stochastic gradients.

    Arguments:
        start: α₀ > 0.
        power: p in (0, 1].
    """

    start: float
    power: float = 0.5

    def __post_init__(self) -> None:
        check_positive("Diminishing start", self.start)
        check_interval("Diminishing power", self.power, "(0, 1]", "Larger powers stop too early.")

    def size(self, count: int) -> float:
        return self.start / (count + 1) ** self.power


@dataclass(frozen=True)
class Cosine(Schedule):
    """α_k = end + ½(start − end)(1 + cos(πk/n)) for k ≤ n, then end.

    Arguments:
        start: α₀ > 0.
        steps: n.
        end: the last step size, 0 < end ≤ start.

    Reference: Loshchilov & Hutter, SGDR (2017), equation 5, without restarts.
    """

    start: float
    steps: int
    end: float

    def __post_init__(self) -> None:
        check_positive("Cosine start", self.start)
        check_size("Cosine steps", self.steps)
        if check_positive("Cosine end", self.end) > self.start:
            invalid_value("Cosine end", f"at most start = {self.start}", self.end)

    def size(self, count: int) -> float:
        share = min(count, self.steps) / self.steps
        return self.end + 0.5 * (self.start - self.end) * (1 + math.cos(math.pi * share))


@dataclass(frozen=True)
class FromBound(StepRule):
    """α_b = c / (n L_b) with L_b the problem's own bound for block b and n blocks moved at once.

    With c ≤ 1 the objective never increases if f is convex and the bounds hold
    along the step: n·diag(L_b) majorises a positive semidefinite Hessian with
    diagonal blocks bounded by L_b.

    Arguments:
        factor: c in (0, 2).
        every: ask for the bounds again every so many steps.
    """

    factor: float = 1.0
    every: int = 1

    def __post_init__(self) -> None:
        check_interval("FromBound factor", self.factor, "(0, 2)", "2/L is where gradient steps diverge.")
        check_size("FromBound every", self.every)

    def check(self, problem: Problem, blocks: Sequence[str], point: Point, scaling: Scaling) -> None:
        if not isinstance(scaling, NoScaling):
            hint = "Use Backtracking() with Diagonal or Matrix, Constant(step) with AdamScaling."
            invalid_value("FromBound", "no scaling, since bounds hold in the plain norm", type(scaling).__name__, hint)
        for name in blocks:
            bound = problem.bound(point, name)
            if bound is None or not 0 <= bound < math.inf:
                hint = "Use Backtracking(), or Constant(step)."
                invalid_value(f"FromBound on block {name!r}", "a finite Lipschitz constant", bound, hint)

    def init(self, problem: Problem, blocks: Sequence[str], point: Point) -> StepState:
        return StepState(self._sizes(problem, blocks, point))

    def take(self, proposal: Proposal, state: StepState, count: int) -> tuple[Point, StepState]:
        if count > 0 and count % self.every == 0:
            state = StepState(self._sizes(proposal.problem, proposal.blocks, proposal.at))
        return proposal.trial(state.sizes), state

    def _sizes(self, problem: Problem, blocks: Sequence[str], point: Point) -> tuple[float, ...]:
        bounds = (problem.bound(point, name) for name in blocks)
        # a bound of 0 means that f does not depend on the block: any step will do
        return tuple(self.factor / (len(blocks) * bound) if bound else 1.0 for bound in bounds)


def as_rule(step: StepRule | float) -> StepRule:
    """A number counts as a constant step."""
    if isinstance(step, StepRule):
        return step
    if isinstance(step, str):
        invalid_type("step", "a step rule or a number", step, "Try FromBound(), Backtracking() or 0.01.")
    return Constant(step)
