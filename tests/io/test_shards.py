"""Files of many processes: any slice of any tensor is read from whatever pieces it was written in."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from torchlift.core.errors import DataError
from torchlift.io import Checkpoints, LocalShard, ShardedTensor, load_tensors, write_index, write_shard
from torchlift.io.stored import Slices, everywhere, open_stored


def taken(tensor: Tensor, slices: Slices) -> Tensor:
    return tensor[tuple(slice(first, stop) for first, stop in slices)]


Piece = tuple[str, ShardedTensor]


def cut(name: str, tensor: Tensor, cuts: Sequence[Sequence[int]]) -> list[Piece]:
    """Pieces of a tensor, cut at these places of each dimension."""
    parts = [
        list(pairwise([0, *sorted({c for c in places if 0 < c < size}), size]))
        for places, size in zip(cuts, tensor.shape, strict=True)
    ]
    shards = [LocalShard(slices, taken(tensor, slices)) for slices in product(*parts)]
    return [(name, ShardedTensor(tuple(tensor.shape), (shard,))) for shard in shards]


def whole(name: str, tensor: Tensor, written: bool = True) -> Piece:
    return name, ShardedTensor.whole(tensor, written)


def held(pieces: Sequence[Piece]) -> dict[str, ShardedTensor]:
    """What one process holds of all tensors."""
    tensors: dict[str, ShardedTensor] = {}
    for name, piece in pieces:
        local = tensors[name].local if name in tensors else ()
        tensors[name] = ShardedTensor(piece.shape, (*local, *piece.local))
    return tensors


def write(folder: Path, shards: Sequence[Sequence[Piece]], record: dict[str, Any] | None = None) -> None:
    folder.mkdir(exist_ok=True)
    entries = [write_shard(folder, number, len(shards), held(pieces)) for number, pieces in enumerate(shards)]
    write_index(folder, json.loads(json.dumps(entries)), "data=2", record or {}, "training")


@given(data=st.data())
def test_any_slice_from_any_pieces(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
    dtype = data.draw(st.sampled_from([torch.float64, torch.bfloat16, torch.int64, torch.bool]))
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    pieces = cut("x", tensor, [data.draw(st.lists(st.integers(0, 5), max_size=2)) for _ in shape])
    count = data.draw(st.integers(1, 4))
    owners = [data.draw(st.integers(0, count - 1)) for _ in pieces]
    ends = [sorted(data.draw(st.tuples(st.integers(0, size), st.integers(0, size)))) for size in shape]
    wanted = tuple((first, stop) for first, stop in ends)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        write(path, [[p for p, owner in zip(pieces, owners, strict=True) if owner == n] for n in range(count)])
        stored, _ = open_stored(path, "training")
        assert stored.shape("x") == tuple(shape)
        assert torch.equal(stored.part("x", wanted), taken(tensor, wanted))
        assert stored.part("x", wanted).dtype == dtype
        loaded, _ = load_tensors(path, kind="training")
        assert torch.equal(loaded["x"], tensor)


def two_shards(folder: Path) -> None:
    x, y = torch.arange(12.0).view(4, 3), torch.tensor(7)
    first, second = cut("x", x, [[2], []])
    write(folder, [[first, whole("y", y), whole("x copy", x, written=False)], [second]], {"value": 1})


def content_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "record.json").read_text())["content"]


def test_the_index_is_plain_json(tmp_path: Path) -> None:
    two_shards(tmp_path)
    content = content_of(tmp_path)
    assert (content["format"], content["kind"], content["mesh"]) == (2, "training", "data=2")
    assert content["tensors"] == {
        "x": {
            "shape": [4, 3],
            "pieces": [{"shard": 0, "slice": [[0, 2], [0, 3]]}, {"shard": 1, "slice": [[2, 4], [0, 3]]}],
        },
        "y": {"shape": [], "pieces": [{"shard": 0, "slice": []}]},
    }
    for shard in content["shards"]:
        file = tmp_path / shard["file"]
        assert shard["size"] == file.stat().st_size
        assert shard["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_names_by_their_beginning(tmp_path: Path) -> None:
    write(tmp_path, [[whole("a.x", torch.ones(2)), whole("b.x", torch.zeros(3))]])
    stored = open_stored(tmp_path, "training")[0].under("b.")
    assert list(stored) == ["x"]
    assert len(stored) == 1
    assert "x" in stored and "b.x" not in stored
    assert stored["x"].tolist() == [0, 0, 0]


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    two_shards(tmp_path)
    stored, _ = open_stored(tmp_path, "training")
    (tmp_path / "shard-00002-of-00002.safetensors").unlink()
    assert stored.part("x", ((0, 2), (1, 3))).tolist() == [[1, 2], [4, 5]]
    with pytest.raises(DataError, match="what belongs to it, got No such file"):
        stored.part("x", ((1, 3), (1, 3)))


def shard_of(folder: Path, number: int) -> Path:
    return folder / f"shard-0000{number}-of-00002.safetensors"


def flipped(folder: Path) -> None:
    file = shard_of(folder, 2)
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")


DAMAGES: dict[str, tuple[Any, str]] = {
    "flipped": (flipped, "shard-00002-of-00002.safetensors: expected the SHA-256 that its record states"),
    "torn": (lambda folder: os.truncate(shard_of(folder, 1), 9), "bytes, got 9"),
    "missing": (lambda folder: shard_of(folder, 1).unlink(), "no such file"),
    "swapped": (
        lambda folder: shard_of(folder, 1).replace(shard_of(folder, 2)),
        "damaged or was changed",
    ),
    "no index": (lambda folder: (folder / "record.json").unlink(), "no such file"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damage_is_told_and_the_checkpoint_before_is_used(case: str, tmp_path: Path) -> None:
    damage, reason = DAMAGES[case]
    checkpoints = Checkpoints(tmp_path)
    for step in (1, 2):
        with checkpoints.saving(step) as new:
            entries = [write_shard(new, n, 2, held([p])) for n, p in enumerate(cut("x", torch.ones(4) * step, [[2]]))]
            write_index(new, entries, "data=2", {"step": step, "record": {}}, "training")
    damage(tmp_path / "step-00000002")
    loaded = checkpoints.load()
    assert loaded.step == 1
    assert loaded.tensors["x"].tolist() == [1, 1, 1, 1]
    assert len(loaded.skipped) == 1 and reason in loaded.skipped[0]


def test_both_kinds_in_one_folder(tmp_path: Path) -> None:
    """A run that goes on with another number of processes keeps, prunes and finds the best as ever."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(1, {"x": torch.ones(2)}, {})
    with checkpoints.saving(2, best=True) as new:
        write_index(
            new,
            [write_shard(new, 0, 1, held([whole("x", torch.zeros(2))]))],
            "data=1",
            {"step": 2, "record": {}},
            "training",
        )
    checkpoints.save(3, {"x": torch.ones(2)}, {})
    assert checkpoints.steps() == [2, 3]
    assert checkpoints.load("best").tensors["x"].tolist() == [0, 0]
    shard = "shard-00001-of-00001.safetensors"
    assert (tmp_path / "best-00000002" / shard).samefile(tmp_path / "step-00000002" / shard)


def forge(folder: Path, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    seal = hashlib.sha256(body).hexdigest().encode()
    (folder / "record.json").write_bytes(b'{"sha256": "' + seal + b'", "content": ' + body + b"}\n")


FORGED: dict[str, tuple[Any, str]] = {
    "elsewhere": (lambda c: c["shards"][0].update(file="../outside"), "as the name of a file, got '../outside'"),
    "no such shard": (lambda c: c["tensors"]["x"]["pieces"][0].update(shard=5), "index out of range"),
    "too large": (lambda c: c["tensors"]["x"].update(shape=[10**9, 10**9]), "every element of 'x' in one piece"),
    "twice": (lambda c: c["tensors"]["x"].update(pieces=c["tensors"]["x"]["pieces"][:1] * 2), "in one piece, got none"),
    "outside": (lambda c: c["tensors"]["x"]["pieces"][0].update(slice=[[2, 9], [0, 3]]), r"slices of 'x' within"),
    "fewer dimensions": (lambda c: c["tensors"]["x"]["pieces"][0].update(slice=[[0, 2]]), "zip"),
    "other piece": (
        lambda c: c["tensors"]["x"]["pieces"][0].update(slice=[[0, 4], [0, 3]])
        or c["tensors"]["x"]["pieces"].pop(),
        "damaged or was changed",
    ),
    "words": (lambda c: c["tensors"]["x"].update(shape="many"), "what belongs to it"),
    "no table": (lambda c: c.update(tensors=[1]), "damaged or was changed"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_index_is_refused(case: str, tmp_path: Path) -> None:
    two_shards(tmp_path)
    change, reason = FORGED[case]
    content = content_of(tmp_path)
    change(content)
    forge(tmp_path, content)
    with pytest.raises(DataError, match=reason):
        load_tensors(tmp_path, kind="training")


def test_everywhere() -> None:
    assert everywhere((2, 3)) == ((0, 2), (0, 3))
    assert everywhere(()) == ()
