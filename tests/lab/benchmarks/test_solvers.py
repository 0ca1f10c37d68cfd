"""The solver race in its tiny mode."""

from __future__ import annotations

import json

import pytest

from torchlift import plot
from torchlift.cli.app import run
from torchlift.lab.benchmarks import solvers

TINY = solvers.Setting(images=6, layers=2)


@pytest.mark.parametrize("name", solvers.contestants(TINY))
def test_every_contestant_descends(name: str) -> None:
    found = solvers.run(TINY, name, solvers.contestants(TINY)[name], 0.5)
    assert found.result in ("time_limit", "max_steps")
    assert found.steps[0] == 0 and len(found.steps) == len(found.values) == len(found.psnr) > 1
    assert found.values[-1] < found.values[0]


def test_exact_descent_wins_on_the_objective() -> None:
    found = {name: solvers.run(TINY, name, solvers.contestants(TINY)[name], 0.7) for name in ("gradient", "exact")}
    assert min(found["exact"].values) < min(found["gradient"].values)


def test_levels_and_when_they_are_reached() -> None:
    slow = solvers.Run("slow", "time_limit", (0, 5, 10), (0.0, 1.0, 2.0), (10.0, 6.0, 4.0), (1.0, 2.0, 3.0))
    fast = solvers.Run("fast", "time_limit", (0, 1), (0.0, 0.5), (10.0, 0.0), (1.0, 9.0))
    targets = solvers.targets([slow, fast])
    assert targets == pytest.approx({0.5: 5.0, 0.9: 1.0, 0.99: 0.1})
    assert slow.reached(5.0) == (10, 2.0)
    assert slow.reached(1.0) is None
    assert fast.reached(1.0) == (1, 0.5)


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
    assert (tmp_path / "bench-solvers.png").stat().st_size > 1000
    assert len(plot.descent(record["runs"]).axes) == 3


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
