"""Error coordinates z = σ(W u + b) + e: the same objective, with gradients that reach all layers at once."""

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
from torchlift.core.errors import TorchliftError
from torchlift.core.tensors import Point, add, dot
from torchlift.functions.regularisers import L1, Ridge
from torchlift.objective import ErrorProblem, Objective, TrainingProblem
from torchlift.solvers import FISTA, Backtracking, LinearisedBCD, ProximalAdam, ProximalGradient, Stopping, solve

WIDTH, BATCH = 5, 7


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _mlp(activation: prox.ProximalActivation | None = None, depth: int = 3) -> networks.Network:
    sizes = [WIDTH] * (depth + 2)
    generator = torch.Generator().manual_seed(0)
    return networks.MLP(sizes, activation or prox.ReLU(), dtype=torch.float64, generator=generator)


def _primal_dual() -> networks.Network:
    differences = torch.eye(WIDTH, dtype=torch.float64)[1:] - torch.eye(WIDTH, dtype=torch.float64)[:-1]
    return networks.PrimalDual(operators.Identity((WIDTH,)), differences, 2)


def _learned() -> networks.Network:
    return _mlp(prox.SoftThreshold(nn.Parameter(torch.tensor(0.1, dtype=torch.float64))))


def _residual() -> networks.Network:
    generator = torch.Generator().manual_seed(0)
    return networks.ResNet(WIDTH, [WIDTH] * 3, WIDTH, dtype=torch.float64, generator=generator)


NETWORKS: dict[str, Callable[[], networks.Network]] = {
    "relu": _mlp,
    "soft-threshold": lambda: _mlp(prox.SoftThreshold(0.1)),
    "tanh": lambda: _mlp(prox.Tanh()),
    "box": lambda: _mlp(prox.Box(-0.3, 0.5)),
    "residual": lambda: networks.ResNet(
        WIDTH, [WIDTH] * 3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    ),
    "primal-dual": _primal_dual,
    "learned threshold": _learned,
}
LIFTINGS = [liftings.Bregman(0.7), liftings.MACQP(0.7), liftings.Classical(1.0)]


def _problems(
    network: networks.Network, lifting: liftings.Lifting, **options: object
) -> tuple[TrainingProblem, ErrorProblem]:
    y, x = _randn(1, BATCH, WIDTH), _randn(2, BATCH, WIDTH)
    plain = TrainingProblem(Objective(network, lifting, **options), y, x)  # type: ignore[arg-type]
    return plain, ErrorProblem(Objective(network, lifting, coordinates="errors", **options), y, x)  # type: ignore


@torch.no_grad()
def _away(problem: ErrorProblem, size: float = 0.02) -> Point:
    """A point with errors that leave z inside the domain of Ψ, and parameters that are not those of the start."""
    start = problem.start()
    point = start.like(t + size * _randn(10 + i, *t.shape) for i, t in enumerate(start.tensors))
    point = start.merge(Point({"parameters": point["parameters"]})).merge(point.select(("states",)))
    z = problem.states(point)
    for layer, activation in zip(z, problem.objective.network.operators().activations, strict=True):
        if isinstance(activation, prox.ReLU):
            layer.add_(size)
        elif isinstance(activation, prox.Box):
            layer.mul_(0.9).add_(0.05 * (activation.lo + activation.hi))
    return problem.point(point["parameters"], z)


@pytest.mark.parametrize("lifting", LIFTINGS, ids=lambda lifting: type(lifting).__name__)
@pytest.mark.parametrize("name", NETWORKS)
def test_values_are_those_of_the_same_states(name: str, lifting: liftings.Lifting) -> None:
    plain, errors = _problems(NETWORKS[name](), lifting)
    point = _away(errors)
    z = errors.states(point)
    assert errors.value(point) == pytest.approx(plain.value(plain.point(point["parameters"], z)), rel=1e-12)
    again = errors.point(point["parameters"], z)
    for one, other in zip(again.tensors, point.tensors, strict=True):
        assert torch.allclose(one, other, atol=1e-14)


@pytest.mark.parametrize("lifting", LIFTINGS, ids=lambda lifting: type(lifting).__name__)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_the_smooth_part(name: str, lifting: liftings.Lifting) -> None:
    """By central differences of F − g, with g of the point where the gradient was taken."""
    _, problem = _problems(NETWORKS[name](), lifting, parameters={"*weight*": Ridge(0.1)} if name == "relu" else None)
    point = _away(problem)
    gradient = problem.gradient(point)
    for block in problem.blocks:
        direction = point.like(
            _randn(50 + i, *t.shape) if any(t is own for own in point[block]) else torch.zeros_like(t)
            for i, t in enumerate(point.tensors)
        )
        h = 1e-6
        sides = [problem.smooth_value(add(point, direction, sign * h)) for sign in (1, -1)]
        assert (sides[0] - sides[1]) / (2 * h) == pytest.approx(dot(gradient, direction), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("lifting", LIFTINGS[:2], ids=lambda lifting: type(lifting).__name__)
@pytest.mark.parametrize("name", NETWORKS)
def test_at_zero_errors_they_are_those_of_back_propagation(name: str, lifting: liftings.Lifting) -> None:
    network = NETWORKS[name]()
    _, problem = _problems(network, lifting)
    gradient = problem.gradient(problem.start())["parameters"]
    with torch.enable_grad():
        loss = 0.5 * (network(problem.y) - problem.x).square().sum() / BATCH
    expected = torch.autograd.grad(loss, [p for p in network.parameters() if p.requires_grad])
    for one, other in zip(gradient, expected, strict=True):
        assert torch.allclose(one, other, atol=1e-13)


def test_the_loss_reaches_the_first_layer_in_one_evaluation() -> None:
    plain, errors = _problems(_mlp(depth=12), liftings.Bregman())
    first = [float(p.gradient(p.start())["parameters"][0][0].abs().max()) for p in (plain, errors)]
    assert first[0] < 1e-15 < 1e-9 < first[1]


@pytest.mark.parametrize(
    "solver",
    [
        LinearisedBCD(ProximalGradient(Backtracking())),
        ProximalGradient(Backtracking()),
        FISTA(Backtracking()),
        ProximalAdam(1e-3),
    ],
    ids=["BCD", "gradient", "FISTA", "Adam"],
)
@pytest.mark.parametrize("name", ["relu", "soft-threshold", "tanh", "primal-dual"])
def test_solvers_decrease_the_objective(name: str, solver: object) -> None:
    _, problem = _problems(NETWORKS[name](), liftings.Bregman())
    solution = solve(problem, solver, problem.start(), stopping=Stopping(30, change=None))  # type: ignore[arg-type]
    assert not solution.failed, solution.message
    values = [record.value for record in solution.history]
    assert values[-1] < 0.97 * values[0]
    if isinstance(solver, LinearisedBCD):
        assert all(new <= old * (1 + 1e-12) for old, new in pairwise(values))


def test_they_come_to_the_minimum_of_the_states() -> None:
    """With one hidden layer the objective is convex in z for fixed weights, so both find the same value."""
    results = []
    for problem in _problems(_mlp(prox.SoftThreshold(0.2), depth=1), liftings.Bregman(0.8)):
        part = ProximalGradient(Backtracking(), blocks=("states",))
        solution = solve(problem, part, problem.start(), stopping=Stopping(300, change=None), record_every=0)
        results.append(problem.value(solution.point))
    assert results[0] == pytest.approx(results[1], rel=1e-7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"coupling": 1.0}, "hard coupling"),
        ({"states": L1(0.1)}, "smooth regularisers"),
        ({"lifting": liftings.Conventional()}, "free states"),
        ({"lifting": liftings.Classical(2.0)}, "σ\\(v\\) minimises"),
        ({"coordinates": "z"}, "'states' or 'errors'"),
    ],
)
def test_what_they_cannot_hold_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(TorchliftError, match=said):
        Objective(_mlp(), **{"coordinates": "errors", **options})


@pytest.mark.parametrize("batch_size", [8, "full"])
def test_train_takes_them_and_goes_on_bit_for_bit(batch_size: Any, tmp_path: Path) -> None:
    y = _randn(3, 24, WIDTH)

    def run(steps: int, folder: Path | None = None) -> tuple[float, list[Tensor]]:
        network = _mlp()
        options = tl.TrainOptions(coordinates="errors")
        result = tl.train(
            network, (y, y.relu()), lifting=liftings.Bregman(), steps=steps, batch_size=batch_size, folder=folder,
            resume=folder is not None, progress=False, options=options,
        )  # fmt: skip
        return result.history[-1]["loss"], [p.detach() for p in network.parameters()]

    loss, weights = run(6)
    run(3, tmp_path / "run")
    _, resumed = run(6, tmp_path / "run")
    with torch.no_grad():
        assert loss < float(0.5 * (_mlp()(y) - y.relu()).square().sum(1).mean())
    assert all(torch.equal(a, b) for a, b in zip(weights, resumed, strict=True))


def test_methods_without_lifted_variables_refuse_them() -> None:
    y = _randn(3, 24, WIDTH)
    with pytest.raises(TorchliftError, match="coordinates"):
        tl.train(_mlp(), (y, y), steps=1, options=tl.TrainOptions(coordinates="errors"))
