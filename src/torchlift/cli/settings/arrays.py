"""The user's own data: arrays inputs, targets and context in .npz, .safetensors or .npy files; never unpickled."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from safetensors import safe_open
from torch import Tensor

from torchlift.core.errors import DataError, message
from torchlift.core.files import opened, parsing
from torchlift.core.memory import available_memory, format_bytes

NAMES = ("inputs", "targets", "context")

#: Names that mean inputs and targets to some and the reverse to others.
AMBIGUOUS = ("x", "y")

_HEADERS = {(1, 0): read_array_header_1_0, (2, 0): read_array_header_2_0}
_CHUNK = 1 << 20


def read_arrays(path: Path) -> dict[str, Tensor]:
    """The arrays among inputs, targets and context that a file or folder holds; targets are always there.

    Arguments:
        path: an .npz or .safetensors file, or a folder of targets.npy, inputs.npy and context.npy.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    path = path.expanduser()
    arrays = _read(path)
    if "targets" not in arrays:
        expected = "an array targets, and perhaps inputs and context"
        hint = "Targets are what the network learns to give: images, labels, …"
        raise DataError(message(f"data {path}", expected, sorted(arrays) or "none", hint))
    targets = arrays["targets"]
    if targets.ndim > 0 and len(targets) == 0:
        raise DataError(message(f"data {path} targets", "at least one sample", "none"))
    for name, tensor in arrays.items():
        if tensor.ndim == 0 or targets.ndim == 0 or len(tensor) != len(targets):
            expected = f"as many samples as targets, which has shape {tuple(targets.shape)}"
            raise DataError(message(f"data {path} {name}", expected, tuple(tensor.shape)))
    return arrays


def _read(path: Path) -> dict[str, Tensor]:
    where = f"data {path}"
    if os.path.isdir(path):  # noqa: PTH112 (False, where Path.is_dir raises, for a name with a NUL)
        files = {name: path / f"{name}.npy" for name in (*NAMES, *AMBIGUOUS) if (path / f"{name}.npy").exists()}
        _refuse_ambiguous(where, files)
        return {name: _as_tensor(read_npy(f"{where} {name}", files[name])) for name in NAMES if name in files}
    if path.suffix == ".safetensors":
        return read_safetensors(where, path, NAMES)
    if path.suffix == ".npz":
        return {name: _as_tensor(array) for name, array in read_npz(where, path, NAMES).items()}
    if not os.path.exists(path):  # noqa: PTH110 (as above)
        raise DataError(message(where, "a file or folder", "nothing there"))
    raise DataError(message(where, "a name ending in .npz or .safetensors", repr(path.name)))


def read_npy(where: str, path: Path) -> np.ndarray:
    """The array of a .npy file."""
    with opened(where, path, "a readable .npy file") as stream:
        return read_numpy(where, stream, os.fstat(stream.fileno()).st_size)


def read_safetensors(where: str, path: Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """All tensors of a safetensors file.

    Arguments:
        where: begins messages.
        path: the file.
        names: the only ones that there may be; None for any.
    """
    expected = "a readable .safetensors file"
    with opened(where, path, expected):
        pass  # it is an ordinary file: safetensors itself would wait for a pipe
    with parsing(where, expected), safe_open(path, framework="pt") as stored:
        if names is not None:
            _check_names(where, stored.keys(), names)
        return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118


def read_npz(where: str, path: Path, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """All arrays of a .npz file; the arguments are those of `read_safetensors`."""
    expected = "a readable .npz file"
    with opened(where, path, expected) as file, parsing(where, expected), zipfile.ZipFile(file) as stored:
        members = {member.filename.removesuffix(".npy"): member for member in stored.infolist()}
        if names is not None:
            _check_names(where, members, names)
        arrays = {}
        for name, member in members.items():
            with stored.open(member) as stream:
                arrays[name] = read_numpy(f"{where} {name}", stream, member.file_size)
        return arrays


def _check_names(where: str, names: Collection[str], allowed: Sequence[str]) -> None:
    unknown = sorted({*names} - {*allowed})
    if allowed == NAMES:
        _refuse_ambiguous(where, names)
    if unknown:
        expected = f"arrays named {', '.join(allowed[:-1])} and {allowed[-1]} only"
        raise DataError(message(where, expected, ", ".join(unknown)[:200]))


def _refuse_ambiguous(where: str, names: Collection[str]) -> None:
    """Refuse x and y in place of inputs and targets: they are never taken for one or the other."""
    ambiguous = sorted(name for name in names if name.lower() in AMBIGUOUS)
    if not ambiguous or "inputs" in names or "targets" in names:
        return
    old = "torchlift once read x as the targets and y as the inputs, which most others call the reverse"
    hint = f"Rename what the network is given to inputs and what it should give to targets ({old})."
    if len(ambiguous) == 1:
        hint = f"Rename it to targets if it is what the network should give, such as images for a task ({old})."
    raise DataError(message(where, "arrays named inputs and targets", " and ".join(ambiguous), hint))


def read_numpy(where: str, stream: IO[bytes], size: int) -> np.ndarray:
    """An array of numbers in numpy's own format.

    The header is compared with what the file holds and with the memory there is before anything is allocated, and
    memory grows with what is really delivered. Arrays of objects, which would have to be unpickled, are refused.

    Arguments:
        where: begins messages.
        stream: at its beginning.
        size: bytes that it says it holds.
    """
    with parsing(where, "a readable .npy file in numpy's format 1.0 or 2.0"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about headers of Python 2, which are read all the same
        try:
            version = read_magic(stream)
        except ValueError:
            raise ValueError("a file that does not begin like one") from None
        shape, by_columns, dtype = _HEADERS[version](stream)
    if dtype.kind not in "fiub" or dtype.itemsize > 8:
        got = {"U": "text", "S": "text", "O": "Python objects"}.get(dtype.kind, dtype)
        raise DataError(message(where, "an array of numbers", got, "Nothing is unpickled." if dtype.hasobject else ""))
    needed, there = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if min(shape, default=1) < 0 or needed > there:
        raise DataError(message(where, f"{needed} bytes for an array {shape}"[:200], f"{there}"))
    if needed > available_memory():
        raise DataError(message(where, "an array that fits into memory", format_bytes(needed)))
    content = bytearray()
    while len(content) < needed:
        part = stream.read(min(_CHUNK, needed - len(content)))
        if not part:
            raise DataError(message(where, f"{needed} bytes of values", f"{len(content)}"))
        content += part
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if by_columns else "C")


def _as_tensor(array: np.ndarray) -> Tensor:
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "u" and native.dtype.itemsize > 1:
        native = native.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(native))


def first(arrays: Mapping[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    """Samples start, …, stop − 1 of every array."""
    return {name: tensor[start:stop] for name, tensor in arrays.items()}
