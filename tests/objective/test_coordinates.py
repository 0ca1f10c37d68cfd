"""Layers that learn a threshold or an interval: z moves along, and every method trains them."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift import liftings, networks, operators, prox
from torchlift.core.tensors import Point, add, dot
from torchlift.objective import Objective, TrainingProblem
from torchlift.solvers import (
    Backtracking,
    BlockCoordinateDescent,
    LinearisedBCD,
    ProximalAdam,
    ProximalGradient,
    Stopping,
    solve,
)

SIZE = 6


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _differences(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.eye(SIZE, dtype=dtype)[1:] - torch.eye(SIZE, dtype=dtype)[:-1]


def primal_dual() -> networks.Network:
    return networks.PrimalDual(operators.Identity((SIZE,)), _differences(), 2)


def lista() -> networks.Network:
    return networks.LISTA(operators.Dense(_randn(3, SIZE, SIZE) / 3), torch.eye(SIZE, dtype=torch.float64), 2)


def one_sided() -> networks.Network:
    """An interval with one learned end."""
    activation = prox.Box(0.0, nn.Parameter(torch.tensor(0.4, dtype=torch.float64)))
    return networks.MLP([SIZE, 5, SIZE], activation, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


NETWORKS = [primal_dual, lista, one_sided]


def _problem(make: Callable[[], networks.Network], lifting: liftings.Lifting, **options: Any) -> TrainingProblem:
    x = _randn(1, 8, SIZE).cumsum(1).sigmoid()
    return TrainingProblem(
        Objective(make(), lifting, coupling=options.pop("coupling", None)), x + 0.1 * _randn(2, 8, SIZE), x, **options
    )


def _moved(point: Point, seed: int, size: float) -> Point:
    return point.like(t + size * _randn(seed + i, *t.shape) for i, t in enumerate(point.tensors))


@pytest.mark.parametrize("coupling", [None, 0.7])
@pytest.mark.parametrize("make", NETWORKS)
def test_gradients_are_those_of_the_smooth_part(make: Callable[[], networks.Network], coupling: float | None) -> None:
    """Also where thresholds differ from those of the start, by central differences; g does not depend on θ."""
    problem = _problem(make, liftings.Bregman(0.7), coupling=coupling)
    start = problem.start()
    parameters = _moved(start.select(("parameters",)), 10, 0.2)
    point = start.merge(parameters)
    assert problem.nonsmooth_value(point) == pytest.approx(problem.nonsmooth_value(start), rel=1e-12)
    direction, h = _moved(point, 50, 1.0), 1e-6
    sides = [problem.smooth_value(add(point, direction, sign * h)) for sign in (1, -1)]
    assert (sides[0] - sides[1]) / (2 * h) == pytest.approx(dot(problem.gradient(point), direction), rel=1e-6)


@pytest.mark.parametrize("make", NETWORKS)
def test_points_and_states_translate(make: Callable[[], networks.Network]) -> None:
    problem = _problem(make, liftings.Bregman(0.7))
    start = problem.start("random", torch.Generator().manual_seed(1))
    other = start.merge(_moved(start.select(("parameters",)), 10, 0.3))
    z = problem.states(problem.prox(other, dict.fromkeys(problem.blocks, 0.5)))
    for layer, activation in zip(z, problem.objective.network.operators().activations, strict=True):
        assert bool(activation.psi(layer).isfinite().all()), "inside the interval of the moved parameters"
    back = problem.point(other["parameters"], z)
    for ours, theirs in zip(problem.states(back), z, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("lifting", [liftings.Bregman(), liftings.Fenchel()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("make", NETWORKS)
def test_block_coordinate_descent_moves_the_parameters(
    make: Callable[[], networks.Network], lifting: liftings.Lifting
) -> None:
    problem = _problem(make, lifting, split="odd-even")
    start = problem.start()
    solution = solve(problem, BlockCoordinateDescent(inner_steps=20), start, stopping=Stopping(2, change=None))
    assert all(
        bool((new != old).any()) for new, old in zip(solution.point["parameters"], start["parameters"], strict=True)
    )
    values = [problem.value(start), *(record.value for record in solution.history)]
    assert all(after <= before for before, after in pairwise(values))
    assert values[-1] < 0.7 * values[0]


@pytest.mark.parametrize("lifting", [liftings.Bregman(), liftings.Fenchel()], ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("make", NETWORKS)
def test_linearised_steps_never_increase(make: Callable[[], networks.Network], lifting: liftings.Lifting) -> None:
    problem = _problem(make, lifting)
    start = problem.start()
    solution = solve(
        problem, LinearisedBCD(ProximalGradient(Backtracking())), start, stopping=Stopping(20, change=None)
    )
    values = [problem.value(start), *(record.value for record in solution.history)]
    assert len(values) == 21
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(values))


def _data() -> tuple[Tensor, Tensor]:
    x = _randn(1, 20, SIZE).cumsum(1).sigmoid().float()
    return x + 0.1 * _randn(2, 20, SIZE).float(), x


@pytest.mark.parametrize("batch_size", ["full", 10])
def test_train_by_exact_descent(batch_size: Any) -> None:
    network = networks.PrimalDual(operators.Identity((SIZE,)), _differences(torch.float32), 2)
    before = [p.detach().clone() for p in network.parameters()]
    solver = BlockCoordinateDescent(inner_steps=4)
    result = tl.train(network, _data(), solver=solver, batch_size=batch_size, steps=2, weights="keep", progress=False)
    assert "No parameter changed" not in result.message
    assert all(bool((new != old).any()) for new, old in zip(network.parameters(), before, strict=True))


def test_a_method_that_cannot_move_says_so() -> None:
    network = networks.PrimalDual(operators.Identity((SIZE,)), _differences(torch.float32), 2)
    solver = BlockCoordinateDescent(blocks=("states odd", "states even"), inner_steps=5)
    result = tl.train(network, _data(), solver=solver, batch_size="full", steps=3, weights="keep", progress=False)
    assert result.message.startswith("No parameter changed in 3 steps")


@pytest.mark.parametrize(
    "solver", [ProximalAdam(1e-2), LinearisedBCD(ProximalGradient(Backtracking()))], ids=["adam", "bcd"]
)
def test_resumed_coordinates_are_those_of_the_start(solver: Any, tmp_path: Path) -> None:
    def run(folder: str, steps: int, resume: bool = False) -> list[Tensor]:
        network = networks.PrimalDual(operators.Identity((SIZE,)), _differences(torch.float32), 2)
        options: dict[str, Any] = {"solver": solver, "batch_size": "full", "weights": "keep", "progress": False}
        tl.train(network, _data(), steps=steps, folder=f"{tmp_path}/{folder}", resume=resume, **options)
        return [p.detach().clone() for p in network.parameters()]

    whole = run("whole", 8)
    run("halves", 4)
    for ours, theirs in zip(run("halves", 8, resume=True), whole, strict=True):
        assert torch.equal(ours, theirs)
