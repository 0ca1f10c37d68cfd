"""`torchlift reproduce`: the tables, figures and claims of the paper, once more."""

from __future__ import annotations

import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import columns, facts
from torchlift.core.checks import check_size
from torchlift.core.errors import DataError, InvalidValueError, TorchliftError, did_you_mean, message
from torchlift.lab.reproduction import EXPERIMENTS, Experiment, Options, Scale, reproduce
from torchlift.lab.reproduction.run import OUT, check_folder, reason, reproduce_at_once, started
from torchlift.report.records import load_record
from torchlift.report.records.figures import OUTCOMES

LIST, ALL = "list", "all"


@dataclass(frozen=True, kw_only=True)
class Reproduce(Command):
    """Run the paper's experiments again, and say which of its claims hold."""

    name: ClassVar[str] = "reproduce"
    replaces: ClassVar[bool] = True  # `check` knows what a run would spoil

    names: Annotated[tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="NAME")] = ()
    """Experiments to run, "all" of them, or "list" to see what there is."""
    scale: Scale = "small"
    """tiny: seconds; small: at most 90 minutes for all on two cores; paper: the published setting."""
    seed: int = 0
    """Seed of everything random."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = OUT
    """Results go into a folder per experiment in this one."""
    resume: bool = False
    """Go on with what was interrupted; what is finished is kept."""
    threads: int | None = None
    """Threads of torch, of all experiments together; all that it takes by itself if not given."""
    jobs: int | None = None
    """Experiments at the same time; one per thread if not given (tiny: one). Those whose seconds count run alone."""
    steps: int | None = None
    """Steps of the trainings as published, instead of the scale's; with --resume a finished run goes on to them."""
    seeds: int | None = None
    """How many seeds, from --seed on, where trainings are repeated; instead of the scale's."""
    device: str = "cpu"
    """Where trainings and run-time tables are computed: cpu, cuda, mps, xpu; the other experiments stay on cpu."""

    def collect(self) -> Record:
        if self.names == (LIST,):
            return {
                "experiments": [
                    {"name": experiment.name, "title": experiment.title, "about": experiment.about}
                    for experiment in EXPERIMENTS.values()
                ]
            }
        experiments = _find(self.names)
        return {
            "scale": self.scale,
            "seed": self.seed,
            "folder": str(self.out),
            "experiments": self._run(experiments),
            "report": f"torchlift report {shlex.quote(str(self.out))} --html",
        }

    def show(self, record: Record, console: Console) -> None:
        if self.names == (LIST,):
            table = facts()
            for experiment in record["experiments"]:
                table.add_row(experiment["name"], experiment["about"])
            console.print(table)
        else:
            _show_claims(record["experiments"], console)
            console.print(f"Results: {self.out}", soft_wrap=True)
            console.print(f"As a page: {record['report']}", soft_wrap=True)

    def check_out(self) -> bool:
        return self.names != (LIST,) and super().check_out()

    def write(self, record: Record) -> None:
        """Nothing more: each experiment has written its own folder."""

    def run(self) -> Record:
        record = super().run()
        failed = [
            f"{experiment['name']} ({experiment['failure']})"
            for experiment in record["experiments"]
            if experiment.get("failure")
        ]
        if failed:
            count = f"{len(failed)} of {len(record['experiments'])} experiments failed"
            raise TorchliftError(f"reproduce: {count}: {'; '.join(failed)}. Go on with them by --resume.")
        return record

    def check(self) -> None:
        if self.names == (LIST,):
            return
        experiments = _find(self.names)
        if self.threads is not None:
            torch.set_num_threads(check_size("threads", self.threads))
        if self.jobs is not None:
            check_size("jobs", self.jobs)
        self._options()
        for experiment in experiments:
            check_folder(experiment, self.scale, self.seed, self.out, resume=self.resume)
        if self.resume and not any(started(self.out / experiment.name) for experiment in experiments):
            names = ", ".join(experiment.name for experiment in experiments)
            hint = "Leave --resume away to begin, or name the folder of the earlier run by --out."
            raise DataError(message(f"--resume in {self.out}", f"an earlier run of {names}", "none", hint))

    def _run(self, experiments: list[Experiment]) -> list[dict[str, Any]]:
        jobs = self.jobs or (1 if self.scale == "tiny" else torch.get_num_threads())
        together = [experiment for experiment in experiments if not experiment.timed] if jobs > 1 else []
        together = sorted(together, key=lambda experiment: -experiment.minutes) if len(together) > 1 else []
        failures: dict[str, str | None] = {}
        try:
            with _progress(quiet=self.json) as bars:
                for experiment in experiments:
                    if experiment not in together:
                        failures[experiment.name] = self._alone(experiment, bars, raises=len(experiments) == 1)
                if together:
                    failures |= reproduce_at_once(together, jobs, bars.tell, bars.done, self._settings())
        except KeyboardInterrupt:
            print(f"To go on: {self._resume_command()}", file=sys.stderr)
            raise
        return [self._result(experiment, failures[experiment.name]) for experiment in experiments]

    def _alone(self, experiment: Experiment, bars: _Bars, *, raises: bool) -> str | None:
        """Run one experiment here; why it failed, or None."""
        try:
            reproduce(
                experiment,
                **self._settings(),
                tell=partial(bars.tell, experiment.name),
                done=partial(bars.done, experiment.name),
            )
        except Exception as error:
            if raises:
                raise
            if self.debug:
                traceback.print_exc()
            return reason(error)
        return None

    def _result(self, experiment: Experiment, failure: str | None) -> dict[str, Any]:
        result = {"name": experiment.name, "title": experiment.title, "failure": failure}
        if failure is not None:
            return result
        folder = self.out / experiment.name
        record = load_record(folder)
        claims = [asdict(claim) for claim in record.claims]
        return result | {
            "folder": str(folder), "seconds": record.seconds, "summary": record.summary, "claims": claims,
        }  # fmt: skip

    def _settings(self) -> dict[str, Any]:
        """What `reproduce` is told, whichever experiment it runs."""
        options = self._options()
        return {"scale": self.scale, "seed": self.seed, "out": self.out, "resume": self.resume, "options": options}

    def _options(self) -> Options:
        return Options(self.steps, self.seeds, self.device)

    def _resume_command(self) -> str:
        words = ["torchlift", self.name, *self.names, "--scale", self.scale, "--seed", str(self.seed)]
        words += ["--out", str(self.out)] if self.out != OUT else []
        for name in ("threads", "jobs", "steps", "seeds"):
            words += [f"--{name}", str(getattr(self, name))] if getattr(self, name) is not None else []
        words += ["--device", self.device] if self.device != "cpu" else []
        return shlex.join([*words, "--resume"])


def _find(names: tuple[str, ...]) -> list[Experiment]:
    """The experiments of these names, each once."""
    expected = f"{LIST}, {ALL}, or some of {', '.join(EXPERIMENTS)}"
    if not names:
        raise InvalidValueError(message("reproduce", expected, "nothing", "Try 'torchlift reproduce list'."))
    for name in names:
        if name not in EXPERIMENTS and name != ALL:
            hint = did_you_mean(name, [LIST, ALL, *EXPERIMENTS], "Try 'torchlift reproduce list'.")
            hint = "It stands alone." if name == LIST else hint
            raise InvalidValueError(message("reproduce", expected, repr(name), hint))
    chosen = EXPERIMENTS if ALL in names else dict.fromkeys(names)
    return [EXPERIMENTS[name] for name in chosen]


@dataclass(frozen=True)
class _Bars:
    """One bar per experiment, on standard error."""

    progress: Progress
    tasks: dict[str, TaskID] = field(default_factory=dict[str, TaskID])

    def tell(self, name: str, part: str) -> None:
        self.progress.update(self._task(name), part=part)

    def done(self, name: str, finished: int, total: int) -> None:
        self.progress.update(self._task(name), completed=finished, total=total or None)
        if finished == total:
            self.tell(name, "")

    def _task(self, name: str) -> TaskID:
        if name not in self.tasks:
            self.tasks[name] = self.progress.add_task(name, total=None, part="")
        return self.tasks[name]


@contextmanager
def _progress(*, quiet: bool) -> Iterator[_Bars]:
    """Bars where somebody looks."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[part]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as progress:
        yield _Bars(progress)


def _show_claims(experiments: list[dict[str, Any]], console: Console) -> None:
    table = columns(["experiment"], [*OUTCOMES, "minutes"])
    for experiment in experiments:
        if experiment["failure"] is not None:
            table.add_row(experiment["name"], *["–"] * len(OUTCOMES), "failed")
            continue
        outcomes = [claim["outcome"] for claim in experiment["claims"]]
        numbers = [str(outcomes.count(outcome)) for outcome in OUTCOMES]
        table.add_row(experiment["name"], *numbers, f"{experiment['seconds'] / 60:.1f}")
    console.print(table)
    console.print()
    for experiment in experiments:
        console.print(experiment["title"], style="bold")
        if experiment["failure"] is not None:
            console.print(f"  failed: {experiment['failure']}", soft_wrap=True)
        for claim in experiment["claims"] if experiment["failure"] is None else ():
            line = f"  {claim['statement']} – {claim['measured']} – {claim['outcome']}"
            console.print(line, soft_wrap=not console.is_terminal)
        console.print()
