"""`torchlift plan`: steps and trainings on devices that are not at hand, by a cost model."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console

from torchlift.cli.command import Command, Record, check_folder
from torchlift.cli.tables import columns
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.core.memory import format_bytes
from torchlift.lab.planning import Forecast, Machine, Work, curves, guessed, recommended
from torchlift.report.records import Curves, Series

_SAYING = (
    "training: the step's seconds times the steps that bring a training as far as one of back-propagation. Late "
    "signals cost 4 % more steps for every update that they miss (simulated with up to 6 stages); with lifted "
    "variables the loss gradient propagates one layer per step."
)


@dataclass(frozen=True, kw_only=True)
class Plan(Command):
    """Predict time, memory and efficiency of training on many devices, by lifting and by back-propagation."""

    name: ClassVar[str] = "plan"

    layers: int = 1000
    """Weight matrices of the network."""
    width: int = 8192
    """Its units per layer."""
    batch: int = 4096
    """Samples of a step."""
    devices: int = 512
    """How many there are; the table has all powers of two up to it."""
    flops: float | None = None
    """Operations per second of one device in matrix products."""
    memory_bandwidth: float | None = None
    """Bytes per second that one device reads and writes."""
    bandwidth: float | None = None
    """Bytes per second of one link."""
    latency: float | None = None
    """Seconds that a message takes, however short."""
    overhead: float | None = None
    """Seconds per layer, or per layer and micro-batch, that no size changes: calls."""
    overlap: float | None = None
    """Share of the time of sums in which devices can work on: 1 with links of their own, 0 on one machine."""
    memory: float | None = None
    """Bytes of one device; meshes that need more are left out."""
    number: int = 4
    """Bytes of a number."""
    constants: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """What 'torchlift bench distributed --out' has written; options above count for more."""
    figure: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Draw step times and efficiencies into this PNG, SVG or PDF file."""

    def check(self) -> None:
        if self.figure is None:
            return
        if find_spec("matplotlib") is None:
            invalid_value("plan figure", "matplotlib", "none", "Install it by pip install 'torchlift[plot]'.")
        if self.figure.suffix not in (".png", ".svg", ".pdf"):
            invalid_value("plan figure", "a file ending in .png, .svg or .pdf", repr(self.figure.name))
        if self.figure.exists():
            invalid_value(f"--figure {self.figure}", "a new file", "one that exists", "Choose another name.")
        check_folder("--figure", self.figure.parent)

    def collect(self) -> Record:
        work = Work(
            *(check_size(f"plan {name}", getattr(self, name)) for name in ("layers", "width", "batch", "number"))
        )
        names = ("flops", "memory_bandwidth", "bandwidth", "latency", "overhead", "overlap")
        machine = Machine() if self.constants is None else Machine.read(self.constants)
        machine = machine.but(**{name: getattr(self, name) for name in names})
        if self.memory is not None:
            check_positive("plan memory", self.memory)
        devices = check_size("plan devices", self.devices)
        counts = sorted({*(2**k for k in range(devices.bit_length())), devices})
        forecasts_by_method = curves(work, machine, counts, memory=self.memory)
        if self.figure is not None:
            self._draw(work, counts, forecasts_by_method)
        methods = {
            method: [None if forecast is None else forecast.record() for forecast in forecasts]
            for method, forecasts in forecasts_by_method.items()
        }
        best = [
            _recommendation([forecasts[i] for forecasts in forecasts_by_method.values()]) for i in range(len(counts))
        ]
        record = {"work": vars(work), "machine": machine.record(), "devices": counts, "methods": methods}
        return {**record, "recommended": best, "note": _SAYING}

    def show(self, record: Record, console: Console) -> None:
        right = ["training", "step", "work", "links", "idle", "memory", "efficiency"]
        table = columns(["devices", "method"], right, "mesh")
        for index, count in enumerate(record["devices"]):
            for row, (method, forecasts) in enumerate(record["methods"].items()):
                table.add_row(str(count) if row == 0 else "", method, *_cells(forecasts[index]))
        console.print(table)
        for count, sentence in list(zip(record["devices"], record["recommended"], strict=True))[-1:]:
            console.print(f"\nOn {count} devices: {sentence}")
        console.print(f"\n{record['note']}")

    def _draw(self, work: Work, counts: list[int], forecasts_by_method: dict[str, list[Forecast | None]]) -> None:
        assert self.figure is not None  # the caller knows
        from torchlift.report import plot

        title = f"{work.layers} layers of {work.width} units, batch {work.batch}"
        figures = []
        for label, name in (("seconds per step's worth of training", "training"), ("efficiency", "efficiency")):
            series = [
                Series(
                    method, counts, [None if forecast is None else getattr(forecast, name) for forecast in forecasts]
                )
                for method, forecasts in forecasts_by_method.items()
            ]
            figures.append(Curves(name, title, "devices", label, series, x_log=True, y_log=name == "training"))
        plot.figure(*figures).savefig(self.figure, dpi=120)


def _recommendation(forecasts: list[Forecast | None]) -> str:
    best = recommended([forecast for forecast in forecasts if forecast is not None])
    if best is None:
        return "no mesh allows any method."
    doubt = ", by a price of delay that was measured for shorter delays only" if guessed(best) else ""
    return f"{best.method} on {best.mesh} trains fastest{doubt}."


def _cells(forecast: dict | None) -> list[str]:
    if forecast is None:
        return ["–", *[""] * 6, "no mesh allows it"]
    times = [_time(forecast[name]) for name in ("training", "seconds", "work", "exchange", "idle")]
    parts = f", {forecast['micro_batches']} micro-batches" if forecast["micro_batches"] > 1 else ""
    memory = format_bytes(forecast["memory"])
    return [*times, memory, f"{forecast['efficiency']:.0%}", f"{forecast['mesh']}{parts}"]


def _time(seconds: float) -> str:
    """A duration with three digits at most where that is possible: 13.9 ms, 5.57 h, 233 d."""
    for unit, size in (("a", 31_557_600), ("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"
