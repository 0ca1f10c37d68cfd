"""`torchlift bench layers`: the paper's run-time tables on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.progress import track

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import columns
from torchlift.core.checks import check_device, check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.lab.benchmarks import layers
from torchlift.lab.benchmarks.coordinates import compare
from torchlift.report.records import Curves, Series


@dataclass(frozen=True, kw_only=True)
class BenchLayers(Command):
    """Time all layers evaluated at once against one by one, for 1 to 128 layers."""

    name: ClassVar[str] = "bench layers"

    widths: tuple[int, ...] = tuple(width for width, _ in layers.SIZES)
    """Widths of the layers."""
    batches: tuple[int, ...] = tuple(batch for _, batch in layers.SIZES)
    """Batch sizes, one per width."""
    depths: tuple[int, ...] = layers.DEPTHS
    """Numbers of layers."""
    coordinates: tuple[int, ...] = ()
    """Instead: steps and processor seconds to a tenth of the objective in z and in errors, for so many layers."""
    seconds: float = 0.5
    """Time spent on each combination, at least seven rounds."""
    threads: int | None = None
    """Threads of torch; all that it takes by itself if not given."""
    device: str = "cpu"
    """Where they are evaluated: cpu, cuda, mps, xpu."""

    def collect(self) -> Record:
        if self.coordinates:
            rows = [
                compare(check_size("coordinates", d), steps=400, seconds=20 * self.seconds) for d in self.coordinates
            ]
            return {"coordinates": rows}
        if len(self.widths) != len(self.batches):
            invalid_value("batches", f"one batch size for each of {len(self.widths)} widths", len(self.batches))
        sizes = tuple(zip(self.widths, self.batches, strict=True))
        for name, numbers in (("widths", self.widths), ("batches", self.batches), ("depths", self.depths)):
            for number in numbers:
                check_size(name, number)
        if self.threads is not None:
            torch.set_num_threads(check_size("threads", self.threads))
        device = str(check_device("device", self.device))
        rows = layers.rows(sizes, self.depths, seconds=check_positive("seconds", self.seconds), device=device)
        total = len(sizes) * len(self.depths)
        shown = track(rows, "measuring", total=total, console=Console(stderr=True), disable=self.json, transient=True)
        return {"threads": torch.get_num_threads(), "device": device, "rows": list(shown)}

    def show(self, record: Record, console: Console) -> None:
        if "coordinates" in record:
            table = columns([], ["layers", "coordinates", "steps", "processor s", "part of the first objective"])
            for row in record["coordinates"]:
                for name in ("states", "errors"):
                    end = row[name]
                    numbers = (str(end["steps"]), f"{end['seconds']:.2f}", f"{end['part']:.3f}")
                    table.add_row(str(row["depth"]), name, *numbers)
            console.print(table)
            return
        for caption, keys in _TABLES.items():
            table = columns([], list(keys), title=f"{caption}, {record['threads']} threads")
            for row in record["rows"]:
                table.add_row(*(_text(heading, row[key]) for heading, key in keys.items()))
            console.print(table)
            console.print()
        for line in _LEGEND:
            console.print(line)

    def save(self, record: Record) -> None:
        if "coordinates" in record:
            return
        self.save_figure("bench-layers", lambda plot: plot.figure(*growth(record["rows"])), ("png", "svg"))


def growth(rows: Sequence[dict[str, Any]]) -> list[Curves]:
    """Milliseconds against layers: a panel for each size, of all layers and of all gradients."""
    figures = []
    for what, ways in _WAYS.items():
        for width, batch in dict.fromkeys((row["width"], row["batch"]) for row in rows):
            same = [row for row in rows if (row["width"], row["batch"]) == (width, batch)]
            depths = [row["layers"] for row in same]
            series = [
                Series(label, depths, [row[key] for row in same], dashed=label != "vectorised")
                for label, key in ways.items()
            ]
            title = f"{what}, width {width}, batch {batch}"
            figures.append(Curves(f"{width}-{batch}", title, "layers", "ms", series, x_log=True, y_log=True))
    return figures


_WAYS = {
    "all layers": {"vectorised": "forward", "loop": "forward_loop"},
    "all gradients": {"vectorised": "gradients", "loop": "gradients_loop", "loop, autograd": "gradients_autograd"},
}


_LEGEND = (
    "Medians of interleaved rounds, in milliseconds.  ×: how often the vectorised way fits in.",
    "ulp: largest difference of the two ways, in units in the last place.",
    "of mm: speed as a fraction of torch.mm on the shape of one layer.",
    "buffers: peak memory of states, their gradients and temporaries, in state buffers.",
)

_TABLES = {
    "All layers at given states": {
        "width": "width",
        "batch": "batch",
        "layers": "layers",
        "vectorised": "forward",
        "loop": "forward_loop",
        "×": "forward_ratio",
        "ulp": "difference_ulp",
    },
    "All gradients": {
        "width": "width",
        "batch": "batch",
        "layers": "layers",
        "vectorised": "gradients",
        "loop": "gradients_loop",
        "×": "loop_ratio",
        "autograd": "gradients_autograd",
        "× ": "autograd_ratio",
        "of mm": "matmul_fraction",
        "buffers": "memory_buffers",
    },
}


def _text(heading: str, value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if heading.strip() == "×":
        return f"{value:.2f}" if value < 10 else f"{value:.0f}"
    return f"{value:.2f}" if heading in ("of mm", "buffers", "ulp") else f"{value:.3g}"
