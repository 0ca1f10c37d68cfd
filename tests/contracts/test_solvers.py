"""What every solver promises. A newcomer in `SOLVERS` and `EXAMPLES` inherits all of it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from torchlift.core.errors import TorchliftError
from torchlift.core.solution import Result
from torchlift.solvers import (
    SOLVERS,
    BlockCoordinateDescent,
    Solver,
    State,
    Stopping,
    solve,
    state_from_parts,
    state_to_parts,
)
from torchlift.solvers.examples import EXAMPLES, Example

CASES = {f"{name} {index}": example for name in EXAMPLES for index, example in enumerate(EXAMPLES[name]())}
every = pytest.mark.parametrize("case", CASES)
BEFORE, AFTER = 4, 12


def run(example: Example, steps: int, state: State | None = None) -> State:
    stopping = Stopping(max_steps=steps, change=None)
    return solve(example.problem, example.solver, example.start, stopping=stopping, state=state).state


def same(a: object, b: object) -> None:
    tensors, numbers = state_to_parts(a)
    others, other_numbers = state_to_parts(b)
    assert tensors.keys() == others.keys()
    assert all(torch.equal(tensors[name], others[name]) for name in tensors)
    assert json.dumps(numbers) == json.dumps(other_numbers)  # NaN equals NaN here


def test_every_solver_has_examples() -> None:
    assert EXAMPLES.keys() == SOLVERS.keys()
    for name, kind in SOLVERS.items():
        assert all(type(example.solver) is kind for example in EXAMPLES[name]())


@every
def test_resuming_gives_identical_iterates(case: str, tmp_path: Path) -> None:
    """Through files of tensors and JSON, bit by bit, parts included."""
    example = CASES[case]
    tensors, numbers = state_to_parts(run(example, BEFORE))
    safetensors.torch.save_file({k: v.contiguous().clone() for k, v in tensors.items()}, tmp_path / "state.safetensors")
    (tmp_path / "state.json").write_text(json.dumps(numbers))
    template = example.solver.init(example.problem, example.start)
    loaded = state_from_parts(
        template,
        safetensors.torch.load_file(tmp_path / "state.safetensors"),
        json.loads((tmp_path / "state.json").read_text()),
    )
    same(loaded, run(example, BEFORE))
    resumed, whole = run(example, AFTER, loaded), run(example, BEFORE + AFTER)
    assert resumed.count == whole.count == BEFORE + AFTER
    same(resumed, whole)
    assert not torch.equal(run(example, BEFORE).point.tensors[0], whole.point.tensors[0])


@every
def test_settings_are_frozen_and_states_are_left_alone(case: str) -> None:
    example = CASES[case]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(example.solver, dataclasses.fields(example.solver)[0].name, None)  # type: ignore[arg-type]
    state = run(example, 3)
    tensors, numbers = state_to_parts(state)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    start = [tensor.clone() for tensor in example.start.tensors]
    example.solver.step(example.problem, state)
    run(example, 3)
    assert all(torch.equal(before[name], tensor) for name, tensor in state_to_parts(state)[0].items())
    assert json.dumps(state_to_parts(state)[1]) == json.dumps(numbers)
    assert all(torch.equal(a, b) for a, b in zip(start, example.start.tensors, strict=True))


@every
def test_steps_are_counted_and_recorded(case: str) -> None:
    example = CASES[case]
    stopping = Stopping(max_steps=5, change=None)
    solution = solve(example.problem, example.solver, example.start, stopping=stopping)
    assert solution.result is Result.MAX_STEPS
    assert [record.step for record in solution.history] == [1, 2, 3, 4, 5]
    for record in solution.history:
        assert record.residual >= 0 and record.seconds >= 0
        exact = isinstance(example.solver, BlockCoordinateDescent)  # minimises, and so has no step size
        assert bool(record.step_sizes) is not exact
        assert all(size > 0 for size in record.step_sizes.values())
    assert set(example.start) <= set(solution.point)


@pytest.mark.parametrize("case", [case for case in CASES if "matched=False" not in repr(CASES[case])])
def test_it_makes_progress(case: str) -> None:
    """After many steps the optimality residual is a small part of the first one.

    Adam with the plain prox step is left out: it has another fixed point, as its docstring says.
    """
    example = CASES[case]
    stopping = Stopping(max_steps=1500, change=1e-11)
    solution = solve(example.problem, example.solver, example.start, stopping=stopping, record_every=1500)
    first = solve(example.problem, example.solver, example.start, stopping=Stopping(1, change=None)).state.residual
    assert not solution.failed
    assert solution.state.residual < 1e-2 * first


@pytest.mark.parametrize("name", SOLVERS)
def test_a_stranger_is_refused_at_the_door(name: str) -> None:
    solver: Solver = EXAMPLES[name]()[0].solver
    with pytest.raises(TorchliftError, match="expected a"):
        solve(object(), solver, torch.zeros(2))
