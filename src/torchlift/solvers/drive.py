"""The loop of all solvers: stopping rule, records, result codes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from torchlift.core.checks import check_instance, check_number, check_positive, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.solution import Record, Result, Solution, StepFailure
from torchlift.core.tensors import Point, as_point, norm, subtract, tensor_norms
from torchlift.solvers.base import Solver, State


@dataclass(frozen=True)
class Stopping:
    """Budgets and tolerances; the first one that is met stops the solver.

    Arguments:
        max_steps: steps of one call of `solve`.
        change: stop when ‖x_k − x_{k−1}‖ ≤ change · max(‖x_k‖, √ε‖x_0‖) with ε the precision of
            the point. "auto" is √ε; None is never.
        residual: stop when the solver's optimality residual is at most this (absolute): the norm of
            the gradient mapping, or the larger of the primal and the dual residual.
        gap: stop when the relative duality gap is at most this. Looked at when a step is recorded.
        time_limit: seconds of one call.
        divergence: stop when ‖x_k‖ > divergence · (1 + ‖x_0‖).
    """

    max_steps: int = 1000
    change: float | Literal["auto"] | None = "auto"
    residual: float | None = None
    gap: float | None = None
    time_limit: float | None = None
    divergence: float = 1e10

    def __post_init__(self) -> None:
        check_size("Stopping max_steps", self.max_steps)
        if self.change not in ("auto", None):
            if isinstance(self.change, str):
                invalid_type("Stopping change", "a number, 'auto' or None", self.change)
            _check_relative("Stopping change", self.change)
        if self.gap is not None:
            _check_relative("Stopping gap", self.gap)
        if self.residual is not None:
            check_positive("Stopping residual", self.residual)
        if self.time_limit is not None:
            check_positive("Stopping time_limit", self.time_limit)
        if check_number("Stopping divergence", self.divergence) <= 1:
            invalid_value("Stopping divergence", "a number > 1", self.divergence)

    def change_for(self, dtype: torch.dtype) -> float | None:
        """The tolerance of relative change for points of a dtype; refuses what rounding makes impossible."""
        epsilon = torch.finfo(dtype).eps
        if self.change == "auto":
            return math.sqrt(epsilon)
        if self.change is not None and self.change < epsilon:
            hint = "Use double precision, or a larger tolerance."
            invalid_value("Stopping change", f"at least {epsilon:.2g}, the precision of {dtype}", self.change, hint)
        return self.change


def _check_relative(where: str, value: object) -> None:
    if not check_positive(where, value) < 1:
        invalid_value(where, "a relative tolerance < 1", value)


S = TypeVar("S", bound=State)
Start = Point | Mapping[str, Tensor | Sequence[Tensor]] | Tensor
Callback = Callable[[Record, Any], bool | None]


@torch.no_grad()
def solve(
    problem: Any,
    solver: Solver[Any, S],
    start: Start | None = None,
    *,
    stopping: Stopping | None = None,
    callback: Callback | None = None,
    record_every: int = 1,
    state: S | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Solution[S]:
    """Run a solver until a tolerance or a budget is met, or a step fails.

    Never raises for numerical trouble or Ctrl-C: the `Solution` carries a
    code, a sentence, and the last state that was good. Resuming from
    `solution.state` makes the same iterates as if it had never stopped.

    Arguments:
        problem: what to minimise.
        solver: how; refuses at once a problem it cannot handle.
        start: a point, {block: tensors}, or one tensor for the block "x".
        stopping: budgets and tolerances.
        callback: called with each record and the state; stops the solver by returning True.
        record_every: evaluate and record the objective every so many steps; 0 for never.
        state: go on from here instead of from a start.
        clock: a monotonic clock in seconds.
    """
    stopping = Stopping() if stopping is None else stopping
    check_instance("solve solver", solver, Solver, hint="Try ProximalGradient().")
    check_size("record_every", record_every, minimum=0)
    if stopping.gap is not None and record_every == 0:
        invalid_value("record_every", ">= 1 when a gap is asked for", 0, "The gap is evaluated when recording.")
    if state is None:
        if start is None:
            invalid_value("solve", "a start or a state", "neither")
        point = as_point(start)
        solver.check(problem, point)
        for name in point:
            if not all(bool(tensor.isfinite().all()) for tensor in point[name]):
                invalid_value(f"start block {name!r}", "finite values", "NaN or infinity")
        state = solver.init(problem, point)
    else:
        solver.check(problem, state.point)
    return _Run(problem, solver, stopping, callback, record_every, clock, state).run()


@dataclass
class _Run:
    """One call of `solve`."""

    problem: Any
    solver: Solver[Any, Any]
    stopping: Stopping
    callback: Callback | None
    record_every: int
    clock: Callable[[], float]
    state: Any

    def __post_init__(self) -> None:
        point = self.state.point
        self.change_tolerance = self.stopping.change_for(point.dtype)
        size = norm(point)
        self.limit = self.stopping.divergence * (1 + size)
        # where the solution is 0, what is left of the start says when it is reached
        self.floor = math.sqrt(torch.finfo(point.dtype).eps) * size
        self.history: list[Record] = []
        self.begin = self.clock()

    def run(self) -> Solution[Any]:
        try:
            return self._loop()
        except KeyboardInterrupt:
            return self._end(Result.INTERRUPTED, f"after step {self.state.count}")
        except StepFailure as failure:
            return self._end(failure.result, f"in step {self.state.count + 1}: {failure.detail}")

    def _loop(self) -> Solution[Any]:
        for made in range(1, self.stopping.max_steps + 1):
            new = self.solver.step(self.problem, self.state)
            self._check_point(new.point)
            old, self.state = self.state, new
            last = made == self.stopping.max_steps
            recorded = self.record_every > 0 and made % self.record_every == 0
            change = self._change(old, new) if recorded or last or self.change_tolerance is not None else math.nan
            record = self._record(change, old) if recorded else None
            result = self._verdict(new, change, record, last)
            if result is not None and record is None and self.record_every > 0:
                record = self._record(change, old)
            if record is not None and self.callback is not None and self.callback(record, new) and result is None:
                result = Result.STOPPED
            if result is not None:
                return self._end(result, f"after step {new.count}")
        raise AssertionError("unreachable: max_steps is at least 1")

    def _verdict(self, state: State, change: float, record: Record | None, last: bool) -> Result | None:
        stopping = self.stopping
        if self.change_tolerance is not None and change <= self.change_tolerance:
            return Result.CONVERGED
        if stopping.residual is not None and state.residual <= stopping.residual:
            return Result.CONVERGED
        if stopping.gap is not None and record is not None and record.gap is not None and record.gap <= stopping.gap:
            return Result.CONVERGED
        if stopping.time_limit is not None and self.clock() - self.begin >= stopping.time_limit:
            return Result.TIME_LIMIT
        return Result.MAX_STEPS if last else None

    def _change(self, old: State, new: State) -> float:
        moved = norm(subtract(new.point, old.point))
        size = max(norm(new.point), self.floor)
        return moved / size if size > 0 else math.inf if moved > 0 else 0.0

    def _record(self, change: float, old: State) -> Record:
        state = self.state
        measured = self.solver.measure(self.problem, state)
        if math.isnan(measured.value) or measured.value == -math.inf:
            self.state = old
            result = Result.NOT_FINITE if math.isnan(measured.value) else Result.DIVERGED
            raise StepFailure(result, f"the objective is {measured.value}, the point is still finite")
        seconds = self.clock() - self.begin
        gap, extra = measured.gap, measured.extra
        record = Record(
            state.count, seconds, measured.value, state.residual, change, gap, dict(state.step_sizes), dict(extra)
        )
        self.history.append(record)
        return record

    def _check_point(self, point: Point) -> None:
        """Raise where the point is not finite or too large; one wait for the device."""
        norms = tensor_norms(point)
        if math.hypot(*norms) <= self.limit:
            return
        block = _worst(point, norms)
        if not all(bool(tensor.isfinite().all()) for tensor in point[block]):
            raise StepFailure(Result.NOT_FINITE, f"block {block!r} is not finite")
        size = f"{math.hypot(*norms):.3g}, more than {self.limit:.3g}"
        raise StepFailure(Result.DIVERGED, f"block {block!r} grew most; the norm of the point is {size}")

    def _end(self, result: Result, detail: str) -> Solution[Any]:
        sentence = result.value.removesuffix(".")
        message = f"{type(self.solver).__name__}: {sentence}, {detail}."
        return Solution(self.state.point, self.state, result, message, tuple(self.history))


def _worst(point: Point, norms: list[float]) -> str:
    """The first block that is not finite, else the largest."""
    names = [name for name in point for _ in point[name]]
    ranked = [math.inf if math.isnan(value) else value for value in norms]
    bad = [
        name for name, value in zip(names, ranked, strict=True)
        if math.isinf(value) and not all(bool(tensor.isfinite().all()) for tensor in point[name])
    ]  # fmt: skip
    return bad[0] if bad else names[ranked.index(max(ranked))]
