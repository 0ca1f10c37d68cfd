"""Honest measurements: interleaved repeats, medians, and the memory that tensors take."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import TypeVar

import torch

from torchlift.core.memory import StorageWatch

Method = TypeVar("Method")


def seconds_per_call(call: Callable[[], object], count: int) -> float:
    """Seconds per call in a burst of so many, after one that warms the caches."""
    call()
    _finish()
    start = time.perf_counter()
    for _ in range(count):
        call()
    _finish()
    return (time.perf_counter() - start) / count


def interleaved(
    methods: Mapping[str, Method],
    *,
    repeats: int = 7,
    seconds: float = 1.0,
    burst: float = 1e-2,
    most: int = 500,
    timed: Callable[[Method, int], float] = seconds_per_call,
    agreed: Callable[[float], float] = float,
) -> dict[str, float]:
    """Median seconds per call of each method, all measured in turn so that noise hits them alike.

    A turn is one call to warm the caches and then a burst of calls if they
    are short, so that everyone is measured as in a training loop that calls nothing else.

    Arguments:
        methods: what to call, by name.
        repeats: least number of rounds.
        seconds: go on with more rounds (at most 200) while this time lasts.
        burst: seconds of calls in a turn; one call at least, `most` at most.
        timed: (method, count) ↦ seconds per call.
        agreed: makes a number the same on all processes that measure together.
    """
    bursts = {
        name: max(1, min(most, int(burst / max(agreed(timed(method, 1)), 1e-9)))) for name, method in methods.items()
    }
    times: dict[str, list[float]] = {name: [] for name in methods}
    begin, rounds = time.perf_counter(), 0
    while rounds < repeats or (rounds < 200 and agreed(time.perf_counter() - begin) < seconds):
        rounds += 1
        for name, method in methods.items():
            times[name].append(timed(method, bursts[name]))
    return {name: median(values) for name, values in times.items()}


def _finish() -> None:
    """Wait until an accelerator, where there is one, has done what was asked of it."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


class PeakMemory(StorageWatch):
    """Bytes of tensors alive at the same time that were made inside this context.

    >>> with PeakMemory() as memory:
    ...     _ = torch.zeros(1000) + 1
    >>> memory.peak
    8000
    """

    def __init__(self) -> None:
        super().__init__()
        self.current = self.peak = 0

    def made(self, size: int) -> None:
        self.current += size
        self.peak = max(self.peak, self.current)

    def gone(self, size: int) -> None:
        self.current -= size
