"""What every solver promises, and `check_solver`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import torch

from torchlift.core.checks import check_instance
from torchlift.core.solution import Result
from torchlift.core.tensors import Point, as_point
from torchlift.solvers import Solver, State, Stopping, solve, state_from_parts, state_to_parts
from torchlift.solvers.drive import Start
from torchlift.testing.compare import close, refuses, require
from torchlift.testing.report import Check, Report, report

BEFORE, AFTER = 4, 12
#: Steps after which the optimality residual must be a small part of the first one.
MANY = 1500


def check_solver(solver: Solver[Any, Any], problem: Any, start: Start) -> Report:
    """Whether a solver of one's own counts, records, resumes, leaves states alone and makes progress.

    Arguments:
        solver: an instance of a subclass of `Solver`.
        problem: a small one that it can solve in some hundred steps, such as those of `torchlift.solvers.examples`.
        start: where to begin; not the solution.

    Example:
        >>> import torchlift as tl
        >>> from torchlift.solvers.examples import lasso
        >>> tl.check_solver(tl.solvers.FISTA(), lasso(), torch.zeros(8, dtype=torch.float64)).ok
        True
    """
    hint = "Derive it from torchlift.solvers.Solver, and pass an instance."
    check_instance("check_solver", solver, Solver, "a solver", hint)
    case = (solver, problem, as_point(start))
    return report(str(solver), [(check, [case]) for check in CHECKS])


def run(solver: Solver[Any, Any], problem: Any, start: Point, steps: int, state: State | None = None) -> Any:
    """The state after so many steps."""
    return solve(problem, solver, start, stopping=Stopping(max_steps=steps, change=None), state=state).state


def same(what: str, state: Any, expected: Any) -> None:
    """Require two states to have the same bits."""
    tensors, numbers = state_to_parts(state)
    others, other_numbers = state_to_parts(expected)
    require(tensors.keys() == others.keys(), f"{what} has parts {sorted(tensors)}, not {sorted(others)}")
    for name, tensor in tensors.items():
        close(f"{what}: {name}", tensor, others[name], 0.0)
    texts = json.dumps(numbers), json.dumps(other_numbers)  # NaN equals NaN here
    require(texts[0] == texts[1], f"{what} has the numbers {texts[0]}, not {texts[1]}")


def resumes(solver: Solver[Any, Any], problem: Any, start: Point) -> None:
    """Resuming from a state that went through tensors and JSON gives the same iterates, bit by bit."""
    early = run(solver, problem, start, BEFORE)
    tensors, numbers = state_to_parts(early)
    copies = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    loaded = state_from_parts(solver.init(problem, start), copies, json.loads(json.dumps(numbers)))
    same("the state that was read back", loaded, early)
    resumed, whole = run(solver, problem, start, AFTER, loaded), run(solver, problem, start, BEFORE + AFTER)
    require(resumed.count == whole.count == BEFORE + AFTER, f"count is {resumed.count}, not {BEFORE + AFTER}")
    same("the resumed state", resumed, whole)
    moved = not torch.equal(early.point.tensors[0], whole.point.tensors[0])
    require(moved, f"nothing changed between step {BEFORE} and step {BEFORE + AFTER}")


def settings_are_frozen(solver: Solver[Any, Any], problem: Any, start: Point) -> None:
    """A solver is a frozen dataclass: its settings cannot change."""
    frozen = refuses(setattr, solver, "probe", None, error=dataclasses.FrozenInstanceError)
    if not frozen:
        delattr(solver, "probe")
    require(frozen, "it is not a frozen dataclass")


def states_are_left_alone(solver: Solver[Any, Any], problem: Any, start: Point) -> None:
    """A step makes a new state; the old one and the start stay as they are."""
    kept = [tensor.clone() for tensor in start.tensors]
    state = run(solver, problem, start, 3)
    tensors, numbers = state_to_parts(state)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    with torch.no_grad():
        solver.step(problem, state)
    after, after_numbers = state_to_parts(state)
    for name, tensor in before.items():
        close(f"the old state after a step: {name}", after[name], tensor, 0.0)
    require(json.dumps(after_numbers) == json.dumps(numbers), "the numbers of the old state changed")
    for tensor, expected in zip(start.tensors, kept, strict=True):
        close("the start", tensor, expected, 0.0)


def steps_are_recorded(solver: Solver[Any, Any], problem: Any, start: Point) -> None:
    """Steps are counted from 1 and recorded with residuals ≥ 0 and step sizes > 0."""
    solution = solve(problem, solver, start, stopping=Stopping(max_steps=5, change=None))
    require(solution.result is Result.MAX_STEPS, f"five steps ended with: {solution.message}")
    counts = [record.step for record in solution.history]
    require(counts == [1, 2, 3, 4, 5], f"steps are recorded as {counts}")
    for record in solution.history:
        require(record.residual >= 0 and record.seconds >= 0, f"residual is {record.residual}", step=record.step)
        require(all(size > 0 for size in record.step_sizes.values()), f"step sizes are {dict(record.step_sizes)}")
    require(set(start) <= set(solution.point), f"the blocks {sorted(start)} became {sorted(solution.point)}")


def makes_progress(solver: Solver[Any, Any], problem: Any, start: Point) -> None:
    """After many steps the optimality residual is less than 1 % of the first one."""
    stopping = Stopping(max_steps=MANY, change=1e-11)
    solution = solve(problem, solver, start, stopping=stopping, record_every=MANY)
    first = run(solver, problem, start, 1).residual
    require(not solution.failed, f"it failed: {solution.message}")
    residual = solution.state.residual
    require(residual < 1e-2 * first, f"the residual went from {first:.3g} to {residual:.3g}: {solution.message}")


def strangers_are_refused(solver: Solver[Any, Any], problem: Any, start: Point) -> None:
    """check refuses what is no problem for it, with an error of torchlift."""
    require(refuses(solve, object(), solver, start), "it began to solve a bare object()")


#: Called with a solver, a problem and a start.
CHECKS: tuple[Check, ...] = (
    resumes, settings_are_frozen, states_are_left_alone, steps_are_recorded, makes_progress, strangers_are_refused,
)  # fmt: skip
