"""A folder of one safetensors file per process, and `record.json` that says what lies where.

The content of `record.json`:

    {"format": 2, "kind": "...", "mesh": "data=2,layers=2",
     "shards": [{"file": "shard-00001-of-00004.safetensors", "size": ..., "sha256": "..."}, ...],
     "tensors": {"<name>": {"shape": [10, 7], "pieces": [{"shard": 0, "slice": [[0, 5], [0, 7]]}, ...]}, ...},
     "record": {...}}

A piece is called "<name>[0:5, 0:7]" in its shard. Each element of a tensor is
in one piece, however many processes have it.
"""

# `HuggingFaceStorageWriter` of torch.distributed.checkpoint does not serve: it wants tensors that torch itself has
# sharded, sends pickled plans between processes, and keeps neither checksums nor the promise of all or nothing.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor

from torchlift.io.record import SHARDS, write_record
from torchlift.io.tensors import write_tensors

Slices: TypeAlias = tuple[tuple[int, int], ...]
"""(first, stop) of each dimension."""


@dataclass(frozen=True, eq=False)
class Piece:
    """What one process holds of a tensor.

    Arguments:
        name: of the whole tensor.
        shape: of the whole tensor.
        slices: where the piece lies in it.
        tensor: the piece.
        written: whether this process is the one to write it, if others have it as well.
    """

    name: str
    shape: tuple[int, ...]
    slices: Slices
    tensor: Tensor
    written: bool = True


def whole_piece(name: str, tensor: Tensor, written: bool = True) -> Piece:
    """All of a tensor."""
    return Piece(name, tuple(tensor.shape), everywhere(tensor.shape), tensor, written)


def everywhere(shape: Sequence[int]) -> Slices:
    return tuple((0, size) for size in shape)


def shard_name(number: int, count: int) -> str:
    return f"shard-{number + 1:05d}-of-{count:05d}.safetensors"


def piece_name(name: str, slices: Slices) -> str:
    return f"{name}[{', '.join(f'{first}:{stop}' for first, stop in slices)}]"


def write_shard(folder: Path, number: int, count: int, pieces: Sequence[Piece]) -> dict[str, Any]:
    """One process's file, on to the disk; returns what `write_index` has to know about it, in JSON values."""
    own = {piece_name(piece.name, piece.slices): piece for piece in pieces if piece.written}
    file = folder / shard_name(number, count)
    entry = write_tensors(file, {key: piece.tensor for key, piece in own.items()})
    held = [(piece.name, piece.shape, piece.slices) for piece in own.values()]
    return {"file": file.name, **entry, "pieces": held}


def write_index(
    folder: Path, shards: Sequence[Mapping[str, Any]], mesh: str, record: Mapping[str, Any], kind: str
) -> None:
    """`record.json` for what `write_shard` has returned on each process, in their order."""
    tensors: dict[str, dict[str, Any]] = {}
    for number, shard in enumerate(shards):
        for name, shape, slices in shard["pieces"]:
            found = tensors.setdefault(name, {"shape": shape, "pieces": []})
            found["pieces"].append({"shard": number, "slice": slices})
    entries = [{name: shard[name] for name in ("file", "size", "sha256")} for shard in shards]
    write_record(folder, {"format": SHARDS, "kind": kind, "mesh": mesh, "shards": entries, "tensors": tensors}, record)
