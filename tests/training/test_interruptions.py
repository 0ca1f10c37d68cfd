"""Signals, wrong callbacks, folders, and what a run says: the manners of `tl.train`."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import torchlift as tl
from forks import Forks
from torchlift.core.errors import TorchliftError
from torchlift.core.solution import Result
from torchlift.io import Checkpoints
from torchlift.liftings import Bregman, Conventional
from torchlift.training import TrainingInterrupted
from training.runs import arguments, train
from training.test_resume import check_same

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def send_at(step: int, number: int, times: int = 1) -> Any:
    def callback(row: Any) -> None:
        if row["step"] == step and row["kind"] == "train":
            for _ in range(times):
                signal.raise_signal(number)

    return callback


# -- signals ----------------------------------------------------------------------------------------------------------


@needs_fork
@pytest.mark.parametrize("name", ["sweep", "implicit", "warm"])
def test_sigterm_saves_and_ends_the_process(name: str, tmp_path: Path, runs: Forks) -> None:
    """As it does where nobody listens, so that queueing systems see what they expect; and nothing is lost."""
    process = runs.start("run_slowly", name, tmp_path)
    for _ in range(3):
        runs.line()
    os.kill(process, signal.SIGTERM)
    lines = runs.end()
    assert lines[-1] == f"status {-signal.SIGTERM}"
    last = Checkpoints(tmp_path / "checkpoints").load()
    assert last.step >= int(lines[-2] if len(lines) > 1 else 0)

    def stop(row: Any) -> bool:
        return row["step"] >= last.step + 4

    whole = train(name, epochs=400, callback=stop)
    check_same(train(name, tmp_path, resume=True, epochs=400, callback=stop), whole)


@needs_fork
def test_sigterm_without_a_folder(runs: Forks) -> None:
    process = runs.start("run_slowly", "sweep", "")
    runs.line()
    os.kill(process, signal.SIGTERM)
    assert runs.end()[-1] == f"status {-signal.SIGTERM}"


def test_someone_elses_handler_of_sigterm_is_called_after_saving(tmp_path: Path) -> None:
    heard: list[int] = []

    def handler(number: int, frame: object) -> None:
        assert Checkpoints(tmp_path / "checkpoints").steps() == [6]
        heard.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(TrainingInterrupted) as caught:
            train("sweep", tmp_path, callback=send_at(6, signal.SIGTERM))
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert caught.value.result.steps == 6
    check_same(train("sweep", tmp_path, resume=True), train("sweep"))


def test_ctrl_c_stops_a_loop_of_trainings(tmp_path: Path) -> None:
    """Not only the training that was running."""
    begun: list[int] = []

    def loop() -> None:
        for number in range(5):
            begun.append(number)
            train("sweep", tmp_path / str(number), callback=send_at(6, signal.SIGINT) if number == 1 else None)

    with pytest.raises(KeyboardInterrupt) as caught:
        loop()
    assert begun == [0, 1]
    assert isinstance(caught.value, TrainingInterrupted)
    assert not isinstance(caught.value, Exception)
    result = caught.value.result
    assert result.result is Result.INTERRUPTED
    assert f"folder='{tmp_path / '1'}' and resume=True" in str(caught.value)
    check_same(train("sweep", tmp_path / "1", resume=True), train("sweep", tmp_path / "0", resume=True))


def test_the_best_parameters_are_there_after_ctrl_c() -> None:
    settings = arguments("SGD")
    network, held_out = settings["network"], settings["validation"]
    uphill = partial(torch.optim.SGD, lr=1e-3, maximize=True)
    before = [parameter.detach().clone() for parameter in network.parameters()]
    with pytest.raises(TrainingInterrupted) as caught:
        tl.train(**{**settings, "solver": uphill}, metrics="loss", callback=send_at(8, signal.SIGINT))
    assert caught.value.result.network is network
    assert caught.value.result.best["step"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert len(held_out[0]) == 10


def test_a_second_ctrl_c_acts_at_once(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt) as caught:
        train("sweep", tmp_path, callback=send_at(6, signal.SIGINT, times=2))
    assert not isinstance(caught.value, TrainingInterrupted)
    assert signal.getsignal(signal.SIGINT) is before
    check_same(train("sweep", tmp_path, resume=True), train("sweep"))


def test_training_in_a_thread_leaves_signals_alone() -> None:
    before, found = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        found.append(train("sweep", callback=lambda row: found.append(signal.getsignal(signal.SIGTERM))))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert all(each is before for each in found[:-1])
    check_same(found[-1], train("sweep"))


# -- callbacks and folders --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("callback", [lambda: None, lambda one, two: None, "print", 3])
def test_a_wrong_callback_fails_before_anything_is_trained(callback: Any, tmp_path: Path) -> None:
    settings = arguments("sweep")
    network = settings["network"]
    before = [parameter.detach().clone() for parameter in network.parameters()]
    with pytest.raises(TorchliftError, match="train callback: expected a function of one row of the history"):
        train("sweep", tmp_path / "run", network=network, callback=callback)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert not (tmp_path / "run").exists()


def test_callbacks_of_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    class Counter:
        count = 0

        def __call__(self, row: Any, *others: Any, **more: Any) -> None:
            self.count += 1

        def method(self, row: Any, more: int = 0) -> None:
            self.count += 1

    counter = Counter()
    for callback in (counter, counter.method, partial(lambda word, row: None, "word"), [].append, print):
        train("sweep", epochs=1, callback=callback)
    assert counter.count == 2 * 2 * 2  # of two evaluations each, a row for training and one for validation
    assert capsys.readouterr().out.count("'kind': 'validation'") == 2


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    result = train("sweep", "~/runs/first")
    assert result.folder == tmp_path / "home" / "runs" / "first"
    assert (result.folder / "history.jsonl").exists()
    check_same(train("sweep", Path("~/runs/first"), resume=True), result)
    train("warm", state_storage="~/states")
    assert (tmp_path / "home" / "states").is_dir()
    assert {path.name for path in tmp_path.iterdir()} == {"home"}


# -- what is said -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sweep", "full", "SGD", "exact", "contrastive"])
def test_the_message_names_the_last_loss_without_validation(name: str) -> None:
    result = train(name, validation=None)
    assert f" Last loss: {result.history['loss'][-1]:.4g}." in result.message
    with_validation = train(name)
    assert "Last loss" not in with_validation.message
    assert f" Best loss: {with_validation.best['value']:.4g} at step " in with_validation.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("constant", "train data inputs: expected samples that differ, got the same for every sample"),
        ("large", "train data inputs: .*Standardise"),
        ("targets", "train data targets: .*Standardise"),
    ],
)
@pytest.mark.parametrize("kind", ["tensors", "loader"])
def test_a_warning_about_the_scale_is_given_once(change: str, words: str, kind: str) -> None:
    y, x = arguments("sweep")["data"]
    y = {"constant": y[:1].expand_as(y), "large": 1e5 * y}.get(change, y)
    x = 1e5 * x if change == "targets" else x
    data: Any = (y, x)
    if kind == "loader":
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(y, x), batch_size=12)
    phases = [tl.Phase(steps=4, weights="keep"), tl.Phase(Conventional(), steps=4)]
    with pytest.warns(UserWarning, match=words) as caught:
        train("phases", data=data, validation=(y, x), phases=phases, batch_size=None if kind == "loader" else 12)
    (found,) = [each for each in caught if "train data" in str(each.message)]
    assert found.filename.endswith("runs.py")  # where `tl.train` was called


@pytest.mark.parametrize("lifting", [None, Bregman()])
def test_no_warning_about_usual_data(lifting: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train("sweep", lifting=lifting, epochs=1)
