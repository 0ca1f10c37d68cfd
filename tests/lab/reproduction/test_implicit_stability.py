"""Experiment implicit-stability: its tasks, and its claims."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from torchlift.core.tensors import Point
from torchlift.lab.reproduction import Experiment, Work
from torchlift.lab.reproduction import implicit_stability as module
from torchlift.lab.reproduction.implicit_stability import (
    EXPLICIT,
    IMPLICIT,
    METHODS,
    ImplicitStability,
    LiftedNetwork,
    Regression,
    Study,
    Sweep,
)


@pytest.fixture(scope="module")
def regression() -> Regression:
    return Regression(100, 0)


@pytest.fixture(scope="module")
def network() -> LiftedNetwork:
    return LiftedNetwork(100, 0)


def test_the_minimum_of_the_regression(regression: Regression) -> None:
    residual = regression.A @ regression.best - regression.T
    assert float((regression.A.T @ residual).abs().max()) < 1e-9
    start = regression.start(10.0)
    assert float(start["x"][0].norm()) == pytest.approx(10 * float(regression.best.norm()))
    assert regression.value(regression.start(0.0)) == pytest.approx(0.5)
    assert 0 <= regression.least < 0.5


def test_batches_repeat_and_differ(regression: Regression) -> None:
    point = regression.start(0.0)

    def rows(draw: int, count: int) -> torch.Tensor:
        regression.draw = draw
        problem, _ = regression.batch(count, point)
        assert isinstance(problem, module.LeastSquares)
        return problem.A

    assert torch.equal(rows(1, 5), rows(1, 5))
    assert not torch.equal(rows(1, 5), rows(2, 5)) and not torch.equal(rows(1, 5), rows(1, 6))


def test_an_implicit_step_of_the_regression_is_the_gradient_at_its_end(regression: Regression) -> None:
    """Θ⁺ = Θ − τ∇E(Θ⁺)."""
    start = regression.start(1.0)
    problem, _ = regression.batch(0, start)
    new = problem.minimise(start, "x", 0.0, start, 1 / 0.7)
    assert new is not None
    expected = start["x"][0] - 0.7 * problem.gradient(new)["x"][0]
    torch.testing.assert_close(new["x"][0], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("task", ["regression", "network"])
def test_both_methods_agree_at_small_rates_and_part_at_large_ones(task: str, request: pytest.FixtureRequest) -> None:
    problem = request.getfixturevalue(task)
    start = problem.start(problem.starts[-1] if task == "regression" else 1.0)
    first = problem.value(start)
    small = {method: problem.run(method, start, 1e-4, 3, 0) for method in METHODS}
    assert small[IMPLICIT] < first and small[EXPLICIT] < first
    # explicit steps of the network descend through the network, implicit ones from lifted variables: not equal
    tolerance = 2e-3 if task == "regression" else 0.5
    assert first - small[IMPLICIT] == pytest.approx(first - small[EXPLICIT], rel=tolerance)
    assert problem.run(IMPLICIT, start, 1e4, 3, 0) < first
    assert not problem.run(EXPLICIT, start, 1e4, 3, 0) < 100 * first


def test_explicit_steps_are_gradient_steps(network: LiftedNetwork) -> None:
    """Two runs of one step from one start move by the same gradient."""
    start = network.start(1.0)
    values = [network.run(EXPLICIT, start, rate, 1, 0) for rate in (1e-5, 2e-5)]
    first = network.value(start)
    assert (first - values[1]) / (first - values[0]) == pytest.approx(2, rel=1e-3)


def test_starts_of_the_network_scale_its_weights(network: LiftedNetwork) -> None:
    for usual, far in zip(network.start(1.0)["parameters"], network.start(3.0)["parameters"], strict=True):
        torch.testing.assert_close(far, 3 * usual)
    assert isinstance(network.start(1.0), Point)


def study(implicit: list[float], explicit: list[float], far: float = 1.0) -> Study:
    """Ends over rates, five runs each with a little spread; the far start multiplies the implicit ends by `far`."""
    spread = 1 + 1e-3 * torch.arange(5, dtype=torch.float64)
    sweeps = []
    for start, factor in ((0.0, 1.0), (10.0, far)):
        for method, ends in ((IMPLICIT, implicit), (EXPLICIT, explicit)):
            finals = torch.tensor(ends, dtype=torch.float64)[:, None] * spread
            finals = finals * factor if method == IMPLICIT else finals
            sweeps.append(Sweep("regression", method, start, (0.1, 1.0, 10.0), finals, 1.0))
    return Study.of("regression", 0.05, sweeps)


def outcomes(found: Study) -> list[str]:
    return [claim.outcome for claim in module.judge([found])]


def test_claims_can_go_either_way() -> None:
    assert outcomes(study([0.1, 0.1, 0.1], [0.1, math.inf, math.inf])) == ["held"] * 4
    assert outcomes(study([0.1, 0.1, 2.0], [0.1, math.inf, math.inf]))[0] == "did not hold"  # implicit diverges too
    assert outcomes(study([0.1, 0.1, 0.1], [0.1, 0.1, 0.1]))[:3] == ["did not hold"] * 3  # no difference
    assert outcomes(study([0.1, 0.1, 0.1], [0.1, math.inf, math.inf], far=5.0))[2] == "did not hold"
    assert outcomes(study([0.2, 0.2, 0.2], [0.1, math.inf, math.inf]))[3] == "did not hold"  # thrice the excess


def test_usable_rates_and_ratio() -> None:
    found = study([0.1, 0.15, 0.5], [0.1, math.inf, math.inf])
    ours, theirs = (found.of_method(method)[0] for method in METHODS)
    assert (found.usable(ours), found.usable(theirs)) == (2, 1)  # 0.1 + 0.1 (1 − 0.1) = 0.19
    assert found.ratio().mean == pytest.approx(0.0, abs=1e-12)
    far = replace(ours, finals=torch.tensor([[1.0], [1.2], [9.0]], dtype=torch.float64), first=11.0)
    assert found.usable(far) == 1  # from its own start: 0.1 + 0.1 (11 − 0.1) = 1.19
    assert ours.best == 0 and theirs.diverged.tolist() == [False, True, True]


def test_tiny(tiny: Callable[[Experiment], Work]) -> None:
    result = ImplicitStability().run(tiny(ImplicitStability()))
    assert [claim.outcome for claim in result.claims] == ["not decidable"] * 7
    regression, network, table = result.figures
    assert len(regression.series) == len(network.series) == 6
    assert len(table.rows) == 12
    assert [row[7] for row in table.rows if row[2] == IMPLICIT] == [0] * 6  # no implicit run ends above its start
