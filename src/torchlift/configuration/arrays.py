"""The user's own data: arrays y, x and context in .npz, .safetensors or .npy files; nothing is unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO

import numpy as np
import torch
from numpy.lib.format import read_array
from safetensors import SafetensorError, safe_open
from torch import Tensor

from torchlift.core.errors import DataError, message

NAMES = ("y", "x", "context")


def read_arrays(path: Path) -> dict[str, Tensor]:
    """The arrays among y, x and context that a file or folder holds; x is always there.

    Args:
        path: an .npz or .safetensors file, or a folder of x.npy, y.npy and context.npy.

    Raises:
        DataError: it cannot be read, or holds something else.
    """
    path = path.expanduser()
    try:
        found = _read(path)
    except DataError:
        raise
    except (OSError, ValueError, EOFError, SafetensorError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(message(f"data {path}", "a readable .npz, .safetensors or folder of .npy", reason)) from error
    if "x" not in found:
        hint = "x are the targets (images, labels, …), y the inputs."
        raise DataError(message(f"data {path}", "an array x, and perhaps y and context", sorted(found) or "none", hint))
    for name, tensor in found.items():
        if tensor.ndim == 0 or len(tensor) != len(found["x"]) or len(tensor) == 0:
            wanted = f"as many samples as x, which has shape {tuple(found['x'].shape)}"
            raise DataError(message(f"data {path} {name}", wanted, tuple(tensor.shape)))
    return found


def _read(path: Path) -> dict[str, Tensor]:
    if path.is_dir():
        files = {name: path / f"{name}.npy" for name in NAMES if (path / f"{name}.npy").exists()}
        return {name: _from_numpy(path, name, file.open("rb")) for name, file in files.items()}
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as stored:
            return _chosen(path, stored.keys(), stored.get_tensor)
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as stored:
            names = [name.removesuffix(".npy") for name in stored.namelist()]
            return _chosen(path, names, lambda name: _from_numpy(path, name, stored.open(f"{name}.npy")))
    if not path.exists():
        raise DataError(message(f"data {path}", "a file or folder", "nothing there"))
    raise DataError(message(f"data {path}", "a name ending in .npz or .safetensors", repr(path.name)))


def _chosen(path: Path, names: Iterable[str], get: Callable[[str], Tensor]) -> dict[str, Tensor]:
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise DataError(message(f"data {path}", "arrays named y, x and context only", ", ".join(unknown)))
    return {name: get(name) for name in NAMES if name in names}


def _from_numpy(path: Path, name: str, stream: IO[bytes]) -> Tensor:
    """An array in numpy's own format; arrays of objects, which would be unpickled, are refused."""
    with stream:
        array = read_array(stream, allow_pickle=False)
    if array.dtype.kind not in "fiub":
        raise DataError(message(f"data {path} {name}", "an array of numbers", array.dtype))
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    if native.dtype.kind == "u" and native.dtype.itemsize > 1:
        native = native.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(native))


def first(arrays: Mapping[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    """Samples start, …, stop − 1 of every array."""
    return {name: tensor[start:stop] for name, tensor in arrays.items()}
