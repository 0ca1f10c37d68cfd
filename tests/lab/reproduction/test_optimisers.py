"""The race of optimisers: its claims on made-up numbers, and a tiny race."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

from torchlift.functions.losses import SquaredError
from torchlift.lab.benchmarks.solvers import EXACT, OURS, PAPER, SWEEP, SWEEP_ADAM, THRESHOLD, methods
from torchlift.lab.problem import MU, build, load_images
from torchlift.lab.reproduction import Experiment, ExperimentResult, Work
from torchlift.lab.reproduction.optimisers import TINY_SIZE, Optimisers, at_time, claims
from torchlift.lab.trajectory import Trajectory
from torchlift.liftings import Bregman
from torchlift.objective import Objective, TrainingProblem
from torchlift.report.records import Curves, Table


def trajectory(
    objectives: Sequence[float], validation: float = 12.0, pace: float = 1.0, training: float = 20.0
) -> Trajectory:
    quality = {"training psnr": training, "validation psnr": validation}
    rows = [{"step": 10 * k, "seconds": pace * k, "objective": value, **quality} for k, value in enumerate(objectives)]
    return Trajectory(rows)


def good() -> dict[str, Trajectory]:
    return {
        "gradient": trajectory([10, 8, 7, 6]),
        "heavy-ball": trajectory([10, 8, 6, 5]),
        "Nesterov": trajectory([10, 7, 5, 4]),
        "Adam": trajectory([10, 5, 3, 2], training=21.0),
        EXACT: trajectory([10, 1], pace=2.0),
        SWEEP_ADAM: trajectory([10, 4, 3, 2], validation=23.0),
        SWEEP: trajectory([10, 3, 2, 1], validation=24.0),
    }


def said(found: Mapping[str, Trajectory]) -> list[str]:
    return [each.outcome for each in claims(found, 16.0, 30)]


def test_claims_can_hold() -> None:
    assert said(good()) == ["held"] * 5


@pytest.mark.parametrize(
    ("name", "changed", "index"),
    [
        ("heavy-ball", trajectory([10, 9, 8, 7]), 0),
        ("Nesterov", trajectory([10, 9, 8, 6]), 0),
        ("Adam", trajectory([10, 9, 8, 4.5]), 1),
        ("Adam", trajectory([10, 9, 8, 2]), 1),  # the smallest at the end only
        ("Adam", trajectory([10, 5, 3, 2], training=19.0), 2),
        (EXACT, trajectory([10, 1], pace=5.0), 3),  # one step that takes longer than all of Adam
        (EXACT, trajectory([10, 8], pace=2.0), 3),  # worse than Adam was by then
        (EXACT, trajectory([10, 1], validation=17.0, pace=2.0), 4),
    ],
)
def test_claims_can_fail(name: str, changed: Trajectory, index: int) -> None:
    found = {**good(), name: changed}
    assert said(found)[index] == "did not hold"


def test_value_at_a_time_is_the_last_one_measured_by_then() -> None:
    each = trajectory([10, 5, 3, 2], pace=2.0)
    assert [at_time(each, seconds) for seconds in (0.0, 1.9, 2.0, 5.0, 60.0)] == [10, 10, 5, 3, 2]


def test_heavy_ball_keeps_below_its_limit() -> None:
    part = methods()["heavy-ball"].parts  # pyright: ignore[reportAttributeAccessIssue]
    assert part.step_size.factor < 2 * (1 - part.momentum.beta)


@pytest.fixture(scope="module")
def result(tiny: Callable[[Experiment], Work]) -> ExperimentResult:
    return Optimisers().run(tiny(Optimisers()))


def test_tiny_race_has_everyone_from_the_same_start(result: ExperimentResult) -> None:
    figures = {figure.name: figure for figure in result.figures}
    table, curves, times = figures["results"], figures["objective"], figures["objective-seconds"]
    assert isinstance(table, Table) and isinstance(curves, Curves) and isinstance(times, Curves)
    assert [row[0] for row in table.rows[1:]] == [*PAPER, *OURS] == list(methods())
    assert [claim.outcome for claim in result.claims] == ["not decidable"] * 5
    assert [each.label for each in curves.series] == list(PAPER)
    starts = {each.label: each.y[0] for each in times.series}
    assert len({starts[name] for name in (*PAPER, EXACT)}) == 1
    # sweeps begin at the forward pass of the same network, where the objective is the loss
    images, network = (
        load_images("denoising", TINY_SIZE.training, TINY_SIZE.validation, 0, 14),
        build(THRESHOLD, 0, side=14),
    )
    with torch.no_grad():
        assert starts[SWEEP] == pytest.approx(float(SquaredError().mean(network(images.y), images.x)), rel=1e-5)
    for each in times.series:
        first, last = each.y[0], each.y[-1]
        assert first is not None and last is not None and last < first, each.label


def test_objective_of_sweeps_is_the_lifted_one_at_the_forward_pass() -> None:
    images = load_images("denoising", 3, 1, 0)
    objective = Objective(build(0.2, 0), Bregman(MU))
    problem = TrainingProblem(objective, images.y, images.x)
    with torch.no_grad():
        loss = float(objective.loss.value(objective.network(images.y), images.x).mean())
    assert problem.value(problem.start("forward")) == pytest.approx(loss, rel=1e-5)


def test_interrupted_race_goes_on_with_the_next_solver(tmp_path: Path) -> None:
    def stop(text: str) -> None:
        if text == "heavy-ball":
            raise RuntimeError("the power is off")

    with pytest.raises(RuntimeError, match="power"):
        Optimisers().run(Work("tiny", 0, tmp_path, stop))
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["gradient"]
