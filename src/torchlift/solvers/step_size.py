"""Step-size rules as parts of proximal gradient, backtracking among them, and the steps that they judge."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from torchlift.core.checks import check_interval, check_number, check_positive, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.problem import Problem
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Factor, Point, add_scaled, block_norms, dot, subtract
from torchlift.solvers.scaling import NoScaling, Scaling, ScalingState


@dataclass(frozen=True, eq=False)
class Proposal:
    """x(α) = prox_{αg}(base − αd), with d the scaled gradient of f at `at`.

    Arguments:
        at: the whole point where the gradient was taken.
        base: the active blocks where the step starts.
        gradient: ∇f(at) for the active blocks.
        direction: d.
    """

    problem: Problem
    at: Point
    base: Point
    gradient: Point
    direction: Point
    scaling: Scaling
    scaling_state: ScalingState

    @property
    def blocks(self) -> tuple[str, ...]:
        return self.base.blocks

    def trial(self, sizes: Sequence[float]) -> Point:
        """x(α) for one size per active block."""
        steps = dict(zip(self.blocks, sizes, strict=True))
        moved = add_scaled(self.base, self.direction, {name: -step for name, step in steps.items()})
        if not self._nonsmooth:
            return moved
        return moved.merge(self.problem.prox(moved.select(self._nonsmooth), self._prox_steps(steps)))

    def residual(self, new: Point, sizes: Sequence[float]) -> float:
        """Norm of the gradient mapping, √Σ_b ‖x_b(α) − at_b‖²/α_b²."""
        norms = block_norms(subtract(new, self.at.select(self.blocks)))
        return math.hypot(*(norms[name] / size for name, size in zip(self.blocks, sizes, strict=True)))

    def decreases_enough(self, new: Point, size: float) -> bool:
        """f(x⁺) ≤ f(y) + ⟨∇f(y), x⁺ − y⟩ + ‖x⁺ − y‖²_P / 2α, without being fooled by rounding.

        Where the quadratic term drowns in the rounding of f, the equivalent
        ⟨∇f(x⁺) − ∇f(y), x⁺ − y⟩ ≤ ‖x⁺ − y‖²_P / α (the same for quadratics) decides.
        """
        moved = subtract(new, self.at.select(self.blocks))
        room = self.scaling.square(moved) / (2 * size)
        there = self.at.merge(new)
        if room > 1e5 * self._epsilon * abs(self._value):
            return self.problem.smooth_value(there) <= self._value + dot(self.gradient, moved) + room
        turned = subtract(self.problem.gradient(there, self.blocks), self.gradient)
        return dot(turned, moved) <= 2 * room

    def value(self, new: Point) -> float:
        """f + g at a trial."""
        return self.problem.value(self.at.merge(new))

    def check_finite(self) -> None:
        """Raise if the gradient or the value is not finite: then the problem fails, not the line search."""
        for name in self.blocks:
            if not all(bool(tensor.isfinite().all()) for tensor in self.gradient[name]):
                raise StepFailure(Result.NOT_FINITE, f"the gradient in block {name!r} is not finite")
        if not math.isfinite(self._value):
            raise StepFailure(Result.NOT_FINITE, f"the smooth part of the objective is {self._value}")

    @cached_property
    def _value(self) -> float:
        return self.problem.smooth_value(self.at)

    @cached_property
    def _nonsmooth(self) -> tuple[str, ...]:
        return tuple(name for name in self.blocks if not self.problem.smooth(name))

    @property
    def _epsilon(self) -> float:
        return torch.finfo(self.at.dtype).eps

    def _prox_steps(self, steps: dict[str, float]) -> dict[str, Factor]:
        metric, scale = self.scaling.metric(self.scaling_state), self.scaling.prox_scale
        if metric is None:
            return {name: scale * steps[name] for name in self._nonsmooth}
        return {name: tuple(scale * steps[name] * tensor for tensor in metric[name]) for name in self._nonsmooth}


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
