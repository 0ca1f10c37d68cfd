"""Honest measurements: interleaved repeats, medians, and the memory that tensors take."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def interleaved(
    methods: Mapping[str, Callable[[], object]], *, repeats: int = 7, seconds: float = 1.0
) -> dict[str, float]:
    """Median seconds per call of each method, all measured in turn so that noise hits them alike.

    A turn is one call to warm the caches and then a burst of calls, ten
    milliseconds of them if they are short, so that everyone is measured as in
    a training loop that calls nothing else.

    Arguments:
        methods: what to call, by name.
        repeats: least number of rounds.
        seconds: go on with more rounds (at most 200) while this time lasts.
    """
    bursts = {name: _burst(call) for name, call in methods.items()}
    times: dict[str, list[float]] = {name: [] for name in methods}
    begin = time.perf_counter()
    rounds = 0
    while rounds < repeats or (rounds < 200 and time.perf_counter() - begin < seconds):
        rounds += 1
        for name, call in methods.items():
            call()
            times[name].append(_seconds(call, bursts[name]))
    return {name: median(values) for name, values in times.items()}


def _burst(call: Callable[[], object], target: float = 1e-2) -> int:
    """How many calls take about `target` seconds, at most 500."""
    call()
    once = _seconds(call, 1)
    return max(1, min(500, int(target / max(once, 1e-9))))


def _seconds(call: Callable[[], object], count: int) -> float:
    _finish()
    start = time.perf_counter()
    for _ in range(count):
        call()
    _finish()
    return (time.perf_counter() - start) / count


def _finish() -> None:
    """Wait until an accelerator, where there is one, has done what was asked of it."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


class PeakMemory(TorchDispatchMode):
    """Bytes of tensors alive at the same time that were made inside this context.

    >>> with PeakMemory() as memory:
    ...     _ = torch.zeros(1000) + 1
    >>> memory.peak
    8000
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outside = [leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage()._cdata not in outside:
                self._count(leaf.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(key)
        self.current += size
        self.peak = max(self.peak, self.current)
        weakref.finalize(storage, self._release, key, size)

    def _release(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.current -= size
