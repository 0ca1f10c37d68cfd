"""Processes of one thread each, started by torch, and times that all of them take part in."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

#: Calls in a burst at most.
MOST = 100


@dataclass(frozen=True)
class Contestant:
    """Something to measure.

    Arguments:
        call: one step.
        alone: only the first process calls it, while the others wait without work.
    """

    call: Callable[[], object]
    alone: bool = False


def launch(function: Callable[..., str], processes: int, *arguments: str) -> str:
    """Start processes on this machine as torchrun does; what the first one returns.

    Arguments:
        function: of a module, so that new processes find it; called inside a process group (gloo), with one thread.
        processes: how many.
        arguments: of the function.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=processes, rdzv_backend="c10d", rdzv_endpoint="localhost:0",
        run_id="torchlift-bench", max_restarts=0, monitor_interval=0.1, start_method="spawn",
    )  # fmt: skip
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        return elastic_launch(config, _member)(function, *arguments)[0]
    except SignalException as stop:
        if stop.sigval == signal.SIGINT:
            raise KeyboardInterrupt from None
        raise
    finally:
        for number, handler in handlers.items():  # torch leaves its own behind
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


def _member(function: Callable[..., str], *arguments: str) -> str:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        return function(*arguments)
    finally:
        dist.destroy_process_group()


def interleaved(methods: Mapping[str, Contestant], *, repeats: int, seconds: float, burst: float) -> dict[str, float]:
    """Median seconds per call, as the first process sees it: from a moment when all are ready to one when all are done.

    All methods take turns, so that noise hits them alike. A turn is one
    call to warm up and then a burst of them.

    Arguments:
        methods: by name, the same on all processes.
        repeats: least number of rounds.
        seconds: go on with more rounds (at most 200) while this time lasts.
        burst: seconds of calls per turn; one call at least.
    """
    bursts = {name: _burst(method, burst) for name, method in methods.items()}
    times: dict[str, list[float]] = {name: [] for name in methods}
    begin, rounds = time.perf_counter(), 0
    while rounds < repeats or (rounds < 200 and _first(time.perf_counter() - begin) < seconds):
        rounds += 1
        for name, method in methods.items():
            times[name].append(_seconds(method, bursts[name]))
    return {name: median(values) for name, values in times.items()}


def _burst(method: Contestant, target: float) -> int:
    return max(1, min(MOST, int(target / max(_first(_seconds(method, 1)), 1e-9))))


def _seconds(method: Contestant, count: int) -> float:
    acts = dist.get_rank() == 0 or not method.alone
    if acts:
        method.call()
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count if acts else 0):
        method.call()
    dist.barrier()
    return (time.perf_counter() - start) / count


def _first(number: float) -> float:
    """The number of the first process, on all of them."""
    shared = torch.tensor(number, dtype=torch.float64)
    dist.broadcast(shared, 0)
    return float(shared)
