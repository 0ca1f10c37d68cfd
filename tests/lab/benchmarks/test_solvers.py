"""The solver race in its tiny mode."""

from __future__ import annotations

import itertools
import json
import time
from types import SimpleNamespace

import pytest

import torchlift.lab.trajectory
from torchlift.cli.app import run
from torchlift.lab.benchmarks import solvers
from torchlift.lab.reproduction import optimisers
from torchlift.lab.trajectory import Trajectory

RACERS = solvers.methods()


def test_every_method_descends(monkeypatch: pytest.MonkeyPatch) -> None:
    """In four steps, by a clock that does not depend on the machine."""
    clock = SimpleNamespace(**vars(time) | {"perf_counter": itertools.count(0.0, 0.1).__next__})
    monkeypatch.setattr(torchlift.lab.trajectory, "time", clock)
    for name, trajectory in solvers.race(list(RACERS), 6, 2, 0.4).items():
        values = trajectory.column("objective")
        assert trajectory.failure == "" and trajectory.steps[0] == 0 and len(values) > 1, name
        assert values[-1] < values[0], name


def test_exact_descent_wins_on_the_objective() -> None:
    trajectories = solvers.race(["gradient", solvers.EXACT], 6, 2, 0.7)
    assert min(trajectories[solvers.EXACT].column("objective")) < min(trajectories["gradient"].column("objective"))


def test_the_race_is_that_of_the_reproduction() -> None:
    """The same functions, so the same settings: the same objective after a step of each."""
    assert optimisers.methods is solvers.methods and optimisers.begin is solvers.begin
    assert {*RACERS} == {*solvers.PAPER, *solvers.OURS}


def test_levels_and_when_they_are_reached() -> None:
    def trajectory(*rows: tuple[int, float, float]) -> Trajectory:
        return Trajectory([{"step": step, "seconds": time, "objective": value} for step, time, value in rows])

    slow = trajectory((0, 0.0, 10.0), (5, 1.0, 6.0), (10, 2.0, 4.0))
    fast = trajectory((0, 0.0, 10.0), (1, 0.5, 0.0))
    assert solvers.targets({"slow": slow, "fast": fast}) == pytest.approx({0.5: 5.0, 0.9: 1.0, 0.99: 0.1})
    assert solvers.reached(slow, 5.0) == (10, 2.0)
    assert solvers.reached(slow, 1.0) is None
    assert solvers.reached(fast, 1.0) == (1, 0.5)


def test_command_writes_table_json_and_plot(tmp_path, capsys) -> None:
    options = [
        "--images",
        "4",
        "--layers",
        "1",
        "--seconds",
        "0.2",
        "--only",
        "gradient",
        "Adam",
        "--out",
        str(tmp_path),
    ]
    assert run(["bench", "solvers", *options]) == 0
    text = capsys.readouterr().out
    assert "gradient" in text and "Adam" in text and "50% after" in text
    record = json.loads((tmp_path / "bench-solvers.json").read_text())
    assert [each["name"] for each in record["runs"]] == ["gradient", "Adam"]
    assert (tmp_path / "figures" / "bench-solvers.png").stat().st_size > 1000
    assert len(solvers.descent(record["runs"])) == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--only", "sgd"], ["gradient", "sgd"]),
        (["--images", "0"], ["images", ">= 1"]),
        (["--seconds", "0"], ["seconds", "> 0"]),
    ],
)
def test_bad_options_are_refused(options: list[str], words: list[str], capsys) -> None:
    assert run(["bench", "solvers", *options]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
