"""What docs/reproducibility.md promises: the same seed gives the same numbers, and how nearly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from determinism.run import METHODS, digest, numbers
from torchlift.functions.losses import SquaredError
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import Objective, TrainingProblem
from torchlift.prox import SoftThreshold
from torchlift.solvers import Constant, ProximalGradient, Stopping, solve
from torchlift.training import train

#: Largest difference relative to the largest number of each tensor: rounding, amplified by the steps of a short run.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-3}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max() / b[name].abs().max().clamp(min=1e-12)) for name in a)


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    """The digests of every method in this process, on one thread."""
    with threads(1):
        return {method: digest(numbers(method)) for method in METHODS}


def test_a_process_repeats_itself_bit_for_bit(here: dict[str, str]) -> None:
    torch.rand(7)  # what others draw from torch's own stream does not matter
    with threads(1):
        assert {method: digest(numbers(method)) for method in METHODS} == here


def test_another_process_has_the_same_bits(here: dict[str, str], repository: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(repository / "tests"), "PYTHONHASHSEED": "7"}
    script = repository / "tests" / "determinism" / "run.py"
    done = subprocess.run(
        [sys.executable, str(script), "1"], capture_output=True, text=True, check=True, timeout=100, env=environment
    )
    assert json.loads(done.stdout) == here


def test_another_seed_has_other_numbers(here: dict[str, str]) -> None:
    assert digest(numbers("sweep", seed=1)) != here["sweep"]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_threads_change_nothing_but_rounding(dtype: torch.dtype) -> None:
    """Products that are large enough to be shared; few steps, because threads of a busy machine wait for each other."""
    found = []
    for count in (1, 2):
        generator = torch.Generator().manual_seed(0)
        network = MLP([300, 200, 200, 100], SoftThreshold(0.05), generator=generator).to(dtype)
        y = torch.randn(400, 300, generator=generator, dtype=dtype)
        x = torch.randn(400, 100, generator=generator, dtype=dtype)
        with threads(count):
            train(network, (y, x), steps=3, batch_size=200, progress=False)
        found.append({name: parameter.detach() for name, parameter in network.named_parameters()})
    assert difference(*found) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_engines_change_nothing_but_rounding(dtype: torch.dtype) -> None:
    found = []
    for engine in ("stacked", "general"):
        generator = torch.Generator().manual_seed(0)
        network = MLP([12, 16, 16, 16, 4], SoftThreshold(0.05), generator=generator).to(dtype)
        y = torch.randn(30, 12, generator=generator, dtype=dtype)
        x = torch.randn(30, 4, generator=generator, dtype=dtype)
        objective = Objective(network, Bregman(1.0), SquaredError(), engine=engine)
        problem = TrainingProblem(objective, y, x)
        solution = solve(problem, ProximalGradient(Constant(1e-2)), problem.start(), stopping=Stopping(20, change=None))
        problem.publish(solution.point)
        found.append({name: parameter.detach() for name, parameter in network.named_parameters()})
    assert difference(*found) < TOLERANCE[dtype]
    assert all(tensor.dtype == dtype for tensor in found[0].values())
