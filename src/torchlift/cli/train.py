"""`torchlift train`: a network trained as a file and flags say, with everything kept to repeat or continue it."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import tyro
from rich.console import Console

from torchlift import __version__
from torchlift.cli.command import FIGURES, Command, Record
from torchlift.cli.settings.files import read_configuration, to_plain, write_configuration
from torchlift.cli.settings.settings import (
    Configuration,
    DataSettings,
    NetworkSettings,
    PhaseSettings,
    TrainingSettings,
)
from torchlift.cli.settings.setup import Setup, prepare, settle
from torchlift.cli.train_report import described, plan, show_plan, show_result
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.core.solution import Result, SolverError
from torchlift.io import save_model
from torchlift.parallel import Mesh, on_first, process_group, restarted
from torchlift.parallel.mesh import TIMEOUT
from torchlift.report.markup import finite
from torchlift.report.records import environment
from torchlift.training import Training, TrainingInterrupted, read_history

CONFIG = "config.toml"


@dataclass(frozen=True, kw_only=True)
class Train(Command):
    """Train a network by lifting, or by back-propagation, as a TOML file and flags say."""

    name: ClassVar[str] = "train"
    replaces: ClassVar[bool] = True  # `_check_folder` knows what a run would spoil

    config: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="[CONFIG.toml]")] = None
    """A TOML file with sections [data], [network], [training] and [[phase]]; flags count for more than the file."""
    resume: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Go on with the run in this folder; its own configuration is used."""
    dry_run: bool = False
    """Print what would be done, with sizes and memory, and train nothing."""
    mesh: Annotated[str | None, tyro.conf.arg(metavar="data=N,layers=N")] = None
    """Share the work among the processes of torchrun: samples along data, layers along layers."""
    mesh_timeout: float = TIMEOUT
    """Seconds that processes of a mesh wait for each other before they give up."""
    data: DataSettings = field(default_factory=DataSettings)
    """[data]: what is learnt from."""
    network: NetworkSettings = field(default_factory=NetworkSettings)
    """[network]: what is trained."""
    training: TrainingSettings = field(default_factory=TrainingSettings)
    """[training]: how."""
    phase: Annotated[tuple[PhaseSettings, ...], tyro.conf.Fixed, tyro.conf.Suppress] = ()
    """[[phase]]: several stretches one after another; in files only."""

    def defaults(self) -> Train | None:
        if self.config is not None and self.resume is not None:
            hint = "A run goes on with its own configuration."
            invalid_value("train", "a configuration or --resume", "both", hint)
        if self.resume is not None:
            file = self.resume / CONFIG
            if not file.is_file():
                raise DataError(message(f"--resume {self.resume}", f"the folder of a run, with {CONFIG}", "none"))
            return _train(self._over_phases(read_configuration(file)), out=self.resume)
        return None if self.config is None else _train(self._over_phases(read_configuration(self.config)))

    def _over_phases(self, configuration: Configuration) -> Configuration:
        """Flags count for more than a file: also for more than what its phases say themselves."""
        usual, training = TrainingSettings(), configuration.training
        names = [field.name for field in fields(PhaseSettings)]
        given = {name: value for name in names if (value := getattr(self.training, name)) != getattr(usual, name)}
        if not given.keys().isdisjoint(length := {"epochs": None, "steps": None}):
            given, training = length | given, replace(training, **length)  # one of them takes the place of both
        phases = tuple(replace(phase, **given) for phase in configuration.phase)
        return replace(configuration, training=training, phase=phases)

    def collect(self) -> Record:
        configuration = settle(
            Configuration(data=self.data, network=self.network, training=self.training, phase=self.phase)
        )
        if self.mesh is None:
            self._check_folder()
        assert configuration.training.threads is not None  # since `settle`
        torch.set_num_threads(configuration.training.threads)
        setup = prepare(configuration)
        if self.dry_run:
            return plan(setup)
        if self.mesh is None:
            return self._train(setup, configuration, self.resume is not None, None)
        with process_group(self.mesh, timeout=self.mesh_timeout) as mesh:
            # Each torchrun counts only those restarts that its own processes have caused.
            again = self.out is not None and bool(mesh.which(restarted()))
            on_first(mesh, lambda: None if again else self._check_folder())
            return self._train(setup, configuration, self.resume is not None or again, mesh)

    def _train(self, setup: Setup, configuration: Configuration, resume: bool, mesh: Mesh | None) -> Record:
        """The record of a run, or an empty one on processes that keep none."""
        first = mesh is None or mesh.first
        if first and not self.json and sys.stderr.isatty():
            print("comparing ways to start …", file=sys.stderr)  # seconds, in which nothing else is shown
        start = setup.start() if first and resume else {}  # before the weights change
        if first and self.resume is None:
            self._keep(configuration)
        torch.manual_seed(configuration.training.seed)  # for code of the user's that draws from torch's own stream
        try:
            training = setup.train(self.out, resume=resume, progress=not self.json, mesh=mesh)
        except TrainingInterrupted as interrupted:  # what there is becomes the record; `run` tells how to go on
            training = interrupted.result
        except KeyboardInterrupt:
            self._tell_how_to_resume()
            raise
        if not first:
            return {}
        if self.resume is not None:  # perhaps made longer
            self._keep(configuration)
        files = [] if self.out is None else [CONFIG, "history.jsonl", "train.json"]
        if self.out is not None:
            save_model(self.out / "model", training.network)
            files += ["model", "checkpoints"]
            if find_spec("matplotlib") is not None:
                files.append(f"{FIGURES}/curves.png")
        return _record(setup, training, setup.references(training.start or start)) | {
            "folder": None if self.out is None else str(self.out),
            "files": files,
        }

    def _keep(self, configuration: Configuration) -> None:
        if self.out is not None:
            write_configuration(self.out / CONFIG, configuration, f"torchlift {__version__}, torch {torch.__version__}")

    def show(self, record: Record, console: Console) -> None:
        (show_plan if self.dry_run else show_result)(record, console)

    def save(self, record: Record) -> None:
        """The curves, where matplotlib is installed."""
        if self.out is not None and record["files"] and len(history := read_history(self.out / "history.jsonl")):
            self.save_figure("curves", lambda plot: plot.training(history))

    def run(self) -> Record:
        if self.dry_run and self.out is not None:
            return replace(self, out=None, resume=None).run()  # a plan leaves nothing behind
        record = self.collect() if self._follows() else super().run()
        if record.get("result") == Result.INTERRUPTED.code:
            self._tell_how_to_resume()
            raise KeyboardInterrupt
        if record.get("failed"):
            raise SolverError(Result[record["result"].upper()], record["message"])
        return record

    def _check_folder(self) -> None:
        if self.resume is not None and self.out is not None and self.out.resolve() != self.resume.resolve():
            invalid_value("--out", f"nothing, or {self.resume}, beside --resume", self.out)
        if self.resume is None and self.out is not None and _holds_run(self.out):
            hint = f"Go on with it by '{_resume_command(self.out)}', or choose another folder."
            raise DataError(message(f"--out {self.out}", "a folder without a run", "one with a run in it", hint))

    def _follows(self) -> bool:
        """Whether another process of the mesh prints and saves."""
        return self.mesh is not None and not self.dry_run and os.environ.get("RANK", "0") != "0"

    def _tell_how_to_resume(self) -> None:
        if self.out is None:
            print("Nothing was saved. With --out DIR a run can be continued.", file=sys.stderr)
        else:
            print(f"To go on: {_resume_command(self.out)}", file=sys.stderr)


def _train(configuration: Configuration, out: Path | None = None) -> Train:
    given = {name: getattr(configuration, name) for name in ("data", "network", "training", "phase")}
    return Train(**given, out=out)


def _holds_run(folder: Path) -> bool:
    """Whether there is something that a new run would spoil; a configuration alone is nothing."""
    history = folder / "history.jsonl"
    return (history.exists() and history.stat().st_size > 0) or any((folder / "checkpoints").glob("step-*"))


def _resume_command(folder: Path) -> str:
    return f"torchlift train --resume {shlex.quote(str(folder))}"


def _record(setup: Setup, training: Training, references: Mapping[str, Mapping[str, float]]) -> Record:
    rows = [row for row in training.history if row["kind"] == "validation"]
    validation: dict[str, Any] = {name: {"step": None, "metrics": values} for name, values in references.items()}
    best = training.best.get("step")
    if best == 0:
        validation["best"] = {"step": 0, "metrics": references["start"]}
    for name, chosen in (("best", [row for row in rows if row["step"] == best]), ("last", rows)):
        if chosen:
            validation[name] = {"step": chosen[-1]["step"], "metrics": chosen[-1]["metrics"]}
    record = {
        "configuration": to_plain(setup.configuration),
        "environment": environment(),
        "network": described(setup, training.network),
        "units": {metric.name: metric.unit for metric in (*setup.metrics[1:], setup.metrics[0])},
        "result": training.result.code,
        "failed": training.failed,
        "converged": training.converged,
        "message": training.message.partition(" To go on, call train")[0],  # advice for those who call `train`
        "best": training.best,
        "validation": validation,
        "steps": training.steps,
        "seconds": training.seconds,
    }
    return finite(record)
