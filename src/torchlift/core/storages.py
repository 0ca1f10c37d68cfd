"""What memory tensors take while code runs, whatever the device."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


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
