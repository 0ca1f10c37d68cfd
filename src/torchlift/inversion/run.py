"""Runs an algorithm on one batch: the loop over steps, on ever fewer images."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from torchlift.core.solution import Record, Result
from torchlift.core.tensors import Point
from torchlift.core.trees import map_leaves
from torchlift.inversion.exact import Certified, Exact
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.result import Inversion
from torchlift.inversion.solver import InversionSolver, InversionState, Status, choose, select
from torchlift.solvers import PDHG, Stopping, solve
from torchlift.solvers.pdhg import PDHGState

Progress = Callable[[Record], "bool | None"]

#: Finished images are dropped from the work once they are this share of it.
DROP = 0.5

#: An image that did not converge goes back to its best input if that had an objective lower by this share.
ASTRAY = 1e-3

#: Steps between two looks at the duality gaps of an exact inversion.
CHECK_EVERY = 20

_BUDGETS = {
    Result.MAX_STEPS: Status.MAX_STEPS,
    Result.TIME_LIMIT: Status.TIME_LIMIT,
    Result.CONVERGED: Status.CONVERGED,
    Result.STOPPED: Status.STOPPED,
    Result.INTERRUPTED: Status.STOPPED,
}


@dataclass(frozen=True)
class Budget:
    """When to stop, whatever the tolerance says.

    Arguments:
        max_steps: steps per image; 0 after a request to stop.
        deadline: on the monotonic clock; None for never.
        progress: called with every record; stops everything by returning True.
    """

    max_steps: int
    deadline: float | None = None
    progress: Progress | None = None

    def spent(self) -> Status:
        """Why nothing can be done any more."""
        if self.max_steps == 0:
            return Status.STOPPED
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return Status.TIME_LIMIT if late else Status.MAX_STEPS

    def seconds(self) -> float | None:
        """Until the deadline."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def exhausted(self, done: int) -> bool:
        """Whether nothing is left after some steps."""
        return done >= self.max_steps or (self.deadline is not None and time.monotonic() >= self.deadline)


def run_steps(problem: InversionProblem, solver: InversionSolver, x: Tensor, budget: Budget) -> Inversion:
    """Invert one batch from the start x."""
    rounds = Rounds(problem, solver, x, budget)
    rounds.advance()
    return rounds.finish()


class Rounds:
    """Steps of the running images; whenever half of them are finished, of the others only.

    Arguments:
        problem: of all images.
        solver: how.
        x: where to begin.
        budget: when to stop.
        copies: how often every image is there, from several starts; records tell of the best of them.
        extra: what records are marked with.
    """

    def __init__(
        self,
        problem: InversionProblem,
        solver: InversionSolver,
        x: Tensor,
        budget: Budget,
        copies: int = 1,
        extra: Mapping[str, float] | None = None,
    ) -> None:
        self.problem, self.solver, self.budget, self.copies = problem, solver, budget, copies
        self.extra = extra or {}
        self.history: list[Record] = []
        self.begin = time.monotonic()
        self.stopped = False
        self.start = x
        self.state = solver.init(problem, Point({"x": x}))

    @torch.no_grad()
    def advance(self, until: int | None = None) -> None:
        """Go on until every image is finished, the budget is spent, or so many steps were made."""
        problem, state, index = self.problem, self.state, None
        until = self.budget.max_steps if until is None else until
        running = int(state.watch.running.sum())
        try:
            while running and state.count < until and not (self.stopped or self.budget.exhausted(state.count)):
                if running <= DROP * len(state.x):
                    self._put(state, index)
                    keep = state.watch.running.nonzero().flatten()
                    index = keep if index is None else index[keep]
                    problem, state = self.problem.select(index), select(state, keep)
                state = self.solver.step(problem, state)
                running = int(state.watch.running.sum())
                self._note(state, index, float(min(running, len(self.state.x) // self.copies)))
        except KeyboardInterrupt:
            self.stopped = True
        self._put(state, index)

    def keep(self, index: Tensor, copies: int) -> None:
        """Go on with some of the images only."""
        self.problem, self.state = self.problem.select(index), select(self.state, index)
        self.start, self.copies = self.start[index], copies

    def _put(self, state: InversionState, index: Tensor | None) -> None:
        """The state of some images into that of all."""
        if index is not None:
            merged = map_leaves(lambda _, a, b: a.index_copy(0, index, b), self.state, state)
            state = replace(merged, count=state.count)
        self.state = state

    def _note(self, state: InversionState, index: Tensor | None, running: float) -> None:
        values = state.watch.value
        if index is not None:
            values = self.state.watch.value.index_copy(0, index, values)
        value = float(values.view(self.copies, -1).amin(0).mean())
        seconds = time.monotonic() - self.begin
        record = Record(state.count, seconds, value, state.residual, math.nan, extra={"running": running, **self.extra})
        self.history.append(record)
        if self.budget.progress is not None and self.budget.progress(record):
            self.stopped = True

    def finish(self) -> Inversion:
        """What was found, and why nothing more was done."""
        problem, state, watch = self.problem, self.state, self.state.watch
        ended = Status.STOPPED if self.stopped else self.budget.spent()
        status = watch.status.masked_fill(watch.running, ended)
        # where an algorithm went wrong or astray, its best input counts, with the states that follow from it
        wrong = status == Status.DIVERGED if problem.blind else status != Status.CONVERGED
        back = wrong & (watch.best < (1 - ASTRAY) * watch.value)
        x, z, v = state.x, state.z, state.v
        if bool(back.any()):
            x = choose(back, watch.best_x, x)
            if self.solver.lifted:
                states, _, pre = problem.chain.states(watch.best_x, problem.context)
                z, v = choose(back, (states, pre), (z, v))
        return Inversion(
            x=x,
            residual=problem.residual(x),
            gaps=gaps(problem, x) if not self.solver.lifted else torch.stack(problem.gaps(z, v), 1),
            objective=torch.where(back, watch.best, watch.value),
            bound=watch.relative,
            start_residual=problem.residual(self.start),
            start_objective=watch.start,
            status=status,
            steps=watch.steps,
            monotone=watch.monotone,
            weight=problem.weight,
            history=tuple(self.history),
        )


def gaps(problem: InversionProblem, x: Tensor) -> Tensor:
    """B_r of every layer for the states that follow from x, 0 but for the last: (B, n); (B, 0) without layers."""
    if problem.layers is None:
        return x.new_zeros(len(x), 0)
    z, _, v = problem.layers.states(x, problem.context)
    return torch.stack(problem.gaps(z, v), 1)


@torch.no_grad()
def run_exact(problem: InversionProblem, exact: Exact, x: Tensor, budget: Budget) -> Inversion:
    exact.check(problem)
    certified = exact.saddle(problem)
    progress = budget.progress

    def callback(record: Record, state: PDHGState) -> bool:
        asked = progress is not None and bool(progress(record))
        return asked or bool((certified.gaps(state.point["x"][0], state.point["dual"]) <= exact.tolerance).all())

    x = x.clamp(-exact.bound, exact.bound)
    x = problem.split.prox(x, 0.0) if problem.constrained else x
    start = Point({"x": x})
    if budget.exhausted(0):
        return _certified(problem, exact, certified, PDHG().init(certified.problem, start), (), budget.spent(), x)
    stopping = Stopping(budget.max_steps, change=None, time_limit=budget.seconds(), divergence=1e30)
    found = solve(certified.problem, PDHG(), start, stopping=stopping, callback=callback, record_every=CHECK_EVERY)
    ended = _BUDGETS.get(found.result, Status.DIVERGED)
    return _certified(problem, exact, certified, found.state, found.history, ended, x)


def _certified(
    problem: InversionProblem,
    exact: Exact,
    certified: Certified,
    state: PDHGState,
    history: tuple[Record, ...],
    status: Status,
    start: Tensor,
) -> Inversion:
    (x,), duals = state.point["x"], state.point["dual"]
    duality_gap = certified.gaps(x, duals)
    ended = torch.full_like(duality_gap, status, dtype=torch.int64)
    ended = ended.masked_fill(duality_gap <= exact.tolerance, Status.CONVERGED)
    return Inversion(
        x=x,
        residual=problem.residual(x),
        gaps=gaps(problem, x),
        objective=certified.values(x),
        bound=duality_gap,
        start_residual=problem.residual(start),
        start_objective=certified.values(start),
        status=ended,
        steps=torch.full_like(ended, state.count),
        monotone=torch.full_like(ended, _decreasing(history), dtype=torch.bool),
        weight=problem.weight,
        duality_gap=duality_gap,
        history=history,
    )


def _decreasing(history: tuple[Record, ...]) -> bool:
    return all(after.value <= before.value for before, after in pairwise(history))
