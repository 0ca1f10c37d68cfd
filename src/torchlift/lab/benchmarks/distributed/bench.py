"""All methods in one world of processes of one thread each, size after size."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist

from torchlift.lab.benchmarks import measure
from torchlift.lab.benchmarks.distributed import fit, methods
from torchlift.lab.benchmarks.distributed.fit import Volume, as_work, fitted, quiet
from torchlift.lab.benchmarks.distributed.methods import Size
from torchlift.lab.planning import Machine, data_parallel, lifting, pipelined
from torchlift.parallel import Mesh, as_mesh

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
    """Seconds per call in a burst of so many, after one that warms the caches."""
    seconds_together(method.call, 1, alone=method.alone)
    return seconds_together(method.call, count, alone=method.alone) / count


def seconds_together(call: Callable[[], object], count: int, *, alone: bool) -> float:
    """Seconds until all processes have made so many calls; with `alone` the first makes them, and the others wait."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(count if dist.get_rank() == 0 or not alone else 0):
        call()
    dist.barrier()
    return time.perf_counter() - start


def _first(number: float) -> float:
    """The number of the first process, on all of them."""
    shared = torch.tensor(number, dtype=torch.float64)
    dist.broadcast(shared, 0)
    return float(shared)


AGAINST = {
    "lifted, layers": "lifted",
    "lifted, data": "lifted",
    "sweeps, data": "sweeps",
    "late sweeps, layers": "sweeps",
    "DistributedDataParallel": "back-propagation",
}
"""Methods on many processes, and the one on a single process that they are compared with."""


@dataclass(frozen=True)
class Effort:
    """How much to measure.

    Arguments:
        repeats: least number of rounds.
        seconds: per size; more rounds while they last.
        burst: seconds of calls per turn.
        processes: of one thread each.
        micro_batches: of the pipeline, one method each.
    """

    repeats: int = 5
    seconds: float = 20.0
    burst: float = 0.05
    processes: int = 2
    micro_batches: tuple[int, ...] = (4, 8)


def run(sizes: Sequence[Size], effort: Effort) -> dict[str, Any]:
    """Everything that the bench finds out, ready for JSON.

    Arguments:
        sizes: the first one is what tables are about; all of them serve to fit the cost model.
        effort: how much to measure.
    """
    settings = json.dumps([str(size) for size in sizes]), json.dumps(asdict(effort))
    rows = json.loads(launch(_measure, effort.processes, *settings))
    measured = [(size, row["seconds"]) for size, row in zip(sizes, rows, strict=True)]
    machine = fitted(measured, effort.processes)
    alone = quiet(machine, measured)
    for size, row in zip(sizes, rows, strict=True):
        row["size"] = asdict(size)
        row["ceiling"] = effort.processes * row["seconds"]["product"] / row["seconds"]["product together"]
        row["speed_up"] = _speed_up(row["seconds"])
        row["predicted"] = _predicted(size, machine, alone, effort)
    return {"effort": asdict(effort), "rows": rows, "machine": machine.record()}


def _speed_up(seconds: Mapping[str, float]) -> dict[str, float]:
    pairs = {**AGAINST, **{name: "back-propagation" for name in seconds if name.startswith("1F1B")}}
    return {name: seconds[alone] / seconds[name] for name, alone in pairs.items()}


def _predicted(size: Size, machine: Machine, alone: Machine, effort: Effort) -> dict[str, float]:
    """Seconds of what the cost model knows."""
    work, count = as_work(size), effort.processes
    forecasts = {
        "lifted": lifting(work, alone),
        "lifted, layers": lifting(work, machine, 1, count),
        "lifted, data": lifting(work, machine, count, 1),
        "back-propagation": data_parallel(work, alone),
        "DistributedDataParallel": data_parallel(work, machine, count),
    }
    forecasts |= {_pipeline(m): pipelined(work, machine, 1, count, m) for m in effort.micro_batches}
    return {name: forecast.seconds for name, forecast in forecasts.items()}


def _measure(sizes: str, effort: str) -> str:
    """What each process does; the answer is that of the first."""
    chosen = Effort(**json.loads(effort))
    data, layers = as_mesh(f"data={chosen.processes}"), as_mesh(f"layers={chosen.processes}")
    rows = []
    for size in map(Size.parse, json.loads(sizes)):
        jacobi = {"lifted, layers": methods.jacobi(size, layers), "lifted, data": methods.jacobi(size, data)}
        swept, late = methods.sweeps(size, data), methods.sweeps(size, layers)
        swept()  # the first step looks at the start, too
        for _ in range(2 * chosen.processes):  # until every stage has work
            late()
        expected = {
            "lifted, layers": (jacobi["lifted, layers"], layers, fit.jacobi_volume(size, 1, chosen.processes)),
            "lifted, data": (jacobi["lifted, data"], data, fit.jacobi_volume(size, chosen.processes, 1)),
            "sweeps, data": (swept, data, fit.sweeps_volume(size, chosen.processes)),
            "late sweeps, layers": (late, layers, fit.late_sweeps_volume(size, chosen.processes)),
        }
        counted = {name: _counted(call, mesh) for name, (call, mesh, _) in expected.items()}
        field = {
            "lifted": Contestant(methods.jacobi(size), alone=True),
            **{name: Contestant(call) for name, call in jacobi.items()},
            "sweeps": Contestant(methods.sweeps(size), alone=True),
            "sweeps, data": Contestant(swept),
            "late sweeps, layers": Contestant(late),
            "back-propagation": Contestant(methods.back_propagation(size), alone=True),
            "DistributedDataParallel": Contestant(methods.data_parallel(size, data)),
            **{_pipeline(m): Contestant(methods.pipelined(size, layers, m)) for m in chosen.micro_batches},
            **_pieces(size, layers),
        }
        times = interleaved(field, repeats=chosen.repeats, seconds=chosen.seconds, burst=chosen.burst)
        volumes = {
            name: {"counted": asdict(counted[name]), "formula": asdict(formula)}
            for name, (_, _, formula) in expected.items()
        }
        rows.append({"seconds": times, "volume": volumes})
    return json.dumps(rows)


def _pieces(size: Size, mesh: Mesh) -> dict[str, Contestant]:
    """What steps are made of, for the ceiling and for the cost model."""
    generator = torch.Generator().manual_seed(2)
    u = torch.randn(size.batch, size.width, generator=generator)
    W = torch.randn(size.width, size.width, generator=generator)
    product, total, room = torch.empty_like(u), torch.empty_like(u), torch.empty_like(u)
    gradients = torch.zeros(size.parameters)
    short, short_room = torch.zeros(1), torch.zeros(1)
    return {
        "product": Contestant(lambda: torch.mm(u, W, out=product), alone=True),
        "product together": Contestant(lambda: torch.mm(u, W, out=product)),
        "addition together": Contestant(lambda: torch.add(u, product, out=total)),
        "short message": Contestant(_ring(mesh, short, short_room)),
        "long message": Contestant(_ring(mesh, u, room)),
        "sum of gradients": Contestant(lambda: dist.all_reduce(gradients)),
    }


def _ring(mesh: Mesh, sent: torch.Tensor, room: torch.Tensor) -> Callable[[], None]:
    """Every process sends to the next one and receives from the one before."""
    after, before = (mesh.rank + 1) % mesh.size, (mesh.rank - 1) % mesh.size

    def exchange() -> None:
        mesh.start([(sent, after)], [(room, before)]).wait()

    return exchange


def _counted(call: Callable[[], object], mesh: Mesh) -> Volume:
    """Bytes of all processes in one step."""
    sent, reduced = mesh.traffic.sent, mesh.traffic.reduced
    call()
    volume = torch.tensor([mesh.traffic.sent - sent, mesh.traffic.reduced - reduced])
    dist.all_reduce(volume)
    return Volume(*volume.tolist())


def _pipeline(micro_batches: int) -> str:
    return f"1F1B, {micro_batches} micro-batches"
