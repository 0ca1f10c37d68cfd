"""`torchlift soak`: training that is killed, paused and left without room, and must end with the right answer."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import columns
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import DataError, TorchliftError, invalid_value, message
from torchlift.lab.soak import soak
from torchlift.lab.soak.child import KINDS
from torchlift.report.records.environment import environment

_WORDS = {True: "yes", False: "NO", None: "–"}


@dataclass(frozen=True, kw_only=True)
class Soak(Command):
    """Train for long under kills, pauses and full disks, and compare with an undisturbed run."""

    name: ClassVar[str] = "soak"

    minutes: float = 30.0
    """About how long everything takes; memory is judged from about 6 minutes on."""
    seed: int = 0
    """Of training, and of what happens when."""

    def check(self) -> None:
        check_positive("soak: --minutes", self.minutes)
        check_size("soak: --seed", self.seed, minimum=0)
        if not sys.platform.startswith("linux"):
            invalid_value("soak", "Linux, whose signals, limits and memory records it uses", sys.platform)
        for name in ("undisturbed", "disturbed"):
            if self.out is not None and (self.out / name).exists():
                hint = "Choose another folder, or remove it yourself."
                raise DataError(message(f"--out {self.out}", "a folder without an earlier soak", f"{name}/", hint))

    def collect(self) -> Record:
        if self.out is not None:
            return self._soak(self.out)
        with tempfile.TemporaryDirectory(prefix="torchlift-soak-") as folder:
            return self._soak(Path(folder))

    def _soak(self, folder: Path) -> Record:
        with Console(stderr=True).status("starting") as status:
            result = soak.soak(folder, 60 * self.minutes, self.seed, status.update)
        return {"minutes": self.minutes, "seed": self.seed, **result, "environment": environment()}

    def show(self, record: Record, console: Console) -> None:
        console.print(_disturbances(record["disturbances"]))
        console.print()
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for claim in record["claims"]:
            table.add_row(_WORDS[claim["passed"]], claim["statement"], claim["detail"])
        console.print(table)
        runs, minutes = 1 + record["rounds"], record["seconds"] / 60
        console.print(f"\n{runs} runs of {record['steps']} steps, {minutes:.1f} minutes, seed {record['seed']}.")

    def run(self) -> Record:
        record = super().run()
        if not record["passed"]:
            failed = [claim["statement"] for claim in record["claims"] if claim["passed"] is False]
            hint = "" if self.out is not None else " Keep both runs by --out DIR."
            raise TorchliftError(f"soak: not true: {'; '.join(failed)}.{hint}")
        return record


def _disturbances(events: Sequence[dict[str, Any]]) -> Table:
    table = columns(["disturbance", "by"], ["times", "starting", "training", "as expected"])
    for kind in KINDS:
        chosen = [event for event in events if event["kind"] == kind]
        training = sum(event["training"] for event in chosen)
        signals = dict.fromkeys(event["how"].partition(" after ")[0] for event in chosen)
        table.add_row(
            kind, ", ".join(signals), str(len(chosen)), str(len(chosen) - training), str(training),
            str(sum(event["expected"] for event in chosen)),
        )  # fmt: skip
    return table
