"""Processes of one thread each, started by torch, and times that all of them take part in."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from torchlift.lab.benchmarks import measure

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

    Arguments:
        methods: by name, the same on all processes.
        repeats, seconds, burst: as in `torchlift.lab.benchmarks.measure.interleaved`.
    """
    return measure.interleaved(
        methods, repeats=repeats, seconds=seconds, burst=burst, most=MOST, timed=_seconds, agreed=_first
    )


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
