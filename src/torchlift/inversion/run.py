"""Runs an algorithm on one batch: rounds of the shared driver on ever fewer images."""

from __future__ import annotations

import time
from collections.abc import Callable
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
from torchlift.inversion.solver import InversionSolver
from torchlift.inversion.state import InversionState, Status, choose, select
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

    def spent(self) -> Result:
        """Why nothing can be done any more."""
        if self.max_steps == 0:
            return Result.STOPPED
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return Result.TIME_LIMIT if late else Result.MAX_STEPS

    def stopping(self, done: int) -> Stopping | None:
        """What is left after some steps; None if nothing is."""
        seconds = None if self.deadline is None else self.deadline - time.monotonic()
        if done >= self.max_steps or (seconds is not None and seconds <= 0):
            return None
        # the solver's residual is 0 once every image is finished, and only then
        return Stopping(self.max_steps - done, change=None, residual=1e-300, time_limit=seconds, divergence=1e30)


def run_steps(problem: InversionProblem, solver: InversionSolver, x: Tensor, budget: Budget) -> Inversion:
    """Invert one batch from the start x."""
    return _Rounds(problem, solver, budget).run(x)


class _Rounds:
    """Drives the running images; whenever half of them are finished, goes on with the others only."""

    def __init__(self, problem: InversionProblem, solver: InversionSolver, budget: Budget) -> None:
        self.problem, self.solver, self.budget = problem, solver, budget
        self.history: list[Record] = []
        self.begin = time.monotonic()
        self.stopped = False

    @torch.no_grad()
    def run(self, x: Tensor) -> Inversion:
        problem, state = self.problem, self.solver.init(self.problem, Point({"x": x}))
        self.start = x
        whole, index = state, torch.arange(problem.batch, device=x.device)
        result = self.budget.spent()
        while len(index) and (stopping := self.budget.stopping(state.count)) is not None:
            rest = whole.watch.value.sum() - whole.watch.value[index].sum()
            callback = self._callback(float(rest), len(index))
            solution = solve(problem, self.solver, state=state, stopping=stopping, callback=callback)
            state, result = solution.state, solution.result
            whole = map_leaves(lambda _, a, b, where=index: a.index_copy(0, where, b), whole, state)
            if result is not Result.STOPPED or self.stopped:
                break
            keep = state.watch.running.nonzero().flatten()
            problem, state, index = problem.select(keep), select(state, keep), index[keep]
        return self._finish(replace(whole, count=state.count), result)

    def _callback(self, rest: float, count: int) -> Callable[[Record, InversionState], bool]:
        def callback(record: Record, state: InversionState) -> bool:
            value = (rest + record.value * count) / self.problem.batch
            record = replace(record, value=value, seconds=time.monotonic() - self.begin)
            self.history.append(record)
            if self.budget.progress is not None and self.budget.progress(record):
                self.stopped = True
            running = record.extra["running"]
            return self.stopped or 0 < running <= DROP * count

        return callback

    def _finish(self, state: InversionState, result: Result) -> Inversion:
        problem, watch = self.problem, state.watch
        status = watch.status.masked_fill(watch.running, _BUDGETS.get(result, Status.DIVERGED))
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
    left = budget.stopping(0)
    progress = budget.progress

    def callback(record: Record, state: PDHGState) -> bool:
        asked = progress is not None and bool(progress(record))
        return asked or bool((certified.gaps(state.point["x"][0], state.point["dual"]) <= exact.tolerance).all())

    x = x.clamp(-exact.bound, exact.bound)
    x = problem.split.prox(x, 0.0) if problem.constrained else x
    start = Point({"x": x})
    if left is None:
        return _certified(problem, exact, certified, PDHG().init(certified.problem, start), (), budget.spent(), x)
    found = solve(
        certified.problem,
        PDHG(),
        start,
        stopping=replace(left, residual=None),
        callback=callback,
        record_every=CHECK_EVERY,
    )
    return _certified(problem, exact, certified, found.state, found.history, found.result, x)


def _certified(
    problem: InversionProblem,
    exact: Exact,
    certified: Certified,
    state: PDHGState,
    history: tuple[Record, ...],
    result: Result,
    start: Tensor,
) -> Inversion:
    (x,), duals = state.point["x"], state.point["dual"]
    duality_gap = certified.gaps(x, duals)
    ended = torch.full_like(duality_gap, _BUDGETS.get(result, Status.DIVERGED), dtype=torch.int64)
    status = ended.masked_fill(duality_gap <= exact.tolerance, Status.CONVERGED)
    return Inversion(
        x=x,
        residual=problem.residual(x),
        gaps=gaps(problem, x),
        objective=certified.values(x),
        bound=duality_gap,
        start_residual=problem.residual(start),
        start_objective=certified.values(start),
        status=status,
        steps=torch.full_like(status, state.count),
        monotone=torch.full_like(status, _decreasing(history), dtype=torch.bool),
        weight=problem.weight,
        duality_gap=duality_gap,
        history=history,
    )


def _decreasing(history: tuple[Record, ...]) -> bool:
    return all(after.value <= before.value for before, after in pairwise(history))
