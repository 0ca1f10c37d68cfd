"""What every solver promises. A newcomer in `SOLVERS` and `EXAMPLES` inherits all of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from contracts.kept import assert_kept, named
from contracts.solver_cases import EXAMPLES
from torchlift.core.errors import TorchliftError
from torchlift.solvers import SOLVERS, BlockCoordinateDescent, Solver, solve, state_from_parts, state_to_parts
from torchlift.testing.report import Check
from torchlift.testing.solvers import CHECKS, makes_progress, run

CASES = {f"{name} {index}": example for name in EXAMPLES for index, example in enumerate(EXAMPLES[name]())}
every = pytest.mark.parametrize("case", CASES)


def test_every_solver_has_examples() -> None:
    assert EXAMPLES.keys() == SOLVERS.keys()
    for name, kind in SOLVERS.items():
        assert all(type(example.solver) is kind for example in EXAMPLES[name]())


@every
@named(tuple(check for check in CHECKS if check is not makes_progress))
def test_promises(check: Check, case: str) -> None:
    example = CASES[case]
    assert_kept(check, example.solver, example.problem, example.start)


@pytest.mark.parametrize("case", [case for case in CASES if "matched=False" not in repr(CASES[case])])
def test_it_makes_progress(case: str) -> None:
    """Adam with the plain prox step is left out: it has another fixed point, as its docstring says."""
    example = CASES[case]
    assert_kept(makes_progress, example.solver, example.problem, example.start)


@every
def test_states_go_through_files(case: str, tmp_path: Path) -> None:
    """Bit by bit, parts included; what is read back goes on the same way, as the promise of resuming says."""
    example = CASES[case]
    state = run(example.solver, example.problem, example.start, 4)
    tensors, numbers = state_to_parts(state)
    safetensors.torch.save_file({k: v.contiguous().clone() for k, v in tensors.items()}, tmp_path / "state.safetensors")
    (tmp_path / "state.json").write_text(json.dumps(numbers))
    template = example.solver.init(example.problem, example.start)
    found = safetensors.torch.load_file(tmp_path / "state.safetensors")
    loaded, read = state_to_parts(state_from_parts(template, found, json.loads((tmp_path / "state.json").read_text())))
    assert loaded.keys() == tensors.keys() and json.dumps(read) == json.dumps(numbers)
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


@every
def test_only_exact_solvers_have_no_step_sizes(case: str) -> None:
    example = CASES[case]
    state = run(example.solver, example.problem, example.start, 1)
    assert bool(state.step_sizes) is not isinstance(example.solver, BlockCoordinateDescent)


@pytest.mark.parametrize("name", SOLVERS)
def test_a_stranger_is_refused_at_the_door(name: str) -> None:
    solver: Solver = EXAMPLES[name]()[0].solver
    with pytest.raises(TorchliftError, match="expected a"):
        solve(object(), solver, torch.zeros(2))
