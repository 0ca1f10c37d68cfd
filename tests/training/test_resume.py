"""Interrupted, killed and damaged runs: what comes out in the end is what an uninterrupted run gives, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from forks import Forks
from torchlift.core.errors import DataError, TorchliftError
from torchlift.core.solution import Result
from torchlift.functions.regularisers import Ridge
from torchlift.io import Checkpoints
from torchlift.liftings import Bregman, Conventional
from torchlift.training import History, Training, TrainingInterrupted, read_history
from training.runs import RUNS, SIZES, arguments, train

KILLS = 20
DATA, HELD_OUT = (arguments("sweep")[name] for name in ("data", "validation"))


class Crash(Exception):  # noqa: N818 (no error, but the end of a process)
    """Ends a run from inside a callback, as a crash would."""


def crash_at(step: int) -> Any:
    def callback(row: Any) -> None:
        if row["step"] >= step:
            raise Crash

    return callback


def parameters(result: Training) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in result.network.parameters()]


def rows(history: History) -> list[dict[str, Any]]:
    return [{**row, "seconds": None} for row in history.to_dicts()]


def check_same(one: Training, other: Training) -> None:
    assert all(torch.equal(a, b) for a, b in zip(parameters(one), parameters(other), strict=True))
    assert rows(one.history) == rows(other.history)
    assert one.best == other.best
    assert (one.steps, one.result) == (other.steps, other.result)


# -- the same as without a break --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_resumed_run_is_the_same(name: str, tmp_path: Path) -> None:
    """Crashes at several evaluations, so that checkpoints are of steps before, at and between them."""
    whole = train(name)
    for step in (3, 8, 10**6):
        try:
            result = train(name, tmp_path, resume=True, checkpoint_every=0.0, callback=crash_at(step))
        except Crash:
            continue
        check_same(result, whole)
    assert rows(read_history(tmp_path / "history.jsonl")) == rows(whole.history)


@pytest.mark.parametrize("name", ["sweep", "full", "SGD", "phases", "patience"])
def test_a_finished_run_is_not_trained_further(name: str, tmp_path: Path) -> None:
    whole = train(name, tmp_path)
    again = train(name, tmp_path, resume=True)
    check_same(again, whole)
    assert again.seconds == whole.seconds


@pytest.mark.parametrize(("name", "longer"), [("SGD", {"epochs": 7}), ("full, proximal", {"steps": 20})])
def test_a_finished_run_is_made_longer(name: str, longer: dict[str, int], tmp_path: Path) -> None:
    """Where steps do not depend on the length of the run, the result is that of the longer one."""
    short = train(name, tmp_path)
    whole = train(name, **longer)
    assert short.steps < whole.steps
    check_same(train(name, tmp_path, resume=True, **longer), whole)
    check_same(train(name, tmp_path, resume=True, **longer), whole)


@pytest.mark.parametrize("name", ["sweep", "back-propagation", "sweep, annealed", "implicit", "patience", "phases"])
def test_a_finished_run_goes_on(name: str, tmp_path: Path) -> None:
    """Also where steps had become as good as nothing: they are annealed anew to the end of the longer run."""
    whole = train(name, tmp_path)
    longer: dict[str, Any] = {"epochs": 8 if name == "implicit" else 30}
    if name == "phases":
        *first, last = RUNS[name]["phases"]
        longer = {"phases": [*first, replace(last, epochs=6)]}
    result = train(name, tmp_path, resume=True, **longer)
    if name == "patience":  # which has ended for another reason than its length
        check_same(result, whole)
        return
    assert result.result is Result.MAX_STEPS
    assert result.steps == (7 + 5 + 6 * 4 if name == "phases" else longer["epochs"] * 4)
    assert rows(result.history)[: len(whole.history)] == rows(whole.history)
    before, after = (min(each.history.column("loss", "validation")[1]) for each in (whole, result))
    assert after < before


@pytest.mark.usefixtures("clock")
def test_a_time_limit_is_made_longer(tmp_path: Path) -> None:
    short = train("SGD", tmp_path, epochs=None, time_limit=0.1)
    assert short.result is Result.TIME_LIMIT
    result = train("SGD", tmp_path, epochs=None, time_limit=0.3, resume=True)
    assert result.result is Result.TIME_LIMIT
    assert result.steps > short.steps
    assert 0.3 <= result.seconds < 0.4


def test_a_run_that_is_made_shorter_has_ended(tmp_path: Path) -> None:
    whole = train("sweep", tmp_path)
    check_same(train("sweep", tmp_path, resume=True, epochs=2), whole)


def test_between_two_phases(tmp_path: Path) -> None:
    """A crash after the last step of one phase and before the first checkpoint of the next."""
    whole = train("phases that converge")
    first = next(row for row in whole.history if row["phase"] == "SGD")["step"]
    with pytest.raises(Crash):
        train("phases that converge", tmp_path, callback=crash_at(first))
    (last,) = Checkpoints(tmp_path / "checkpoints").steps()[-1:]
    assert last < first
    check_same(train("phases that converge", tmp_path, resume=True), whole)


def test_a_callback_that_stops_after_the_last_step(tmp_path: Path) -> None:
    whole = train("sweep")
    stopped = train("sweep", tmp_path, callback=lambda row: row["step"] == whole.steps)
    assert stopped.result is Result.STOPPED
    check_same(train("sweep", tmp_path, resume=True), whole)


def test_loaders_and_draws(tmp_path: Path) -> None:
    y, x = arguments("sweep")["data"]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(y, x), batch_size=12, shuffle=True)

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        return y + 0.1 * torch.randn(y.shape, generator=generator), x

    for number, data in enumerate((loader, draw)):
        settings = {"data": data, "batch_size": None if data is loader else 12}
        with pytest.raises(Crash):
            train("sweep", tmp_path / str(number), callback=crash_at(9), checkpoint_every=0.0, **settings)
        result = train("sweep", tmp_path / str(number), resume=True, **settings)
        check_same(result, train("sweep", **settings))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("name", ["sweep", "phases"])
def test_kill_at_random_moments(name: str, tmp_path: Path, runs: Forks) -> None:
    """kill −9, wherever it comes: while writing, while stepping, before the first checkpoint."""
    whole = train(name)
    runs.start("run", name, tmp_path / "first")
    begun = time.monotonic()  # the process that forks has started
    runs.end()
    usual = time.monotonic() - begun
    shutil.rmtree(tmp_path)
    moments, killed = random.Random(name), 0
    while killed < KILLS // 2:
        process = runs.start("run", name, tmp_path)
        time.sleep(moments.uniform(0.0, usual))
        with suppress(ProcessLookupError):  # it was ready
            os.kill(process, signal.SIGKILL)
        status = runs.end()[-1]
        assert status in (f"status {-signal.SIGKILL}", "status 0")
        if status == "status 0":  # once more from the start
            check_same(train(name, tmp_path, resume=True), whole)
            shutil.rmtree(tmp_path)
        killed += status != "status 0"
    check_same(train(name, tmp_path, resume=True), whole)


# -- interruptions ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path, runs: Forks) -> None:
    process = runs.start("run_slowly", "sweep", tmp_path)
    for _ in range(3):
        runs.line()
    os.kill(process, signal.SIGINT)
    *lines, status = runs.end()
    assert status == "status 0"
    assert "interrupted from the keyboard" in lines[-1]
    assert f"To go on, call train with folder='{tmp_path}' and resume=True." in lines[-1]
    last = Checkpoints(tmp_path / "checkpoints").load()
    whole = train("sweep", epochs=400, callback=lambda row: row["step"] >= last.step + 4)
    result = train("sweep", tmp_path, resume=True, epochs=400, callback=lambda row: row["step"] >= last.step + 4)
    check_same(result, whole)


def test_the_handler_of_ctrl_c_is_given_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    train("sweep")
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_without_a_folder() -> None:
    def interrupt(row: Any) -> None:
        if row["step"] == 6 and row["kind"] == "train":
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(TrainingInterrupted, match="interrupted from the keyboard, after step 6") as caught:
        train("sweep", callback=interrupt)
    result = caught.value.result
    assert result.result is Result.INTERRUPTED
    assert result.steps == 6
    assert "resume" not in result.message
    stopped = train("sweep", callback=lambda row: row["step"] == 6)
    assert all(torch.equal(a, b) for a, b in zip(parameters(result), parameters(stopped), strict=True))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_one_run_per_folder(tmp_path: Path, runs: Forks) -> None:
    process = runs.start("run_slowly", "sweep", tmp_path)
    runs.line()
    with pytest.raises(DataError, match="no other run that saves there"):
        train("sweep", tmp_path, resume=True)
    os.kill(process, signal.SIGKILL)
    runs.end()


# -- damage -----------------------------------------------------------------------------------------------------------


def interrupted(folder: Path, step: int = 8) -> list[Path]:
    """Checkpoints of a run that crashed, the newest last."""
    with pytest.raises(Crash):
        train("sweep", folder, checkpoint_every=0.0, callback=crash_at(step), keep=3)
    return sorted((folder / "checkpoints").glob("step-*"))


@pytest.mark.parametrize("damage", ["truncated", "tampered", "record", "empty"])
def test_a_damaged_checkpoint_is_left_out(damage: str, tmp_path: Path) -> None:
    newest = interrupted(tmp_path)[-1]
    file = newest / ("record.json" if damage == "record" else "tensors.safetensors")
    content = file.read_bytes()
    if damage == "tampered":
        middle = len(content) // 2
        content = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    file.write_bytes({"truncated": content[:-7], "record": content[:-7], "empty": b""}.get(damage, content))
    result = train("sweep", tmp_path, resume=True)
    assert "A checkpoint was left out: " in result.message
    assert newest.name in result.message
    check_same(result, train("sweep"))


def test_no_intact_checkpoint(tmp_path: Path) -> None:
    for path in interrupted(tmp_path):
        (path / "record.json").write_text("{}")
    with pytest.raises(DataError, match=r"expected an intact checkpoint.*step-0000000"):
        train("sweep", tmp_path, resume=True)


def test_a_crash_before_the_first_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Crash):
        train("sweep", tmp_path, callback=crash_at(6))
    assert len(read_history(tmp_path / "history.jsonl")) > 0
    assert Checkpoints(tmp_path / "checkpoints").steps() == []
    result = train("sweep", tmp_path, resume=True)
    check_same(result, train("sweep"))
    assert rows(read_history(tmp_path / "history.jsonl")) == rows(result.history)


def test_resume_in_an_empty_folder(tmp_path: Path) -> None:
    check_same(train("sweep", tmp_path / "new", resume=True), train("sweep"))


@pytest.mark.parametrize("rows_only", [True, False])
def test_a_new_run_needs_a_new_folder(rows_only: bool, tmp_path: Path) -> None:
    train("sweep", tmp_path)
    if rows_only:
        shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(DataError, match=r"records in it.*resume=True, or choose another folder"):
        train("sweep", tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize(
    ("room", "every", "name"), [(10**4, 0, "step-"), (100, 60, "history.jsonl"), (-100, 60, "history.jsonl")]
)
def test_a_full_disk(room: int, every: float, name: str, tmp_path: Path, runs: Forks) -> None:
    """While a checkpoint, a row of the history or the history itself is written; what was saved before is intact."""
    saved = {path.name for path in interrupted(tmp_path)}
    size = (tmp_path / "history.jsonl").stat().st_size + room
    runs.start("run_with_a_limit", "sweep", tmp_path, size, every)
    said, status = runs.end()
    assert status == "status 0"
    assert name in said
    assert "expected to be able to write there, got" in said
    assert "Make room or choose another folder; what was saved before is intact." in said
    assert saved <= {path.name for path in (tmp_path / "checkpoints").glob("step-*")}
    check_same(train("sweep", tmp_path, resume=True), train("sweep"))


# -- other settings ---------------------------------------------------------------------------------------------------


TERMS: dict[str, Any] = {
    "state_regularisers": Ridge(0.1), "parameter_regularisers": {"*": Ridge(0.1)}, "coupling": 1.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that crashed, for tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("crashed")
    interrupted(folder)
    return folder


@pytest.fixture(scope="module")
def crashed_terms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with all terms of the objective."""
    folder = tmp_path_factory.mktemp("terms")
    with pytest.raises(Crash):
        train("implicit", folder, checkpoint_every=0.0, callback=crash_at(6), **TERMS)
    return folder


@contextmanager
def left_alone(folder: Path) -> Iterator[None]:
    """Every file is the same afterwards, byte for byte, so that the run can still be resumed."""
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    assert before
    yield
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lifting": Bregman(2.0)}, r"phases 1 lifting: expected None, got Bregman\(mu=2.0\)"),
        ({"lifting": Conventional(), "solver": torch.optim.Adam}, "phases 1 lifting: expected None"),
        ({"seed": 1}, "seed: expected 0, got 1"),
        ({"batch_size": 13}, "batch_size: expected 12, got 13"),
        ({"loss": tl.losses.Huber(0.5)}, "loss: expected SquaredError"),
        ({"patience": 3}, "patience: expected None, got 3"),
        ({"tolerance": 0.1}, "tolerance: expected None, got 0.1"),
        ({"evaluate_every": 3}, "evaluate_every: expected 2, got 3"),
        ({"metrics": "mse"}, "metrics"),
        ({"network": tl.networks.MLP([6, 9, 8, 3])}, r"parameters .*: expected"),
        ({"validation": None}, "validation samples: expected 10, got None"),
        ({"network": tl.networks.MLP(SIZES, activation=tl.Tanh())}, "layers 1: expected ReLU, got Tanh"),
        ({"data": (-DATA[0], DATA[1])}, "data: expected"),
        ({"data": (DATA[0], -DATA[1])}, "data: expected"),
        ({"validation": (-HELD_OUT[0], HELD_OUT[1])}, "validation data: expected"),
        ({"phases": [tl.Phase(steps=2), tl.Phase(steps=2)]}, "phases"),
    ],
)
def test_other_settings_are_refused(changes: dict[str, Any], words: str, crashed: Path) -> None:
    with left_alone(crashed), pytest.raises(TorchliftError, match=f"resumed run: .*{words}"):
        train("sweep", crashed, resume=True, **changes)


def test_another_threshold_is_refused(tmp_path: Path) -> None:
    networks = [tl.networks.MLP(SIZES, activation=tl.SoftThreshold(number)) for number in (0.1, 0.2)]
    with pytest.raises(Crash):
        train("sweep", tmp_path, network=networks[0], checkpoint_every=0.0, callback=crash_at(8))
    with pytest.raises(
        TorchliftError, match=r"resumed run: layers 1: expected SoftThreshold.*0\.1.*SoftThreshold.*0\.2"
    ):
        train("sweep", tmp_path, network=networks[1], resume=True)


def test_another_module_is_refused(tmp_path: Path) -> None:
    def module(activation: nn.Module, rate: float = 0.1) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), activation, nn.Dropout(rate), nn.Linear(8, 3))

    with pytest.raises(Crash):
        train("sweep", tmp_path, network=module(nn.ReLU()), checkpoint_every=0.0, callback=crash_at(8))
    with pytest.raises(TorchliftError, match=r"resumed run: layers .*ReLU\(\), got .*Tanh\(\)"):
        train("sweep", tmp_path, network=module(nn.Tanh()), resume=True)
    with pytest.raises(TorchliftError, match=r"resumed run: layers .*p=0.1.* got .*p=0.2"):
        train("sweep", tmp_path, network=module(nn.ReLU(), 0.2), resume=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"coupling": 2.0}, "coupling: expected 1.0, got 2.0"),
        ({"state_regularisers": Ridge(0.2)}, r"state_regularisers: expected Ridge\(weight=0.1\), got Ridge"),
        ({"parameter_regularisers": {"*": Ridge(0.2)}}, r"parameter_regularisers: .*0.1.* got .*0.2"),
        ({"states": "input"}, "states: expected forward, got input"),
    ],
)
def test_other_terms_of_the_objective_are_refused(changes: dict[str, Any], words: str, crashed_terms: Path) -> None:
    with left_alone(crashed_terms), pytest.raises(TorchliftError, match=f"resumed run: .*{words}"):
        train("implicit", crashed_terms, resume=True, **(TERMS | changes))


def test_a_run_goes_on_after_a_refusal(crashed_terms: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(crashed_terms, tmp_path / "run")
    with pytest.raises(TorchliftError, match=r"resumed run: .*coupling"):
        train("implicit", folder, resume=True, **(TERMS | {"coupling": 2.0}))
    check_same(train("implicit", folder, resume=True, **TERMS), train("implicit", **TERMS))


def test_settings_that_may_change(tmp_path: Path) -> None:
    interrupted(tmp_path)
    result = train("sweep", tmp_path, resume=True, keep=1, checkpoint_every=1.0, progress=False)
    check_same(result, train("sweep"))


def test_functions_are_the_same_in_another_process(tmp_path: Path) -> None:
    """Where they lie in memory does not count."""

    def make() -> Any:
        return lambda parameters: torch.optim.SGD(parameters, lr=0.1)

    first, second = make(), make()
    assert repr(first) != repr(second)
    with pytest.raises(Crash):
        train("sweep", tmp_path, lifting=Conventional(), solver=first, callback=crash_at(6), checkpoint_every=0.0)
    result = train("sweep", tmp_path, lifting=Conventional(), solver=second, resume=True)
    check_same(result, train("sweep", lifting=Conventional(), solver=first))


def test_checkpoints_are_json_and_safetensors(tmp_path: Path) -> None:
    newest = interrupted(tmp_path)[-1]
    assert {path.name for path in newest.iterdir()} == {"record.json", "tensors.safetensors"}
    record = json.loads((newest / "record.json").read_text())["content"]["record"]["record"]
    assert record["configuration"]["seed"] == 0
    assert record["state"]["steps"] == int(newest.name.removeprefix("step-"))
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "history.jsonl"}
    assert len(list((tmp_path / "checkpoints").glob("step-*"))) == 3


def test_tensorboard_events_of_a_resumed_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with pytest.raises(Crash):
        train("sweep", tmp_path, tensorboard=True, checkpoint_every=0.0, callback=crash_at(8))
    train("sweep", tmp_path, tensorboard=True, resume=True)
    assert list((tmp_path / "tensorboard").glob("events*"))
