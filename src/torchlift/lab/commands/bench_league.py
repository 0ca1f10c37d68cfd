"""`torchlift bench league`: default settings against the optimisers that people use, at equal processor time."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar

import torch
import tyro
from rich.console import Console

from torchlift.cli.command import Command, Record, check_folder
from torchlift.cli.tables import shown
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import did_you_mean, invalid_value
from torchlift.lab.benchmarks import league
from torchlift.lab.benchmarks.kept import all_kept
from torchlift.lab.benchmarks.league_cases import Case, cases
from torchlift.lab.benchmarks.league_tables import FACTORS, markdown, profiles, standings
from torchlift.report.records import Table


@dataclass(frozen=True, kw_only=True)
class BenchLeague(Command):
    """Train by `train` with default settings and by six other optimisers, at equal processor time."""

    name: ClassVar[str] = "bench league"

    cases: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Parts of the names of cases, such as "denoising", or families: mnist, resnet, dead, imaging, unrolled, redrawn,
    sensing, default-start, starts; all by default."""
    records: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("league")
    """Folder of one small JSON file for each case and seed; runs that it holds are not repeated."""
    seeds: int = 3
    """Seeds 0, 1, …"""
    trials: int = 3
    """Settings that each baseline may try, at most 3."""
    seconds: float | None = None
    """Budget of a run in processor time instead of that of the case."""
    cifar: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """CIFAR-10 as image files train/CLASS/NAME and test/CLASS/NAME; without it that case is left out."""
    table: bool = False
    """Only show what the folder holds, as Markdown."""
    tiny: bool = False
    """A moment on a few digits, to see that everything runs; its numbers mean nothing."""

    def check(self) -> None:
        check_size("seeds", self.seeds)
        if check_size("trials", self.trials) > 3:
            invalid_value("trials", "at most 3", self.trials)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if not self.table:
            check_folder("--records", self.records)
        known = cases(self.tiny, self.cifar)
        families = dict.fromkeys(case.family for case in known.values())
        for part in self.cases:
            if not any(_named(case, part) for case in known.values()):
                expected = f"families among {', '.join(families)}, or parts of the names {', '.join(known)}"
                invalid_value(self.name, expected, repr(part), did_you_mean(part, [*families, *known]))

    def collect(self) -> Record:
        if self.table:
            return {"records": all_kept(self.records, "case")}
        torch.set_num_threads(1)
        console = Console(stderr=True)
        baselines = [
            n for n, baseline in league.BASELINES.items() if not baseline.extra or find_spec("pytorch_optimizer")
        ]
        if len(baselines) < len(league.BASELINES):
            console.print("SOAP, Schedule-Free AdamW and Prodigy are left out: pip install 'torchlift[lab]'.")
        known = cases(self.tiny, self.cifar).values()
        chosen = [case for case in known if not self.cases or any(_named(case, part) for part in self.cases)]
        records = []
        seconds = 0.3 if self.tiny and self.seconds is None else self.seconds
        with console.status("starting") as status:
            for seed in range(self.seeds):
                for case in chosen:
                    name = case.name.replace("×", "x").replace(",", "").replace(".", "p").replace(" ", "-")
                    file = self.records / f"{name}-{seed}.json"
                    effort = {"seconds": seconds, "baselines": baselines, "note": status.update}
                    records.append(league.compete(case, seed, self.trials, file, **effort))
        return {"records": records}

    def show(self, record: Record, console: Console) -> None:
        if self.table:
            console.print(markdown(record["records"]), soft_wrap=True)
            return
        for result in record["records"]:
            title = f"{result['case']}, seed {result['seed']}, {result['seconds']:.1f} s"
            columns = {"method": ("method", ""), "start": ("start", ""), result["metric"]: ("report", ".2f")}
            columns |= {"steps": ("steps", ""), "seconds to the best baseline's end": ("to target", ".1f")}
            console.print(shown(Table.of_records("standings", title, columns, standings(result))))
        factors = ", ".join(f"{factor:g}" for factor in FACTORS)
        console.print(f"\nShare of cases that reach the best baseline's end within {factors} times the least time:")
        for name, shares in profiles(record["records"]).items():
            console.print(f"  {name}: {', '.join(f'{share:.0%}' for share in shares)}")


@dataclass(frozen=True, kw_only=True)
class BenchTraining(BenchLeague):
    """Another name of 'bench league', of which the comparisons with tuned back-propagation are cases."""

    name: ClassVar[str] = "bench training"


def _named(case: Case, part: str) -> bool:
    """Whether a word of the command line means this case."""
    return part == case.family or part in case.name
