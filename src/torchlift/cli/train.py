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
from rich.table import Table

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
from torchlift.cli.tables import columns, facts
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.core.memory import format_bytes
from torchlift.core.solution import Result, SolverError
from torchlift.io import save_model
from torchlift.networks import Network
from torchlift.parallel import Mesh, on_first, process_group, restarted
from torchlift.parallel.mesh import TIMEOUT
from torchlift.report.markup import finite
from torchlift.report.records import environment
from torchlift.training import Training, TrainingInterrupted, read_history
from torchlift.training.memory import plan_memory

#: Deeper networks are not drawn.
DRAWN = 12


def plan(setup: Setup) -> Record:
    """Sizes, memory, solvers and budgets of a run."""
    network, samples, held_out = setup.network, setup.samples, setup.held_out()
    phases = []
    for phase in setup.phases:
        planned = setup.planned(phase)
        memory = plan_memory(planned, held_out)
        phases.append(
            {
                "name": phase.title,
                "lifting": None if phase.lifting is None else repr(phase.lifting),
                "solver": repr(phase.method),
                "batch_size": planned.batches.batch_size,
                "steps_per_epoch": planned.per_epoch,
                "steps": planned.total_steps,
                "time_limit": phase.time_limit,
                "memory": dict(memory.rows),
            }
        )
    return {
        "data": {
            "task": setup.configuration.data.task,
            "set": setup.configuration.data.set,
            "samples": len(samples.train.y),
            "validation": 0 if samples.validation is None else len(samples.validation.y),
            "y": list(samples.in_shape),
            "x": list(samples.train.x.shape[1:]),
        },
        "network": {
            **described(setup, network),
            "shapes": {name: list(parameter.shape) for name, parameter in network.named_parameters()},
            "picture": network.picture() if network.depth <= DRAWN else None,
        },
        "loss": repr(setup.loss),
        "metrics": [metric.name for metric in setup.metrics],
        "phases": phases,
    }


def described(setup: Setup, network: Network) -> Record:
    """Kind and sizes of a network."""
    return {
        "kind": setup.configuration.network.kind,
        "in_shape": list(network.in_shape),
        "out_shape": list(network.out_shape),
        "depth": network.depth,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
    }


def show_plan(record: Record, console: Console) -> None:
    data, network = record["data"], record["network"]
    table = facts()
    where = f"{data['task']} on {data['set']}"
    table.add_row(
        "data", f"{where}: {data['samples']:,} to train, {data['validation']:,} to validate, {_size(data['y'])} each"
    )
    table.add_row("network", _network(network))
    for name, shape in network["shapes"].items():
        table.add_row("", f"{name}  {_size(shape)}")
    table.add_row("loss", record["loss"])
    table.add_row("metrics", ", ".join(record["metrics"]))
    for number, phase in enumerate(record["phases"], start=1):
        table.add_row(f"phase {number}", phase["name"])
        table.add_row("", f"solver  {phase['solver']}")
        table.add_row("", _budget(phase))
        memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in phase["memory"].items())
        table.add_row("", f"memory  {memory}")
    console.print(table)
    if network["picture"] is not None:
        console.print()
        console.print(network["picture"], soft_wrap=True)
    console.print("\nNothing was trained.")


def show_result(record: Record, console: Console) -> None:
    console.print(record["message"])
    console.print()
    if record["validation"]:
        console.print(_metrics_table(record))
        console.print()
    table = facts()
    table.add_row("network", _network(record["network"]))
    speed = record["steps"] / record["seconds"] if record["seconds"] else 0.0
    table.add_row(
        "time", f"{record['seconds']:.1f} s, {speed:.3g} steps/s, threads: {record['environment']['threads']}"
    )
    if record["folder"] is not None:
        table.add_row("files", f"{record['folder']}: {', '.join(record['files'])}")
    console.print(table)


def _metrics_table(record: Record) -> Table:
    units: dict[str, str] = record["units"]
    table = columns(["validation"], [f"{name} ({unit})" if unit else name for name, unit in units.items()])
    for name, values in record["validation"].items():
        step = "" if values["step"] is None else f" (step {values['step']})"
        table.add_row(name + step, *(_number(values["metrics"].get(metric)) for metric in units))
    return table


def _network(network: dict[str, Any]) -> str:
    sizes = f"{_size(network['in_shape'])} → {_size(network['out_shape'])}"
    return f"{network['kind']}, {sizes}, J = {network['depth']}, {network['parameters']:,} parameters"


def _budget(phase: dict[str, Any]) -> str:
    limit = "" if phase["time_limit"] is None else f"{phase['time_limit']:g} s"
    steps = "" if phase["steps"] is None else f"{phase['steps']:,} steps"
    budget = f"at most {limit} or {steps}" if limit and steps else limit or steps
    return f"budget  {budget}; {phase['batch_size']:,} samples per step, {phase['steps_per_epoch']:,} steps per epoch"


def _size(shape: list[int]) -> str:
    return "×".join(map(str, shape)) or "1"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}" if abs(value) < 10 else f"{value:.2f}"


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
