"""A folder of two files: `tensors.safetensors`, and `record.json` that vouches for both.

`record.json` is one JSON object, and every byte of it counts:

    {"sha256": "<of the bytes of content>", "content":
     {"format": 1, "kind": "...", "tensors": {"size": ..., "sha256": "..."}, "record": {...}}}
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from torchlift.checkpoint.encoding import decode, encode
from torchlift.checkpoint.folders import present, reason, replacing, sync
from torchlift.core.errors import DataError, invalid_type, invalid_value, message

FORMAT = 1
TENSORS, RECORD = "tensors.safetensors", "record.json"

MAX_RECORD = 1 << 26
"""Largest `record.json` that is written or read: 64 MiB."""

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

_START, _MIDDLE, _END = b'{"sha256": "', b'", "content": ', b"}\n"
_CHUNK = 1 << 20
_DAMAGED = "It is damaged or was changed: use another copy."


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
    _check_free(folder)
    with replacing(folder) as new:
        write_pair(new, tensors, record, kind)
    return folder


def load_tensors(path: Path | str, *, kind: str = "model") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors, on the CPU, and the record that `save_tensors` wrote.

    Raises:
        DataError: There is no such pair, or some byte of it is not what was written.
    """
    return read_pair(Path(path).resolve(), kind)


def write_pair(folder: Path, tensors: Mapping[str, Tensor], record: Mapping[str, Any], kind: str) -> None:
    """Both files into an existing folder, and on to the disk."""
    if not isinstance(record, Mapping):
        invalid_type("record", "a dict of JSON values", record)
    file = folder / TENSORS
    save_file(_prepared(tensors), file)
    sync(file)
    entry = {"size": file.stat().st_size, "sha256": _digest(file)}
    body = encode({"format": FORMAT, "kind": kind, "tensors": entry, "record": record})
    text = _sealed(body)
    if len(text) > MAX_RECORD:
        invalid_value("record", f"at most {MAX_RECORD} bytes of JSON", len(text), "Put long series into `tensors`.")
    (folder / RECORD).write_bytes(text)
    sync(folder / RECORD)
    file.chmod(stat.S_IMODE((folder / RECORD).stat().st_mode))  # safetensors lets nobody but the owner read it


def read_pair(folder: Path, kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Verified tensors and record; besides them it takes no more memory than `MAX_RECORD`."""
    with _reading(folder) as found:
        content, file = _content(found, kind), found / TENSORS
        if _digest(file) != content["tensors"]["sha256"]:
            refuse(file, "the SHA-256 that its record states", "another", _DAMAGED)
        with safe_open(file, framework="pt") as stored:  # cloned, because the file may be removed while they are in use
            return {name: stored.get_tensor(name).clone() for name in stored.keys()}, content["record"]  # noqa: SIM118


def read_record(folder: Path, kind: str) -> dict[str, Any]:
    """The verified record; of the tensors only the size of their file is compared."""
    with _reading(folder) as found:
        return _content(found, kind)["record"]


def refuse(path: Path, expected: str, got: object, hint: str = "") -> NoReturn:
    raise DataError(message(str(path), expected, got, hint))


def _check_free(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir() or not {item.name for item in folder.iterdir()} <= {TENSORS, RECORD}:
        hint = "Choose another path, or remove it yourself."
        refuse(folder, f"nothing, or a folder of {TENSORS} and {RECORD} only", "something else", hint)


def _sealed(body: bytes) -> bytes:
    return _START + hashlib.sha256(body).hexdigest().encode("ascii") + _MIDDLE + body + _END


def _prepared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors on the CPU, no two of which share memory: safetensors asks for that."""
    if not isinstance(tensors, Mapping):
        invalid_type("tensors", "a dict of tensors by name", tensors)
    prepared: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
        dense = tensor.detach().to("cpu").resolve_neg().contiguous()
        storage = dense.untyped_storage().data_ptr()
        prepared[name] = dense.clone() if storage in storages else dense
        storages.add(storage)
    return prepared


def _check_tensor(name: object, tensor: object) -> None:
    if not isinstance(name, str):
        invalid_type("the name of a tensor", "a string", name)
    if name == "__metadata__" or name.encode("utf-8", "ignore").decode("utf-8") != name:
        invalid_value("the name of a tensor", "Unicode text other than '__metadata__'", repr(name))
    where = f"tensors[{name!r}]"
    if not isinstance(tensor, Tensor):
        invalid_type(where, "a torch.Tensor", tensor, "Numbers belong into `record`.")
    if tensor.layout != torch.strided or tensor.is_meta:
        invalid_value(where, "a dense tensor with values", f"{tensor.layout} on {tensor.device}", "Try `.to_dense()`.")
    if tensor.dtype not in INTEGERS + FLOATS:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in INTEGERS + FLOATS)
        invalid_value(where, f"one of {names}", tensor.dtype, "For complex numbers try `torch.view_as_real`.")


@contextmanager
def _reading(folder: Path) -> Generator[Path, None, None]:
    """The folder to read; whatever goes wrong with it is a DataError."""
    found = present(folder)
    try:
        if found.is_symlink():
            refuse(folder, "a folder", "a symbolic link")
        yield found
    except DataError:
        raise
    except (OSError, SafetensorError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise DataError(message(str(folder), f"a readable {TENSORS} and {RECORD}", reason(error), _DAMAGED)) from error


def _content(folder: Path, kind: str) -> dict[str, Any]:
    """The content of `record.json`, once it is known to be ours and to fit the tensors' file."""
    file = folder / RECORD
    if (size := _size(file)) > MAX_RECORD:
        refuse(file, f"at most {MAX_RECORD} bytes", size)
    text = file.read_bytes()
    body = text[len(_sealed(b"")) - len(_END) : -len(_END)]
    if text != _sealed(body):
        refuse(file, "a record whose content has the SHA-256 that it states", "something else", _DAMAGED)
    content = decode(body)
    if content["format"] != FORMAT:
        refuse(file, f"format {FORMAT}", content["format"], "A newer torchlift may be able to read it.")
    if content["kind"] != kind:
        refuse(file, f"kind {kind!r}", repr(content["kind"]))
    if not isinstance(content["record"], dict):
        refuse(file, "a dict as the record", type(content["record"]).__name__)
    if (size := _size(folder / TENSORS)) != content["tensors"]["size"]:
        refuse(folder / TENSORS, f"{content['tensors']['size']} bytes", size, _DAMAGED)
    return content


def _size(file: Path) -> int:
    status = file.lstat()
    if not stat.S_ISREG(status.st_mode):
        refuse(file, "an ordinary file", "a link or something else")
    return status.st_size


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
