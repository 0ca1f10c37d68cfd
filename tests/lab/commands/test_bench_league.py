"""`torchlift bench league`: it runs, goes on where it was, and its tables say what the records hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchlift.cli import main
from torchlift.lab.benchmarks import league


def test_a_tiny_case_is_run_once_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(league, "BASELINES", {"AdamW, centred": league.BASELINES["AdamW, centred"]})
    arguments = ["bench", "league", "256, 1 epoch", "--tiny", "--seeds", "1", "--trials", "1", "--seconds", "0.05"]
    arguments += ["--records", str(tmp_path), "--json"]
    assert main(arguments) == 0
    (record,) = json.loads(capsys.readouterr().out)["records"]
    assert [(row["method"], row["start"]) for row in record["runs"]] == [
        *((name, start) for name, (_, start) in league.ABLATIONS.items()),
        ("AdamW, centred", "torch"),
        ("AdamW, centred", "ours"),
    ]
    (file,) = tmp_path.glob("*.json")
    record["runs"] = record["runs"][:-1]
    file.write_text(json.dumps(record), encoding="utf-8")
    assert main(arguments) == 0
    (again,) = json.loads(capsys.readouterr().out)["records"]
    assert again["runs"][:-1] == record["runs"] and len(again["runs"]) == 6
    assert main(["bench", "league", "--records", str(tmp_path), "--table"]) == 0
    assert "| mnist 784-256-256, 1 epoch (seed 0" in capsys.readouterr().out


def _run(method: str, start: str, setting: float, choice: float, report: float, curve: list[Any]) -> dict[str, Any]:
    return {"method": method, "start": start, "setting": setting, "choice": choice, "report": report, "steps": 9,
            "seconds": 1.0, "curve": curve}  # fmt: skip


def test_standings_and_profiles() -> None:
    """The best trial on held-out data counts; the target is the best baseline's end; small errors are good ones."""
    runs = [
        _run("ours", "ours", 0.0, 4.0, 4.1, [(1.0, 6.0), (2.0, 4.5), (3.0, 4.0)]),
        _run("AdamW", "torch", 1e-3, 5.0, 4.9, [(2.0, 6.0), (4.0, 5.0)]),
        _run("AdamW", "torch", 3e-3, 6.0, 1.0, [(2.0, 7.0), (4.0, 6.0)]),
        _run("Muon", "torch", 3e-3, 9.0, 9.0, [(4.0, 9.0)]),
    ]
    record = {"case": "c", "metric": "error", "seed": 0, "seconds": 4.0, "runs": runs}
    rows = {row["method"]: row for row in league.standings(record)}
    assert rows["AdamW"]["report"] == 4.9 and rows["AdamW"]["setting"] == 1e-3
    assert [rows[name]["to target"] for name in ("ours", "AdamW", "Muon")] == [2.0, 4.0, None]
    profiles = league.profiles([record])
    assert profiles["ours (ours start)"] == [1.0] * 4
    assert profiles["AdamW (torch start)"] == [0.0, 0.0, 1.0, 1.0]
    assert profiles["Muon (torch start)"] == [0.0] * 4
    assert league.markdown([record]).splitlines()[2:] == [
        "| ours | ours | 4.10 |", "| AdamW | torch | 4.90 |", "| Muon | torch | 9.00 |",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["denosing"], ["parts of the names"]),
        (["--trials", "4"], ["trials", "at most 3"]),
        (["--seconds", "-1"], ["seconds", "> 0"]),
    ],
)
def test_bad_options(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "league", *arguments]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
