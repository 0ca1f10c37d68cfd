"""`torchlift bench training`: lifted training against tuned back-propagation."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_high
from typing import Annotated, Any, ClassVar

import torch
import tyro
from rich.console import Console

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import columns
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import did_you_mean, invalid_value
from torchlift.lab.benchmarks import training, training_cases
from torchlift.training import METRICS


@dataclass(frozen=True, kw_only=True)
class BenchTraining(Command):
    """Train by lifting and by tuned back-propagation, in turn, and compare quality and time."""

    name: ClassVar[str] = "bench training"

    families: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Any of mnist, dead, imaging, default-start, unrolled, redrawn, sensing, resnet, starts; all by default."""
    only: str = ""
    """Run only the cases whose name contains this."""
    seeds: int = 3
    """Seeds 0, 1, … on which both sides are run after the choice of settings."""
    seconds: tuple[float, ...] = (10.0,)
    """Budgets of the family imaging."""
    tiny: bool = False
    """A few steps on the bundled digits, to see that everything runs; its numbers mean nothing."""
    threads: int | None = None
    """Threads of torch; its own choice by default."""

    def collect(self) -> Record:
        for name in self.families:
            if name not in training_cases.FAMILIES:
                hint = did_you_mean(name, training_cases.FAMILIES)
                invalid_value(
                    "bench training", f"families among {', '.join(training_cases.FAMILIES)}", repr(name), hint
                )
        if self.threads is not None:
            torch.set_num_threads(check_size("threads", self.threads))
        budgets = tuple(check_positive("seconds", each) for each in self.seconds)
        scale = training_cases.Scale(not self.tiny, budgets)
        seeds = range(check_size("seeds", self.seeds))
        cases = [
            (family, case)
            for family in self.families or training_cases.FAMILIES
            for case in training_cases.FAMILIES[family](scale)
            if self.only in case.name
        ]
        if not cases:
            invalid_value("bench training only", "a part of the name of some case", repr(self.only))
        console = Console(stderr=True)
        record: Record = {"threads": torch.get_num_threads(), "tiny": self.tiny, "cases": []}
        effort = {"repeats": 1, "seconds": 0.0} if self.tiny else {}
        with console.status("starting") as status:
            for family, case in cases:
                record["cases"].append({"family": family, **training.compare(case, seeds, status.update, **effort)})
                self.write(record)  # what is known already survives an interruption
        return record

    def show(self, record: Record, console: Console) -> None:
        table = columns(["case", "contestant"], ["median", "spread", "steps", "goal", "reached", "step time"])
        for row in record["cases"]:
            for i, outcome in enumerate(row["outcomes"]):
                table.add_row(*_cells(row, outcome, first=i == 0))
        console.print(table)
        console.print(
            f"\n{record['threads']} threads. Back-propagation: the best of several settings on held-out data. "
            "Step time: ours divided by its with torch's fused Adam, and with torch.optim.Adam as it is."
        )


def _cells(row: dict[str, Any], outcome: dict[str, Any], *, first: bool) -> list[str]:
    unit = {"accuracy": " %", "psnr": " dB", "nmse": " dB"}.get(row["metric"], "")
    goal, reached = _verdict(row) if first else ("", "")
    ratios = [f"{row[name]:.2f}×" for name in ("step time ratio", "step time ratio, usual") if row[name] is not None]
    return [
        row["case"] if first else "", outcome["name"], f"{outcome['median']:.2f}{unit}", f"{outcome['spread']:.2f}",
        str(median_high(outcome["steps"])), goal, reached, ", ".join(ratios) if first else "",
    ]  # fmt: skip


def _verdict(row: dict[str, Any]) -> tuple[str, str]:
    """The goal and whether the first contestant's median meets it."""
    value, target = row["outcomes"][0]["median"], row["target"]
    margin = row["goal"] == "margin"
    if margin:
        value -= row["outcomes"][-1]["median"]
    shown = f"{value:+.2f}" if margin else ""
    if target is None:
        return "", shown
    met = value >= target if METRICS[row["metric"]].larger_is_better else value <= target
    return f"{target:+g}" if margin else f"{target:g}", f"{'yes' if met else 'no'} {shown}".strip()
