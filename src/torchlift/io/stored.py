"""Tensors on the disk, from one file or from many: written, and read as a whole or in part.

`save_tensors` makes a folder of two files: `tensors.safetensors`, and `record.json` that vouches for both (see
`record.py`), whose content is

    {"format": 1, "kind": "...", "tensors": {"size": ..., "sha256": "..."}, "record": {...}}

Of many processes each writes a safetensors file of its own, and `record.json` says what lies where:

    {"format": 2, "kind": "...", "mesh": "data=2,layers=2",
     "shards": [{"file": "shard-00001-of-00004.safetensors", "size": ..., "sha256": "..."}, ...],
     "tensors": {"<name>": {"shape": [10, 7], "pieces": [{"shard": 0, "slice": [[0, 5], [0, 7]]}, ...]}, ...},
     "record": {...}}

A piece is called "<name>[0:5, 0:7]" in its shard. Each element of a tensor is in one piece, however many processes
have it.
"""

# `HuggingFaceStorageWriter` of torch.distributed.checkpoint does not serve: it wants tensors that torch itself has
# sharded, sends pickled plans between processes, and keeps neither checksums nor the promise of all or nothing.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import safe_open
from torch import Tensor

from torchlift.io.folders import replacing
from torchlift.io.record import (
    DAMAGED,
    PAIR,
    RECORD,
    SHARDS,
    check_digest_of,
    check_size_of,
    read_content,
    reading,
    refuse,
    write_record,
    write_tensors,
)

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


TENSORS = "tensors.safetensors"


def open_stored(folder: Path, kind: str) -> tuple[Stored, dict[str, Any]]:
    """The tensors of a pair or of shards, and the verified record; of files with tensors only the size is compared."""
    with reading(folder) as path:
        content = read_content(path, kind)
        single = content["format"] == PAIR
        entries = [{"file": TENSORS, **content["tensors"]}] if single else content["shards"]
        for number, entry in enumerate(entries):
            name = TENSORS if single else shard_name(number, len(entries))
            if entry["file"] != name:
                refuse(path / RECORD, f"{name!r} as the name of a file", repr(entry["file"]))
            check_size_of(path / name, entry)
        return Stored(path, entries, None if single else content["tensors"]), content["record"]


@dataclass(frozen=True)
class _Held:
    """A piece of a tensor: its file, its name there, and where it lies in the tensor."""

    file: Path
    key: str
    slices: Slices


@dataclass(frozen=True, eq=False)
class Stored(Mapping[str, Tensor]):
    """Tensors by name, on the CPU, each read when it is asked for; made by `open_stored`.

    Arguments:
        folder: where the files are.
        entries: {"file": ..., "size": ..., "sha256": ...} of each file.
        index: shapes and pieces of all tensors; None for one file of whole tensors.
        prefix: only tensors whose names begin so are shown, by the rest of their names.
    """

    folder: Path
    entries: list[dict[str, Any]]
    index: Mapping[str, Any] | None
    prefix: str = ""

    def verify(self, number: int) -> None:
        """Every byte of a file, by its SHA-256.

        Raises:
            DataError: it is not what was written.
        """
        with reading(self.folder):
            check_digest_of(self.folder / self.entries[number]["file"], self.entries[number])

    def everything(self) -> dict[str, Tensor]:
        """All tensors, of files that are verified first; it takes little memory besides them."""
        for number in range(len(self.entries)):
            self.verify(number)
        return dict(self)

    def under(self, prefix: str) -> Stored:
        """Those tensors whose names begin so, by the rest of their names."""
        return replace(self, prefix=self.prefix + prefix)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._table[self.prefix + name][0]

    def part(self, name: str, slices: Slices) -> Tensor:
        """A slice of a tensor; no more than that is read."""
        with reading(self.folder):
            return self._assembled(self._table[self.prefix + name][1], slices)

    def __getitem__(self, name: str) -> Tensor:
        return self.part(name, everywhere(self.shape(name)))

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.prefix + name in self._table

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in self._table if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @cached_property
    def _table(self) -> dict[str, tuple[tuple[int, ...], list[_Held]]]:
        """Shape and pieces of each tensor."""
        with reading(self.folder):
            if self.index is not None:
                return {name: self._entry(name, entry) for name, entry in self.index.items()}
            file = self.folder / TENSORS
            with safe_open(file, framework="pt") as stored:
                shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
            return {name: (shape, [_Held(file, name, everywhere(shape))]) for name, shape in shapes.items()}

    def _entry(self, name: str, entry: Mapping[str, Any]) -> tuple[tuple[int, ...], list[_Held]]:
        shape, pieces = tuple(int(size) for size in entry["shape"]), []
        for piece in entry["pieces"]:
            slices = tuple((int(first), int(stop)) for first, stop in piece["slice"])
            if not all(0 <= first <= stop <= size for (first, stop), size in zip(slices, shape, strict=True)):
                refuse(self.folder / RECORD, f"slices of {name!r} within {shape}", piece["slice"], DAMAGED)
            if _size(slices) > sum(entry["size"] for entry in self.entries):  # before room is made for it
                refuse(self.folder / RECORD, f"slices of {name!r} that fit into the files", piece["slice"], DAMAGED)
            file = self.folder / self.entries[int(piece["shard"])]["file"]
            pieces.append(_Held(file, piece_name(name, slices), slices))
        if len({piece.key for piece in pieces}) < len(pieces) or sum(_size(p.slices) for p in pieces) != math.prod(
            shape
        ):
            refuse(self.folder / RECORD, f"every element of {name!r} in one piece", "none or several", DAMAGED)
        return shape, pieces

    def _assembled(self, pieces: list[_Held], slices: Slices) -> Tensor:
        """A copy: the files may be removed while it is in use."""
        tensor, copied = None, 0
        for piece in [p for p in pieces if _size(_common(p.slices, slices))] or pieces[:1]:
            common = _common(piece.slices, slices)
            with safe_open(piece.file, framework="pt") as file:
                stored = file.get_slice(piece.key)
                if tuple(stored.get_shape()) != _lengths(piece.slices):
                    refuse(piece.file, f"{piece.key} of its own shape", stored.get_shape(), DAMAGED)
                block = stored[_within(common, piece.slices)] if piece.slices else file.get_tensor(piece.key)
                if tensor is None:
                    tensor = block.new_empty(_lengths(slices))
                tensor[_within(common, slices)].copy_(block)
                copied += block.numel()
        if tensor is None or copied != tensor.numel():
            refuse(self.folder / RECORD, f"all of {slices} in some file", "a part", DAMAGED)
        return tensor


def _common(one: Slices, other: Slices) -> Slices:
    """What two slices share."""
    firsts = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)]
    return tuple((first, max(first, stop)) for first, stop in firsts)


def _within(slices: Slices, other: Slices) -> tuple[slice, ...]:
    """The same slices counted from the beginning of others."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(slices, other, strict=True))


def _lengths(slices: Slices) -> tuple[int, ...]:
    return tuple(stop - first for first, stop in slices)


def _size(slices: Slices) -> int:
    return math.prod(_lengths(slices))


def save_tensors(
    path: Path | str, tensors: Mapping[str, Tensor], record: Mapping[str, Any], *, kind: str = "model"
) -> Path:
    """Write a pair of files into the folder `path`; an earlier pair there is replaced, or kept if anything fails.

    One process at a time may save to a path (`Checkpoints` sees to that by itself).

    Arguments:
        path: The folder; created, or else one that holds nothing but an earlier pair.
        tensors: By name; any shape, memory layout and device, real numbers or integers.
        record: JSON values, NaN and infinities among them; tuples become lists.
        kind: What the pair is; reading asks for the same.

    Raises:
        DataError: The disk is full or refuses, or the folder holds other things.
    """
    folder = Path(path).resolve()
    if folder.exists() and not (folder.is_dir() and {item.name for item in folder.iterdir()} <= {TENSORS, RECORD}):
        hint = "Choose another path, or remove it yourself."
        refuse(folder, f"nothing, or a folder of {TENSORS} and {RECORD} only", "something else", hint)
    with replacing(folder) as new:
        write_pair(new, tensors, record, kind)
    return folder


def load_tensors(path: Path | str, *, kind: str = "model") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU, and the record that `save_tensors` wrote, or a checkpoint of many processes.

    Raises:
        DataError: There is no such folder, or some byte of it is not what was written.
    """
    if "\0" in str(path):
        refuse(Path(path), "a folder", "a name with a NUL in it")
    stored, record = open_stored(Path(path).resolve(), kind)
    return stored.everything(), record


def write_pair(folder: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], kind: str) -> None:
    """Both files into an existing folder, and on to the disk."""
    entry = write_tensors(folder / TENSORS, tensors)
    write_record(folder, {"format": PAIR, "kind": kind, "tensors": entry}, record)
