"""Killed processes, full disks, two runs in one folder: nothing that was saved is lost."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from children import save, tensors_of
from forks import Forks
from torchlift.core.errors import DataError
from torchlift.io import Checkpoint, Checkpoints, load_tensors, save_tensors

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def children() -> Iterator[Forks]:
    children = Forks(Path(__file__).parents[1] / "children.py")
    yield children
    children.close()


def check_intact(checkpoint: Checkpoint) -> None:
    expected = tensors_of(checkpoint.step, checkpoint.tensors["weight"].numel())
    assert checkpoint.record == {"value": checkpoint.step}
    assert checkpoint.tensors.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in checkpoint.tensors.items())
    assert checkpoint.skipped == ()


def hidden_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith(".")}


def test_kill_at_random_moments(tmp_path: Path, children: Forks) -> None:
    moments = random.Random(0)
    for _ in range(10):
        process = children.start("save_forever", tmp_path)
        first = int(children.line())
        time.sleep(moments.uniform(0.0, 0.1))
        os.kill(process, signal.SIGKILL)
        *steps, status = children.end()
        assert status == f"status {-signal.SIGKILL}"
        last = max([first, *map(int, steps)])

        checkpoints = Checkpoints(tmp_path)
        checkpoint = checkpoints.load()
        check_intact(checkpoint)
        assert last <= checkpoint.step <= last + 1
        if last >= 3:
            best = checkpoints.load("best")
            check_intact(best)
            assert last - last % 3 <= best.step <= last + 1

    checkpoints.load()
    save(checkpoints, checkpoint.step + 1, best=True)
    assert checkpoints.steps() == [checkpoint.step, checkpoint.step + 1]
    assert hidden_names(tmp_path) == {".lock"}


@pytest.mark.parametrize("step", [3, 2], ids=["new", "replaced"])
def test_kill_before_every_use_of_the_file_system(tmp_path: Path, children: Forks, step: int) -> None:
    start = tmp_path / "start"
    save(Checkpoints(start, keep=1), 1, best=True)
    save(Checkpoints(start, keep=1), 2)
    seen: list[int] = []
    between_renames = 0
    for number in range(1000):
        folder = shutil.copytree(start, tmp_path / str(number))
        [status] = children.run("die_at_operation", folder, step, number)
        if status == "status 0":
            break
        assert status == f"status {-signal.SIGKILL}"
        for path in (*folder.glob("step-*"), *folder.glob("best-*")):
            load_tensors(path, kind="training")  # no half of a checkpoint under its name
        latest, best = Checkpoints(folder).load(), Checkpoints(folder).load("best")
        check_intact(latest)
        check_intact(best)
        assert best.step in ({1, step} if latest.step == 2 else {step})
        seen.append(latest.step)
        between_renames += not latest.path.exists()

        checkpoints = Checkpoints(folder)
        checkpoints.load()
        save(checkpoints, 4)
        assert checkpoints.steps() == [latest.step, 4]
        assert hidden_names(folder) == {".lock"}
    assert number > 20
    assert seen == sorted(seen)
    assert set(seen) == {2, step}
    assert between_renames == (1 if step == 2 else 0)


def test_a_system_that_refuses_to_write_more(tmp_path: Path, children: Forks) -> None:
    save(Checkpoints(tmp_path), 1)
    said, status = children.run("save_with_a_limit", tmp_path, 2, 100_000)
    assert status == "status 0"
    assert "step-00000002: expected to be able to write there, got" in said
    assert "File too large" in said
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "step-00000001"}
    check_intact(Checkpoints(tmp_path).load())


@pytest.mark.parametrize("call", range(6))
def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, best=True)
    calls = 0
    honest = os.fsync

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"got a full disk\. Make room or choose another folder") as caught:
        save(checkpoints, 2, best=True)
    assert isinstance(caught.value.__cause__, OSError)
    monkeypatch.undo()
    assert {name for name in hidden_names(tmp_path) if name.endswith(".new")} == set()
    for which in ("latest", "best"):
        check_intact(Checkpoints(tmp_path).load(which))
    check_intact(Checkpoints(tmp_path).load(1))
    save(checkpoints, 2, best=True)
    assert checkpoints.load("best").step == checkpoints.load().step == 2


def test_a_model_survives_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_tensors(tmp_path / "model", tensors_of(1), {"value": 1})

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match="got a full disk"):
        save_tensors(path, tensors_of(2), {"value": 2})
    assert load_tensors(path)[1] == {"value": 1}
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


def test_one_process_saves_and_others_may_load(tmp_path: Path, children: Forks) -> None:
    process = children.start("save_then_wait", tmp_path)
    assert children.line() == "saved"
    checkpoints = Checkpoints(tmp_path)
    check_intact(checkpoints.load())
    half_done = tmp_path / ".step-00000002.new"
    half_done.mkdir()
    for attempt in (checkpoints.claim, lambda: save(checkpoints, 2)):
        with pytest.raises(DataError, match=f"{tmp_path.name}: expected no other run that saves there") as caught:
            attempt()
        assert half_done.exists()  # the other process may be writing it
    assert "choose another folder" in str(caught.value)
    os.kill(process, signal.SIGKILL)
    children.end()
    save(checkpoints, 2)
    assert checkpoints.steps() == [1, 2]
    assert not half_done.exists()


def test_the_lock_lasts_as_long_as_its_last_user(tmp_path: Path, children: Forks) -> None:
    first, second = Checkpoints(tmp_path), Checkpoints(tmp_path)
    save(first, 1)
    save(second, 2)
    del first
    assert "no other run" in children.run("try_to_save", tmp_path, 3, 10)[0]
    del second
    assert children.run("try_to_save", tmp_path, 3, 10)[0] == "saved"


def test_a_forked_process_is_another_one(tmp_path: Path, children: Forks) -> None:
    said, _ = children.run("fork_while_holding", tmp_path)
    assert "expected no other run that saves there" in said
    assert Checkpoints(tmp_path).steps() == [1]
