"""Memory: what is left, sizes in words, and what tensors take while code runs."""

from __future__ import annotations

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def available_memory(device: torch.device | str = "cpu") -> int:
    """Bytes that can still be used: of the machine, or of the container that this process lives in, or of a GPU."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return read_available(Path("/"))


def format_bytes(size: float) -> str:
    """1.5 GB and the like, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def read_available(root: Path) -> int:
    """Memory that is left according to the files of Linux under `root`, or by what other systems tell."""
    limits = [size for size in (_from_meminfo(root), *_from_groups(root)) if size is not None]
    if limits:
        return max(min(limits), 0)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _from_meminfo(root: Path) -> int | None:
    """MemAvailable: what can be had without swapping."""
    with suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def _from_groups(root: Path) -> list[int]:
    """What the limits of control groups leave, of either version; files in the cache can be dropped."""
    sizes = []
    for path, limit, usage, cache in (
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        for folder in _group_folders(root, root / path):
            with suppress(OSError, ValueError):  # no limit, or none that may be read
                most, used = (int((folder / name).read_text(encoding="ascii")) for name in (limit, usage))
                sizes.append(most - used + _statistic(folder / "memory.stat", cache))
    return sizes


def _group_folders(root: Path, mount: Path) -> list[Path]:
    """The mount itself, as containers see their own group, and the group of this process with all above it."""
    folders = {mount}
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers in ("", "memory"):
                group = mount / name.lstrip("/")
                folders |= {group, *(parent for parent in group.parents if mount in parent.parents)}
    return sorted(folders)


def _statistic(file: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        pairs = (line.split() for line in file.read_text(encoding="ascii").splitlines())
        return next((int(pair[1]) for pair in pairs if pair[0] == name), 0)
    return 0


class StorageWatch(TorchDispatchMode, ABC):
    """Notices storages that are made inside this context, and when each of them is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._followed: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and to keep the compiler away torch would import it, which takes a second."""
        return False

    @abstractmethod
    def made(self, size: int) -> None:
        """So many bytes more are in use."""

    @abstractmethod
    def gone(self, size: int) -> None:
        """And so many less."""

    def operated(self) -> None:
        """An operation has ended."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = {tensor.untyped_storage()._cdata for tensor in tensors_in((args, *kwargs.values()))}
        result = func(*args, **kwargs)
        for tensor in tensors_in((result,)):
            storage = tensor.untyped_storage()
            if storage._cdata not in given and storage._cdata not in self._followed:
                self._follow(storage)
        self.operated()
        return result

    def _follow(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._followed.add(key)
        self.made(size)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._followed.discard(key)
        self.gone(size)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors among arguments or results of an operation."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
