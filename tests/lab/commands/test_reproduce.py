"""`torchlift reproduce`: it lists, runs, goes on, and refuses in one line."""

from __future__ import annotations

import json
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from contracts.experiments import Example, Failing, Interrupted, Second
from forked_commands import Command
from torchlift.cli import main
from torchlift.core.errors import TorchliftError
from torchlift.io.folders import FolderLock
from torchlift.lab.commands import reproduce
from torchlift.lab.reproduction import EXPERIMENTS, ExperimentResult, Work
from torchlift.lab.reproduction import run as running
from torchlift.report.records import load_record


@pytest.fixture(autouse=True)
def _experiments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    experiments = (Failing(), Example(), Second(), Interrupted())
    monkeypatch.setattr(reproduce, "EXPERIMENTS", {experiment.name: experiment for experiment in experiments})
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["reproduce", *arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_list(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "EXPERIMENTS", EXPERIMENTS)
    status, out, err = run(capsys, "list")
    assert (status, err) == (0, "")
    assert [name in out for name in EXPERIMENTS] == [True] * len(EXPERIMENTS)
    status, out, err = run(capsys, "list", "--json")
    assert [experiment["name"] for experiment in json.loads(out)["experiments"]] == list(EXPERIMENTS)
    assert list(tmp_path.iterdir()) == []


def test_experiments_run_into_their_folders(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = run(capsys, "example", "second", "example", "--scale", "tiny", "--seed", "3")
    assert (status, err) == (0, "")
    assert {folder.name for folder in (tmp_path / "runs" / "reproduce").iterdir()} == {"example", "second"}
    assert [line.split()[:4] for line in out.splitlines()[1:3]] == [
        ["example", "1", "1", "1"],
        ["second", "1", "1", "1"],
    ]
    assert out.count("The images are white. – mean") == 2
    assert out.count(" – did not hold\n") == 2
    assert "Results: runs/reproduce\n" in out
    assert "torchlift report runs/reproduce --html" in out


def test_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = run(capsys, "example", "--scale", "tiny", "--out", "here", "--json", "--threads", "1")
    assert (status, err) == (0, "")
    record = json.loads(out)
    assert (record["scale"], record["seed"], record["folder"]) == ("tiny", 0, "here")
    (experiment,) = record["experiments"]
    assert (experiment["name"], experiment["folder"], experiment["failure"]) == ("example", "here/example", None)
    assert [claim["outcome"] for claim in experiment["claims"]] == ["held", "did not hold", "not decidable"]
    assert (tmp_path / "here" / "example" / "summary.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "expected list, all, or some of failing, example"),
        (["exmple"], "got 'exmple'. Did you mean 'example'?"),
        (["al"], "Did you mean 'all'?"),
        (["zzz"], "Try 'torchlift reproduce list'."),
        (["list", "example"], "got 'list'. It stands alone."),
        (["example", "--scale", "huge"], "huge"),
        (["example", "--seed", "-1"], "seed: expected a whole number >= 0, got -1"),
        (["example", "--threads", "0"], "threads: expected a whole number >= 1, got 0"),
        (["example", "--jobs", "0"], "jobs: expected a whole number >= 1, got 0"),
        (["example", "--resume"], "--resume in runs/reproduce: expected an earlier run of example, got none"),
        (["failing", "--scale", "tiny", "--out", "file"], "file"),
    ],
)
def test_bad_input_gets_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], reason: str
) -> None:
    (tmp_path / "file").touch()
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("torchlift: ")
    assert err.count("\n") == 1
    assert reason in err
    assert not (tmp_path / "runs").exists()


def test_it_refuses_before_it_works(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, "second", "--scale", "tiny", "--out", "here")
    status, _, err = run(capsys, "example", "second", "--scale", "tiny", "--out", "here")
    assert status == 2
    assert "here/second: expected no earlier run, got a finished run. Read it by --resume" in err
    assert not (tmp_path / "here" / "example").exists()


def test_ctrl_c_tells_how_to_go_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["example", "interrupted", "second", "--scale", "tiny", "--seed", "0", "--out", "my runs"]
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (130, "")
    first, second = err.splitlines()
    assert (
        first
        == "To go on: torchlift reproduce example interrupted second --scale tiny --seed 0 --out 'my runs' --resume"
    )
    assert second == "torchlift: stopped"
    assert not (tmp_path / "my runs" / "second").exists()
    status, out, err = run(capsys, *arguments, "--resume")
    assert (status, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()[1:4]] == ["example", "interrupted", "second"]


def test_one_failure_does_not_stop_the_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = run(capsys, "failing", "second", "--scale", "tiny", "--out", "here")
    assert status == 2
    assert "failed: ZeroDivisionError: by nothing" in out
    said = "reproduce: 1 of 2 experiments failed: failing (ZeroDivisionError: by nothing). Go on with them by --resume."
    assert err == f"torchlift: {said}\n"
    assert (tmp_path / "here" / "second" / "record").is_dir()


def test_experiments_at_the_same_time_leave_what_they_leave_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ["failing", "interrupted", "second", "--scale", "tiny"]
    status, out, err = run(capsys, *names, "--out", "at once", "--jobs", "2")
    assert status == 2
    assert "failed: ZeroDivisionError: by nothing" in out
    assert "2 of 3 experiments failed: failing (ZeroDivisionError: by nothing); interrupted (stopped)." in err
    run(capsys, *names, "--out", "at once", "--resume")
    assert (tmp_path / "at once" / "interrupted" / "record").is_dir()
    run(capsys, "second", "--scale", "tiny", "--out", "alone")
    alone, beside = (load_record(tmp_path / folder / "second") for folder in ("alone", "at once"))
    assert (alone.claims, alone.summary) == (beside.claims, beside.summary)


def test_ctrl_c_stops_all_of_them(tmp_path: Path) -> None:
    arguments = ["reproduce", "auxiliary-start", "conventional-sweep", "--jobs", "2", "--out", str(tmp_path / "here")]
    process = Command(arguments)
    folders = [tmp_path / "here" / name for name in ("auxiliary-start", "conventional-sweep")]
    while process.poll() is None and not all((folder / "settings.json").exists() for folder in folders):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[0].startswith("To go on: torchlift reproduce auxiliary-start conventional-sweep")
    for folder in folders:
        FolderLock(folder)  # nobody works there any more


def test_an_interrupt_that_python_drops_comes_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "unraisablehook", running._ask_again)

    class Ends:
        def __del__(self) -> None:
            raise KeyboardInterrupt  # where Python drops it

    def drop_one_and_wait() -> None:
        Ends()
        time.sleep(20)

    with pytest.raises(KeyboardInterrupt):
        drop_one_and_wait()


def test_debug_shows_where_a_failure_came_from(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TorchliftError, match="1 of 2 experiments failed"):
        main(["reproduce", "failing", "second", "--scale", "tiny", "--debug"])
    assert "in draw" in capsys.readouterr().err


def test_a_failure_alone_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        main(["reproduce", "failing", "--scale", "tiny"])


def test_all_runs_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reproduce, "EXPERIMENTS", {experiment.name: experiment for experiment in (Second(), Example())})
    status, out, _ = run(capsys, "all", "--scale", "tiny", "--json")
    assert status == 0
    assert [experiment["name"] for experiment in json.loads(out)["experiments"]] == ["second", "example"]


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # what rich takes for a terminal
    monkeypatch.setenv("COLUMNS", "120")
    _, _, err = run(capsys, "example", "--scale", "tiny", "--out", "a")
    assert "example" in err and "3/3" in err
    _, _, err = run(capsys, "example", "--scale", "tiny", "--out", "b", "--json")
    assert err == ""


def test_result_may_have_no_figures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Bare(Example):
        def run(self, work: Work) -> ExperimentResult:
            return ExperimentResult("Nothing was done.", [], [], {})

    monkeypatch.setattr(reproduce, "EXPERIMENTS", {"example": Bare()})
    status, out, err = run(capsys, "example", "--scale", "tiny")
    assert (status, err) == (0, "")
    assert "An example" in out
