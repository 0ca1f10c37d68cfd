"""Tensors as safetensors files."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from torchlift.core.checks import check_instance
from torchlift.core.errors import invalid_value
from torchlift.io.folders import sync
from torchlift.io.record import entry_of

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
