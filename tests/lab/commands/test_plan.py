"""`torchlift plan`: tables, JSON, a figure, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchlift.cli import main
from torchlift.lab.planning import Machine

SMALL = ["plan", "--layers", "12", "--width", "64", "--batch", "32", "--devices", "6"]


def test_json_has_all_ways_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--flops", "1e12", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["devices"] == [1, 2, 4, 6]
    assert record["machine"]["flops"] == 1e12
    assert record["work"] == {"layers": 12, "width": 64, "batch": 32, "number": 4}
    assert {way: len(found) for way, found in record["methods"].items()} == {
        "late sweeps": 4, "lifting": 4, "data-parallel": 4, "pipelined": 4,
    }  # fmt: skip
    assert all(each["efficiency"] > 0 for found in record["methods"].values() for each in found)
    assert "one layer per step" in record["note"]
    for i, said in enumerate(record["recommended"]):
        rows = {way: found[i] for way, found in record["methods"].items()}
        best = min(rows.values(), key=lambda row: row["seconds"] * row["steps"])
        assert said.startswith(f"{best['method']} on {best['mesh']} trains fastest")
        assert rows["lifting"]["training"] == pytest.approx(12 * rows["lifting"]["seconds"])


def test_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["plan", "--layers", "3", "--batch", "2", "--width", "64", "--devices", "4"]) == 0
    shown = capsys.readouterr().out
    assert "layers=2" in shown and "efficiency" in shown and "training" in shown and "On 4 devices: " in shown
    assert "no mesh allows it" in shown, "four devices, two samples"


def test_constants_of_a_bench_and_options_over_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bench-distributed.json"
    path.write_text(json.dumps({"machine": Machine(flops=3e9, latency=0.5).record()}))
    assert main([*SMALL, "--constants", str(path), "--latency", "0.25", "--overhead", "0.5", "--json"]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert (machine["flops"], machine["latency"]) == (3e9, 0.25)
    assert [each["overhead"] for each in machine["passes"].values()] == [0.5, 0.5]


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_figure(ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"devices.{ending}"
    assert main([*SMALL, "--figure", str(path)]) == 0
    assert path.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--layers", "0"], "--layers: expected a whole number >= 1, got 0"),
        (["--devices", "0"], "--devices: expected a whole number >= 1, got 0"),
        (["--flops", "0"], "--flops: expected a number > 0, got 0.0"),
        (["--overlap", "2"], "--overlap: expected a number in [0, 1], got 2.0"),
        (["--memory", "-1"], "--memory: expected a number > 0, got -1.0"),
        (["--overhead", "0"], "--overhead: expected a number > 0, got 0.0"),
        (["--constants", "nowhere.json"], "nowhere.json: expected a JSON file, got no such file or folder"),
        (["--figure", "plan.txt"], "a file ending in .png, .svg or .pdf, got 'plan.txt'"),
    ],
)
def test_bad_input_gets_one_line(arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error and error.count("\n") == 1
