"""`record.json`, which vouches for itself and for the files beside it, and the safetensors files themselves.

The record is one JSON object, and every byte of it counts:

    {"sha256": "<of the bytes of content>", "content": {"format": ..., "kind": "...", ..., "record": {...}}}
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from torchlift.core.checks import check_instance
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.core.files import decode, encode
from torchlift.io.folders import present, reason, sync

RECORD = "record.json"

PAIR, SHARDS = 1, 2
"""Formats: one file of tensors, or one of each process; see `stored.py`."""

MAX_RECORD = 1 << 26
"""Largest `record.json` that is written or read: 64 MiB."""

DAMAGED = "It is damaged or was changed: use another copy."

_UNREADABLE = (
    OSError, SafetensorError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError,
)  # fmt: skip
_START, _MIDDLE, _END = b'{"sha256": "', b'", "content": ', b"}\n"
_CHUNK = 1 << 20


def write_record(folder: Path, content: Mapping[str, Any], record: object) -> None:
    """`record.json` of the content and the caller's own record, on to the disk."""
    check_instance("record", record, Mapping, "a dict of JSON values")
    text = _sealed(encode({**content, "record": record}))
    if len(text) > MAX_RECORD:
        invalid_value("record", f"at most {MAX_RECORD} bytes of JSON", len(text), "Put long series into `tensors`.")
    (folder / RECORD).write_bytes(text)
    sync(folder / RECORD)


def read_content(folder: Path, kind: str) -> dict[str, Any]:
    """The content of `record.json`, once it is known to be ours."""
    file = folder / RECORD
    if (size := file_size(file)) > MAX_RECORD:
        refuse(file, f"at most {MAX_RECORD} bytes", size)
    text = file.read_bytes()
    body = text[len(_sealed(b"")) - len(_END) : -len(_END)]
    if text != _sealed(body):
        refuse(file, "a record whose content has the SHA-256 that it states", "something else", DAMAGED)
    content = decode(body)
    if (number := content.get("format", "none")) not in (PAIR, SHARDS):
        hint = "A newer torchlift may be able to read it."
        refuse(file, f"format {PAIR} or {SHARDS}", number, hint)
    if content["kind"] != kind:
        refuse(file, f"kind {kind!r}", repr(content["kind"]))
    if not isinstance(content["record"], dict):
        refuse(file, "a dict as the record", type(content["record"]).__name__)
    return content


def entry_of(file: Path) -> dict[str, Any]:
    """What a record says of a file beside it."""
    return {"size": file.stat().st_size, "sha256": _digest(file)}


def check_size_of(file: Path, entry: Mapping[str, Any]) -> None:
    if (size := file_size(file)) != entry["size"]:
        refuse(file, f"{entry['size']} bytes", size, DAMAGED)


def check_digest_of(file: Path, entry: Mapping[str, Any]) -> None:
    if _digest(file) != entry["sha256"]:
        refuse(file, "the SHA-256 that its record states", "another", DAMAGED)


def file_size(file: Path) -> int:
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        refuse(file, "an ordinary file", "a link or something else")
    return status.st_size


@contextmanager
def reading(folder: Path) -> Generator[Path, None, None]:
    """The folder to read; whatever goes wrong with it is a DataError."""
    try:
        path = present(folder)
        if path.is_symlink():
            refuse(folder, "a folder", "a symbolic link")
        yield path
    except DataError:
        raise
    except _UNREADABLE as error:
        expected = f"a readable {RECORD} and what belongs to it"
        hint = DAMAGED if (folder / RECORD).exists() else f"There is no {RECORD}: name the folder that has it."
        raise DataError(message(str(folder), expected, reason(error), hint)) from error


def refuse(path: Path, expected: str, got: object, hint: str = "") -> NoReturn:
    raise DataError(message(str(path), expected, got, hint))


def _sealed(body: bytes) -> bytes:
    return _START + hashlib.sha256(body).hexdigest().encode("ascii") + _MIDDLE + body + _END


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def write_tensors(file: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a file, on to the disk; returns what a record says of it."""
    dense = _prepared(tensors)
    file.touch()
    mode = stat.S_IMODE(file.stat().st_mode)
    save_file(dense, file)
    file.chmod(mode)  # safetensors lets nobody but the owner read it
    sync(file)
    return entry_of(file)


def _prepared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, no two of which share memory: safetensors asks for that."""
    check_instance("tensors", tensors, Mapping, "a dict of tensors by name")
    prepared: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
        dense = tensor.detach().to("cpu").resolve_neg().contiguous()
        storage = dense.untyped_storage().data_ptr()
        prepared[name] = dense.clone() if storage in storages else dense
        storages.add(storage)
    return prepared


def _check_tensor(name: Any, tensor: Any) -> None:
    check_instance("the name of a tensor", name, str, "a string")
    if name == "__metadata__" or name.encode("utf-8", "ignore").decode("utf-8") != name:
        invalid_value("the name of a tensor", "Unicode text other than '__metadata__'", repr(name))
    where = f"tensors[{name!r}]"
    check_instance(where, tensor, Tensor, "a torch.Tensor", "Numbers belong into `record`.")
    if tensor.layout != torch.strided or tensor.is_meta:
        invalid_value(where, "a dense tensor with values", f"{tensor.layout} on {tensor.device}", "Try `.to_dense()`.")
    if tensor.dtype not in INTEGERS + FLOATS:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in INTEGERS + FLOATS)
        invalid_value(where, f"one of {names}", tensor.dtype, "For complex numbers try `torch.view_as_real`.")
