# pyright: reportPrivateImportUsage=false
"""`torchlift train --mesh` under torchrun: whoever is killed, the run ends as that of one process does."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from parallel.jobs import CONFIG, Job
from torchlift.cli import main
from torchlift.io import load_model
from torchlift.parallel import MeshError
from torchlift.parallel.agreement import attempt
from torchlift.training import read_history

#: A seed: then ranks are killed ten times, and one is stopped, which takes minutes.
KILLS = os.environ.get("TORCHLIFT_KILLS")

many = pytest.mark.skipif(KILLS is None, reason="takes minutes; TORCHLIFT_KILLS=<seed> asks for it")
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="finds the processes in /proc")


def compare(one: Path, other: Path, tolerance: float) -> None:
    pairs = zip(load_model(one / "model").parameters(), load_model(other / "model").parameters(), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)
    rows = [[(row["kind"], row["step"]) for row in read_history(run / "history.jsonl")] for run in (one, other)]
    assert rows[0] == rows[1]


@needs_proc
@pytest.mark.timeout(300)
def test_two_kills_in_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One before anything is saved, one in the middle."""
    config, chosen = tmp_path / "config.toml", random.Random(1)
    config.write_text(CONFIG["data"])
    job = Job(config, tmp_path / "two", "data=2", 2, restarts=2)
    try:
        assert main(["train", str(config), "--out", str(tmp_path / "one")]) == 0
        capsys.readouterr()
        kills = [job.kill(chosen, step) for step in (0, 4)]
    finally:
        code = job.end(200)
    assert code == 0, job.said.read_text()
    assert None not in kills
    assert job.said.read_text().count("Trained 12 steps") == 1
    compare(tmp_path / "one", tmp_path / "two", 1e-10)


def test_without_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG["data"])
    assert main(["train", str(config), "--mesh", "data=2,layers=2"]) == 2
    assert "processes started by torchrun, got none. Start with 'torchrun --nproc-per-node 4" in capsys.readouterr().err


@many
@needs_proc
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "mesh", "processes"), [("data", "data=2", 2), ("layers", "data=2,layers=2", 4)])
def test_ten_kills(kind: str, mesh: str, processes: int, tmp_path: Path) -> None:
    """Five per mesh, of random ranks at random steps; bitwise the parameters of a job that nobody disturbs."""
    config, chosen = tmp_path / "config.toml", random.Random(KILLS)
    config.write_text(CONFIG[kind])
    calm = Job(config, tmp_path / "calm", mesh, processes, restarts=0)
    assert calm.end(400) == 0, calm.said.read_text()
    job = Job(config, tmp_path / "disturbed", mesh, processes, restarts=5)
    try:
        steps = sorted([0, *(chosen.randrange(1, calm.step() - 1) for _ in range(4))])
        kills = [job.kill(chosen, step) for step in steps]
    finally:
        code = job.end(800)
    assert code == 0, job.said.read_text()
    assert None not in kills
    compare(tmp_path / "calm", tmp_path / "disturbed", 0.0)


@many
@needs_proc
@pytest.mark.timeout(600)
def test_a_stopped_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It answers nobody; the others give up and name it, and all start again."""
    config, chosen = tmp_path / "config.toml", random.Random(KILLS)
    config.write_text(CONFIG["data"])
    job = Job(config, tmp_path / "two", "data=2", 2, restarts=1, timeout=20)
    try:
        assert job.kill(chosen, 3, signal.SIGSTOP) is not None
        assert main(["train", str(config), "--out", str(tmp_path / "one")]) == 0
        capsys.readouterr()
    finally:
        code = job.end(400)
    said = job.said.read_text()
    assert code == 0, said
    assert re.search(r"got no answer from rank [01]", said)
    compare(tmp_path / "one", tmp_path / "two", 1e-10)


def test_a_store_that_remembers_the_dead() -> None:
    """Ranks that ask before rank 0 has come, in a store with answers to earlier ones."""
    store, names = dist.HashStore(), []
    for _ in range(3):
        with ThreadPoolExecutor(3) as ranks:
            found = list(ranks.map(lambda rank: attempt(store, rank, 3, 20.0), (2, 1, 0)))
        assert len(set(found)) == 1
        names.append(found[0])
        store.set("torchlift/asks/1", "somebody who was killed")
    assert len(set(names)) == 3


def test_whoever_does_not_come_is_named() -> None:
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(MeshError, match=r"rank 0: expected all processes to start within 0\.1 s, .* rank 1, rank 2\. "):
        attempt(store, 0, 3, 0.1)
    with pytest.raises(MeshError, match=r"rank 2: expected all .* within 0\.1 s, got no sign of rank 0"):
        attempt(store, 2, 3, 0.1)
