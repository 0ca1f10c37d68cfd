"""A run stopped on one mesh goes on with any other, or alone; broken checkpoints are told and left out."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from parallel import saving
from parallel.world import run
from torchlift.io import Checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saving")


@pytest.fixture(scope="module")
def answers(root: Path) -> list[dict[str, Any]]:
    for name, mesh, _ in saving.MOVES:
        if mesh == "alone" and not (folder := saving.place(root, name, mesh)).exists():
            assert saving.stop(name, folder) == saving.STOP
    return run(root / "world", 4, "saving", str(root), seconds=280)


@pytest.fixture(scope="module")
def expected() -> dict[str, torch.Tensor]:
    """The parameters of runs without a break, by one process."""
    return {name: torch.tensor(saving.parameters(saving.train(name)), dtype=torch.float64) for name in saving.RUNS}


@pytest.mark.parametrize(("name", "before", "after"), saving.MOVES)
def test_save_on_one_mesh_and_resume_on_another(
    name: str, before: str, after: str, root: Path, answers: list[dict[str, Any]], expected: dict[str, torch.Tensor]
) -> None:
    if before != "alone":
        assert [answer[f"stop {name} {before}"] for answer in answers] == [saving.STOP] * 4
    if after == "alone":
        folder = saving.place(root, name, before)
        copy = shutil.copytree(folder, folder.with_name(f"{folder.name} alone"))
        found = [saving.parameters(saving.train(name, copy, resume=True))]
    else:
        found = [answer[f"{name}: {before} to {after}"] for answer in answers]
    for parameters in found:
        assert not isinstance(parameters, str), parameters
        # exact steps leave parameters as large as 10,000
        difference = (torch.tensor(parameters, dtype=torch.float64) - expected[name]).abs().max()
        assert float(difference) <= 1e-10 * max(1.0, float(expected[name].abs().max()))


def test_nothing_is_written_twice(root: Path, answers: list[dict[str, Any]]) -> None:
    """The shards together are hardly larger than the file of a single process, and equally large among themselves."""
    many, one = (saving.place(root, "lifted", mesh) / "checkpoints" for mesh in ("data=2,layers=2", "alone"))
    folder = many / f"step-{saving.STOP:08d}"
    content = json.loads((folder / "record.json").read_text())["content"]
    assert (content["format"], content["mesh"]) == (2, "data=2,layers=2")
    assert {shard["file"] for shard in content["shards"]} == {f.name for f in folder.iterdir()} - {"record.json"}
    single, shared = Checkpoints(one).load(), Checkpoints(many).load()
    assert {name: t.shape for name, t in single.tensors.items()} == {n: t.shape for n, t in shared.tensors.items()}
    for entry in content["tensors"].values():
        sizes = [math.prod(stop - first for first, stop in piece["slice"]) for piece in entry["pieces"]]
        assert sum(sizes) == math.prod(entry["shape"])
    assert all(shard["size"] > 1000 for shard in content["shards"])


def test_a_damaged_shard_is_told_and_left_out(answers: list[dict[str, Any]], expected: dict[str, torch.Tensor]) -> None:
    for answer in answers:
        said, parameters = answer["damaged"]
        assert "A checkpoint was left out: rank 3: " in said
        assert "shard-00004-of-00004.safetensors: expected the SHA-256 that its record states, got another." in said
        assert float((torch.tensor(parameters, dtype=torch.float64) - expected["lifted"]).abs().max()) <= 1e-10


def test_missing_and_torn_shards_are_refused(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["all damaged"].startswith("error DataError")
        assert "expected an intact checkpoint, got" in answer["all damaged"]
        assert "a readable record.json and what belongs to it, got no such file or folder" in answer["all damaged"]
        assert "shard-00003-of-00004.safetensors: expected" in answer["all damaged"]


def test_a_full_disk_of_one_rank_stops_all_and_loses_nothing(answers: list[dict[str, Any]]) -> None:
    for rank, answer in enumerate(answers):
        said, *names = answer["full disk"]
        assert "got a full disk. Make room or choose another folder" in said
        assert rank == 3 or said.startswith("rank 3 (")
        assert names == [".lock", "step-00000001"]


def test_the_last_ones_are_kept(answers: list[dict[str, Any]]) -> None:
    assert all(answer["kept"] == [6, 7, 8, 8] for answer in answers)
