"""The soak: disturbed training ends where undisturbed training ends, and what would spoil that is seen."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import torchlift.lab.soak.child
from cli.runs import TINY
from forked_commands import popen
from torchlift.cli import main
from torchlift.core.errors import TorchliftError
from torchlift.io import Checkpoints
from torchlift.lab.soak import soak
from torchlift.lab.soak.child import KINDS, Child, disturb, last_step

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the soak needs Linux")
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training run of four steps."""
    folder = tmp_path_factory.mktemp("soak")
    (folder / "tiny.toml").write_text(TINY, encoding="utf-8")
    assert main(["train", str(folder / "tiny.toml"), "--out", str(folder / "run"), "--json"]) == 0
    return folder / "run"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_short_soak(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """With processes that are quick to start; others of this file start as users' do."""
    known = {name: getattr(subprocess, name) for name in ("PIPE", "DEVNULL", "TimeoutExpired")}
    monkeypatch.setattr(torchlift.lab.soak.child, "subprocess", SimpleNamespace(Popen=popen, **known))
    assert main(["soak", "--minutes", "0.04", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "yes  ends with the same numbers" in shown
    record = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    assert record["passed"] and {event["kind"] for event in record["disturbances"]} == set(KINDS)
    [full] = [event for event in record["disturbances"] if event["kind"] == "full disk"][:1]
    assert full["status"] == 2 and full["said"].startswith("torchlift: ")
    [killed] = [event for event in record["disturbances"] if event["kind"] == "kill"][:1]
    assert killed["status"] == -signal.SIGKILL
    claims = {claim["statement"]: claim["passed"] for claim in record["claims"]}
    assert claims == {
        "disturbed in every way": True,
        "came back every time": True,
        "ends with the same numbers": True,
        "memory grows by less than 1%": None,
    }
    assert Checkpoints(tmp_path / "disturbed" / "checkpoints").load().step == record["steps"]

    assert main(["soak", "--minutes", "0.04", "--out", str(tmp_path)]) == 2
    assert "expected a folder without an earlier soak, got undisturbed/" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [(["--minutes", "0"], "--minutes: expected a number > 0"), (["--seed", "-1"], "a whole number >= 0, got -1")],
)
def test_bad_options(capsys: Capture, arguments: list[str], reason: str) -> None:
    assert main(["soak", *arguments]) == 2
    assert reason in capsys.readouterr().err


def test_a_failed_soak_has_a_status_of_its_own(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claim = {"statement": "came back every time", "passed": False, "detail": "status 1"}
    record = {"steps": 1, "rounds": 1, "seconds": 1.0, "disturbances": [], "claims": [claim], "passed": False}
    monkeypatch.setattr(soak, "soak", lambda *_: record)
    assert main(["soak", "--out", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert "NO  came back every time" in shown.out
    assert shown.err.strip().endswith("torchlift: soak: not true: came back every time.")


def test_growth_is_that_of_the_line() -> None:
    seconds = [0.5 * i for i in range(200)]
    noise = random.Random(0)
    flat = [(second, 300.0 + noise.uniform(-1, 1)) for second in seconds]
    assert abs(soak.growth(flat)) < 0.002
    leaking = [(second, size + 0.1 * second) for second, size in flat]
    assert soak.growth(leaking) == pytest.approx(0.1 * seconds[-1] / 305, rel=0.05)
    assert soak.growth([(0.0, 1.0)]) == 0.0


def test_a_leak_is_judged() -> None:
    steady = [(float(second), 300.0) for second in range(100)]
    assert soak._memory(steady).passed is True
    assert soak._memory([(second, size + 0.05 * second) for second, size in steady]).passed is False
    assert soak._memory(steady[:50]).passed is None


def test_memory_of_a_process_is_seen() -> None:
    code = "import time; kept = bytearray(50 << 20); print('x', flush=True); time.sleep(60)"
    child = Child.__new__(Child)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        child.process = process  # type: ignore[assignment]
        size = child.memory()
        process.kill()
    assert size is not None and 50 < size < 80
    assert child.memory() is None


def test_every_difference_is_seen(run: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run, tmp_path / "other")
    assert soak.differences(run, other) == []
    history = other / "history.jsonl"
    rows = [json.loads(line) for line in history.read_text(encoding="utf-8").splitlines()]
    rows[0]["seconds"] += 1.0
    history.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert soak.differences(run, other) == []
    rows[0]["loss"] *= 1.0 + 1e-12
    history.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert soak.differences(run, other) == [f"histories of {len(rows)} and {len(rows)} rows"]
    checkpoints = Checkpoints(other / "checkpoints")
    found = checkpoints.load()
    tensors = {name: tensor.clone() for name, tensor in found.tensors.items()}
    changed = next(name for name, tensor in tensors.items() if name.startswith("network.") and tensor.numel())
    first = tensors[changed].flatten()[:1]
    tensors[changed].view(-1)[:1] = torch.nextafter(first, first + 1)
    checkpoints.save(found.step, tensors, found.record)
    assert f"checkpoint {changed}" in soak.differences(run, other)


def test_a_child_that_was_killed_or_ended_by_itself(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with Child(["demo"]) as child:
        event = disturb("kill", child, tmp_path / "run", random.Random(0), since=time.monotonic(), before=0)
    assert event is not None and event.expected and event.status == -signal.SIGKILL and not event.training
    assert event.step == last_step(tmp_path / "run") == 0
    with Child(["--version"]) as child:
        child.end()
        assert disturb("kill", child, tmp_path / "run", random.Random(0), since=0.0, before=0) is None


def test_an_undisturbed_child_that_fails_is_an_error() -> None:
    said = r"to end well, got status 2\. torchlift: command: expected"
    with Child(["no-such-command"]) as child, pytest.raises(TorchliftError, match=said):
        child.answer()
