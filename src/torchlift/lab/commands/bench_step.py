"""`torchlift bench step`: one training step of any module against fused Adam."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from rich.console import Console
from rich.progress import track

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import columns
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.lab.benchmarks import step
from torchlift.lab.benchmarks.step_modules import CASES


@dataclass(frozen=True, kw_only=True)
class BenchStep(Command):
    """Time one step of `train` against back-propagation with fused Adam, for sixteen modules."""

    name: ClassVar[str] = "bench step"

    cases: tuple[str, ...] = ()
    """Names of modules, or parts of names; all by default."""
    repeats: int = 7
    """Rounds of both sides in turn."""
    seconds: float = step.SECONDS
    """Processor time of the steps of each side in a round."""
    threads: int = 1
    """Threads of torch."""

    def collect(self) -> Record:
        chosen = [case for case in CASES if not self.cases or any(part in case.name for part in self.cases)]
        if not chosen:
            invalid_value("cases", f"among {', '.join(case.name for case in CASES)}", ", ".join(self.cases))
        torch.set_num_threads(check_size("threads", self.threads))
        effort = check_size("repeats", self.repeats), check_positive("seconds", self.seconds)
        shown = track(chosen, "measuring", console=Console(stderr=True), disable=self.json, transient=True)
        return {
            "threads": self.threads,
            "repeats": self.repeats,
            "rows": [step.measure(case, *effort).record() for case in shown],
            "files of a step": step.files_of_a_step(),
        }

    def show(self, record: Record, console: Console) -> None:
        headings = ["fused Adam, ms", "ratio", "quartiles", "goal", "start-up, ms", "s → 0"]
        table = columns(["module"], headings, title=f"One training step, {record['threads']} threads")
        for row in record["rows"]:
            goal = "" if row["goal"] is None else f"≤ {row['goal']:.2f}"
            quartiles = f"{row['low']:.2f}–{row['high']:.2f}"
            numbers = (f"{row['plain']:.2f}", f"{row['ratio']:.2f}", quartiles, goal, f"{row['start_up']:.0f}")
            table.add_row(row["name"], *numbers, f"{row['difference']:.0e}")
        console.print(table)
        console.print("Processor time, medians of interleaved rounds; start-up is what `train` does before its steps.")
        console.print("s → 0: largest relative difference of the gradients of a sweep and of back-propagation.")
        files = record["files of a step"]
        console.print(f"A step passes {len(files)} files: {', '.join(files)}")
