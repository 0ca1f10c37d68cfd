"""A folder of two files: `tensors.safetensors`, and `record.json` that vouches for both (see `record.py`).

The content of `record.json`:

    {"format": 1, "kind": "...", "tensors": {"size": ..., "sha256": "..."}, "record": {...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from torchlift.io.folders import replacing
from torchlift.io.record import PAIR, RECORD, refuse, write_record, write_tensors
from torchlift.io.stored import TENSORS, open_stored


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
