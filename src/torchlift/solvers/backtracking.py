"""Backtracking line search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchlift.core.checks import check_interval, check_number, check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.core.problem import Problem
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point
from torchlift.solvers.proposal import Proposal
from torchlift.solvers.scaling import Scaling
from torchlift.solvers.step_size import StepRule, StepState


@dataclass(frozen=True)
class Backtracking(StepRule):
    """The largest α among α₀, sα₀, s²α₀, … with sufficient decrease.

        f(x⁺) ≤ f(y) + ⟨∇f(y), x⁺ − y⟩ + ‖x⁺ − y‖² / 2α

    Holds whenever α ≤ 1/L, so no bound is needed. The first step also tries
    larger sizes, so that any start will do, and each later step first tries the
    last size times `growth`, so that α recovers where the function flattens. All
    blocks share one α.

    Arguments:
        start: α₀ > 0.
        shrink: s in (0, 1).
        growth: at least 1; 1 gives steps that never grow.
        trials: give up after so many.

    Reference: Beck & Teboulle, SIAM Journal on Imaging Sciences 2 (2009), FISTA
    with backtracking; the growth as in Scheinberg, Goldfarb & Bai, Foundations of
    Computational Mathematics 14 (2014).
    """

    start: float = 1.0
    shrink: float = 0.5
    growth: float = 1.3
    trials: int = 100

    def __post_init__(self) -> None:
        check_positive("Backtracking start", self.start)
        check_interval("Backtracking shrink", self.shrink, "(0, 1)")
        check_number("Backtracking growth", self.growth, minimum=1)
        check_size("Backtracking trials", self.trials)

    def check(self, problem: Problem, blocks: Sequence[str], point: Point, scaling: Scaling) -> None:
        if not scaling.descent:
            name = type(scaling).__name__
            hint = "Use Constant(step), Cosine(...) or Diminishing(...)."
            invalid_value("Backtracking", "a scaling whose direction decreases f", name, hint)

    def init(self, problem: Problem, blocks: Sequence[str], point: Point) -> StepState:
        return StepState((self.start / self.growth,) * len(blocks))

    def take(self, proposal: Proposal, state: StepState, count: int) -> tuple[Point, StepState]:
        size = state.sizes[0] * self.growth
        for _ in range(self.trials):
            new = self._accepted(proposal, size)
            if new is not None:
                return self._enlarged(proposal, size, new) if count == 0 else self._state(proposal, size, new)
            proposal.check_finite()
            size *= self.shrink
        detail = f"{self.trials} trials down to a step of {size / self.shrink:.2g}; is the gradient that of the value?"
        raise StepFailure(Result.LINE_SEARCH_FAILED, detail)

    def _accepted(self, proposal: Proposal, size: float) -> Point | None:
        new = proposal.trial((size,) * len(proposal.blocks))
        return new if proposal.decreases_enough(new, size) else None

    def _enlarged(self, proposal: Proposal, size: float, new: Point) -> tuple[Point, StepState]:
        """The largest step size that is accepted and lowers f + g further; tried in the first step only."""
        value = proposal.value(new)
        for _ in range(self.trials):
            larger = self._accepted(proposal, size / self.shrink)
            if larger is None or not proposal.value(larger) < value:
                break
            size, new, value = size / self.shrink, larger, proposal.value(larger)
        return self._state(proposal, size, new)

    def _state(self, proposal: Proposal, size: float, new: Point) -> tuple[Point, StepState]:
        return new, StepState((size,) * len(proposal.blocks))
