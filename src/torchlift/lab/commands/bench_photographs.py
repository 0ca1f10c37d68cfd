"""`torchlift bench photographs`: denoisers of at most 50,000 parameters, at equal processor time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import torch
import tyro
from rich.console import Console

from torchlift.cli.command import Command, Record
from torchlift.core.checks import check_choice, check_positive
from torchlift.core.errors import invalid_value
from torchlift.lab.benchmarks.kept import all_kept
from torchlift.lab.benchmarks.photographs import ROWS, TRAINED, Bench, load, markdown


@dataclass(frozen=True, kw_only=True)
class BenchPhotographs(Command):
    """Train denoisers by `train`, AdamW and Muon from one start, at equal processor time; σ = 25/255."""

    name: ClassVar[str] = "bench photographs"

    rows: Annotated[tuple[str, ...], tyro.conf.Positional] = TRAINED
    """What to train; or BM3D, with `pip install bm3d`."""
    images: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """An .npz file with an array `images` (n, height, width) of bytes, such as Train400; the last 40 are held out."""
    test: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """An .npz file of images to report, such as BSD68; read once for every finished row."""
    records: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("photographs")
    """Folder of one small JSON file for each row; rows that it holds are not repeated."""
    work: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("photographs-runs")
    """Folder of checkpoints, from which a stopped run goes on."""
    seconds: float = 1200.0
    """Budget of a run in processor time of one thread; 1200 is ten minutes on two cores."""
    table: bool = False
    """Only show what the folder of records holds, as Markdown."""

    def check(self) -> None:
        check_positive("seconds", self.seconds)
        for row in self.rows:
            check_choice("bench photographs", row, ROWS)
        if not self.table and self.images is None:
            invalid_value("bench photographs images", "an .npz file", "none", "Give --images FILE, or --table.")

    def collect(self) -> Record:
        if self.table or self.images is None:
            return {"records": all_kept(self.records, "row")}
        torch.set_num_threads(1)
        bench = Bench(load(self.images), self.records, self.work, self.seconds)
        test = None if self.test is None else load(self.test)
        bench.times([row for row in self.rows if not bench.file(row).exists()])  # in turn, before the first begins
        return {"records": [bench.row(row, test) for row in self.rows]}

    def show(self, record: Record, console: Console) -> None:
        console.print(markdown(record["records"]), soft_wrap=True)
