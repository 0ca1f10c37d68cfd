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

from torchlift.io.record import SHARDS, write_record, write_tensors

Slices: TypeAlias = tuple[tuple[int, int], ...]
"""(first, stop) of each dimension."""


@dataclass(frozen=True, eq=False)
class LocalShard:
    """A slice of a tensor that this process holds.

    Arguments:
        slices: where it lies in the whole tensor.
        tensor: the slice.
        written: whether this process is the one to write it, if others hold it too.
    """

    slices: Slices
    tensor: Tensor
    written: bool = True


@dataclass(frozen=True, eq=False)
class ShardedTensor:
    """A tensor of which many processes hold slices.

    Arguments:
        shape: of the whole tensor.
        local: the slices that this process holds.
    """

    shape: tuple[int, ...]
    local: tuple[LocalShard, ...]

    @classmethod
    def whole(cls, tensor: Tensor, written: bool = True) -> ShardedTensor:
        """A tensor that this process holds all of."""
        return cls(tuple(tensor.shape), (LocalShard(everywhere(tensor.shape), tensor, written),))


def everywhere(shape: Sequence[int]) -> Slices:
    return tuple((0, size) for size in shape)


def shard_name(number: int, count: int) -> str:
    return f"shard-{number + 1:05d}-of-{count:05d}.safetensors"


def piece_name(name: str, slices: Slices) -> str:
    return f"{name}[{', '.join(f'{first}:{stop}' for first, stop in slices)}]"


def write_shard(folder: Path, number: int, count: int, tensors: Mapping[str, ShardedTensor]) -> dict[str, Any]:
    """One process's file, on to the disk; returns what `write_index` has to know about it, in JSON values."""
    written = [(name, sharded.shape, s) for name, sharded in tensors.items() for s in sharded.local if s.written]
    file = folder / shard_name(number, count)
    entry = write_tensors(file, {piece_name(name, shard.slices): shard.tensor for name, _, shard in written})
    return {"file": file.name, **entry, "pieces": [(name, shape, shard.slices) for name, shape, shard in written]}


def write_index(
    folder: Path, shards: Sequence[Mapping[str, Any]], mesh: str, record: Mapping[str, Any], kind: str
) -> None:
    """`record.json` for what `write_shard` has returned on each process, in their order."""
    tensors: dict[str, dict[str, Any]] = {}
    for number, shard in enumerate(shards):
        for name, shape, slices in shard["pieces"]:
            entry = tensors.setdefault(name, {"shape": shape, "pieces": []})
            entry["pieces"].append({"shard": number, "slice": slices})
    entries = [{name: shard[name] for name in ("file", "size", "sha256")} for shard in shards]
    write_record(folder, {"format": SHARDS, "kind": kind, "mesh": mesh, "shards": entries, "tensors": tensors}, record)
