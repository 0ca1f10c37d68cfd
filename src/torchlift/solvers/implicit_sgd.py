"""Implicit stochastic gradient: a proximal point step on each mini-batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torchlift.core.checks import check_instance, check_positive, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.problem import Problem
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Factor, Point, add, dot, norm, subtract
from torchlift.solvers.base import NAN, Measure, Solver, State
from torchlift.solvers.bcd import BlockCoordinateDescent
from torchlift.solvers.drive import Stopping, solve
from torchlift.solvers.step_size import Constant, Schedule


class StochasticProblem(ABC):
    """A mean over samples, given batch by batch."""

    @property
    @abstractmethod
    def blocks(self) -> tuple[str, ...]:
        """The blocks that persist from batch to batch: the parameters."""

    @abstractmethod
    def batch(self, count: int, parameters: Point) -> tuple[Problem, Point]:
        """Batch number `count` as a problem, and where to start it: the parameters, and variables of its own.

        The same count gives the same batch, so that runs can be resumed.
        """

    def finish(self, count: int, problem: Problem, point: Point) -> None:  # noqa: B027 (most have nothing to keep)
        """Called with batch number `count` and the point where it was left, for those who keep some of it."""

    @abstractmethod
    def value(self, parameters: Point) -> float:
        """The objective to record, over all samples or some of them."""


class Anchored(Problem):
    """F + 1/(2τ) ‖θ − θ_k‖² over the blocks that the anchor holds."""

    def __init__(self, problem: Problem, anchor: Point, strength: float) -> None:
        self.problem, self.anchor, self.strength = problem, anchor, strength

    @property
    def blocks(self) -> tuple[str, ...]:
        return self.problem.blocks

    def smooth_value(self, point: Point) -> float:
        return self.problem.smooth_value(point) + self._distance(point)

    def nonsmooth_value(self, point: Point) -> float:
        return self.problem.nonsmooth_value(point)

    def value(self, point: Point) -> float:
        return self.problem.value(point) + self._distance(point)

    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        gradient = self.problem.gradient(point, blocks)
        held = [block for block in gradient if block in self.anchor]
        if not held:
            return gradient
        pull = subtract(point.select(held), self.anchor.select(held))
        return gradient.merge(add(gradient.select(held), pull, self.strength))

    def prox(self, point: Point, steps: Mapping[str, Factor]) -> Point:
        return self.problem.prox(point, steps)

    def bound(self, point: Point, block: str) -> float | None:
        bound = self.problem.bound(point, block)
        return bound if bound is None or block not in self.anchor else bound + self.strength

    def minimise(
        self, point: Point, block: str, tolerance: float, anchor: Point | None = None, strength: float = 0.0
    ) -> Point | None:
        return self.problem.minimise(point, block, tolerance, self.anchor, self.strength)

    def smooth(self, block: str) -> bool:
        return self.problem.smooth(block)

    def proximable(self, block: str) -> bool:
        return self.problem.proximable(block)

    def elementwise(self, block: str) -> bool:
        return self.problem.elementwise(block)

    def _distance(self, point: Point) -> float:
        moved = subtract(point.select(self.anchor.blocks), self.anchor)
        return 0.5 * self.strength * dot(moved, moved)


@dataclass(frozen=True)
class ImplicitState(State):
    """The parameters and the last τ."""

    tau: float

    @property
    def step_sizes(self) -> Mapping[str, float]:
        return dict.fromkeys(self.point, self.tau)


@dataclass(frozen=True)
class ImplicitStochasticGradient(Solver[StochasticProblem, ImplicitState]):
    """Solves, on batch after batch,

        (θ_{k+1}, z) = argmin_{θ, z} E_k(θ, z) + 1/(2τ_k) ‖θ − θ_k‖²

    by an inner solver; the current batch's z start as the problem says. Unlike explicit
    steps θ_k − τ∇E_k, these are stable for every τ > 0: τ_k → ∞ fits the
    batch, τ_k → 0 stays put.

    Arguments:
        tau: τ > 0, or a schedule such as Diminishing or Cosine.
        inner: how a batch is solved; exact block-coordinate descent by default.
        inner_steps: steps of it per batch.

    Reference: Toulis & Airoldi, Annals of Statistics 45 (2017).
    """

    solves: ClassVar[str] = "batches"

    tau: float | Schedule = 1.0
    inner: Solver[Any, Any] = field(default_factory=BlockCoordinateDescent)
    inner_steps: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.tau, Constant):
            invalid_type(
                "ImplicitStochasticGradient tau", "a number or a schedule", self.tau, "Give the number itself."
            )
        if not isinstance(self.tau, Schedule):
            check_positive("ImplicitStochasticGradient tau", self.tau)
        check_instance("ImplicitStochasticGradient inner", self.inner, Solver)
        check_size("ImplicitStochasticGradient inner_steps", self.inner_steps)

    def check(self, problem: StochasticProblem, point: Point) -> None:
        hint = "Solve a full-batch Problem with the inner solver itself."
        check_instance("ImplicitStochasticGradient", problem, StochasticProblem, hint=hint)
        if point.blocks != problem.blocks:
            invalid_value("ImplicitStochasticGradient start", f"the blocks {list(problem.blocks)}", list(point))
        batch, start = problem.batch(0, point)
        self.inner.check(Anchored(batch, point, 1.0 / self._size(0)), start)

    def init(self, problem: StochasticProblem, point: Point) -> ImplicitState:
        return ImplicitState(0, point, NAN, self._size(0))

    def step(self, problem: StochasticProblem, state: ImplicitState) -> ImplicitState:
        batch, start = problem.batch(state.count, state.point)
        tau = self._size(state.count)
        anchored = Anchored(batch, state.point, 1.0 / tau)
        stopping = Stopping(self.inner_steps, change=None)
        solution = solve(anchored, self.inner, start, stopping=stopping, record_every=0)
        if solution.result is Result.INTERRUPTED:
            raise KeyboardInterrupt
        if solution.failed:
            raise StepFailure(solution.result, f"batch {state.count}: {solution.message}")
        problem.finish(state.count, batch, solution.point)
        new = solution.point.select(state.point.blocks)
        return ImplicitState(state.count + 1, new, norm(subtract(new, state.point)) / tau, tau)

    def measure(self, problem: StochasticProblem, state: ImplicitState) -> Measure:
        return Measure(problem.value(state.point))

    def _size(self, count: int) -> float:
        return self.tau.size(count) if isinstance(self.tau, Schedule) else float(self.tau)
