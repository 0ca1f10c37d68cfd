"""`torchlift bench distributed`: many processes against one, and against what torch has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro
from rich.console import Console

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import columns
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value


@dataclass(frozen=True, kw_only=True)
class BenchDistributed(Command):
    """Time lifted steps on several processes of one thread each against one, and against DDP and 1F1B."""

    name: ClassVar[str] = "bench distributed"

    sizes: tuple[str, ...] = ("8x784x1000", "8x784x256", "16x256x1000", "4x1024x512")
    """Hidden layers x width x batch; tables show the first, all of them serve to fit the cost model of 'plan'."""
    processes: int = 2
    """How many; more than there are cores measure little."""
    seconds: float = 20.0
    """Time spent on each size, at least five rounds."""
    micro_batches: tuple[int, ...] = (4, 8)
    """Of the pipeline; they must divide the batches."""
    race: tuple[str, ...] = ()
    """Whole trainings instead of steps, to a quality: mnist (10 x 600), autoencoder, cifar (a small VGG, to 70 %)."""
    epochs: float | None = None
    """Of each training; 10 for mnist, 26 for autoencoder and 2 for cifar if not given."""
    cifar: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """CIFAR-10 for the race of that name: folder of image files train/CLASS/NAME and test/CLASS/NAME."""
    tiny: bool = False
    """The smallest sizes and one round, to see that everything runs; its numbers mean nothing."""

    def collect(self) -> Record:
        from torchlift.lab.benchmarks.distributed import Effort, Size, race, run  # the processes start faster without

        if self.race:
            if self.epochs is not None:
                check_positive("bench distributed epochs", self.epochs)
            names = ("tiny",) if self.tiny else self.race
            with Console(stderr=True).status("racing"):
                tasks = dict.fromkeys(names, self.epochs)
                return {"race": race(tasks, self.processes, self.micro_batches, self.cifar)}
        if not self.sizes:
            invalid_value("bench distributed sizes", "at least one size", "none", "Try 8x784x1000.")
        sizes = [Size.parse(size) for size in (("3x16x8", "4x8x16") if self.tiny else self.sizes)]
        if check_size("bench distributed processes", self.processes) < 2:
            invalid_value("bench distributed processes", "2 or more", self.processes)
        if not self.seconds >= 0:
            invalid_value("bench distributed seconds", "a number >= 0", self.seconds)
        for size in sizes:
            if size.layers < self.processes:
                hint = "Each process has a hidden layer at least."
                invalid_value(f"bench distributed size {size}", f"{self.processes} layers or more", size.layers, hint)
            for count in self.micro_batches:
                if size.batch % check_size("bench distributed micro_batches", count):
                    invalid_value("bench distributed micro_batches", f"divisors of {size.batch}", count)
        effort = Effort(1, 0.0, 0.0) if self.tiny else Effort(seconds=self.seconds)
        with Console(stderr=True).status("measuring"):
            return run(sizes, replace(effort, processes=self.processes, micro_batches=self.micro_batches))

    def show(self, record: Record, console: Console) -> None:
        if "race" in record:
            return _show_race(record, console)
        row, processes = record["rows"][0], record["effort"]["processes"]
        size = row["size"]
        console.print(f"{size['layers']} × {size['width']}, batch {size['batch']}, {processes} processes of one thread")
        table = columns(["step"], ["ms", "× one process", "of the ceiling", "model ms", "MB sent", "MB summed"])
        for name, seconds in row["seconds"].items():
            table.add_row(name, f"{1e3 * seconds:.4g}", *_cells(row, name))
        console.print(table)
        console.print(
            f"\nCeiling: products on {processes} processes at once are {row['ceiling']:.2f} × as fast as on one. "
            "MB: counted on all processes together; "
            + ("equal to the formulas." if _as_expected(record) else "NOT equal to the formulas.")
        )
        console.print(
            "These are steps, not trainings: those of lifting and back-propagation do not bring training equally far."
        )
        worst = max(
            (abs(predicted / measured["seconds"][name] - 1), name, measured["size"])
            for measured in record["rows"]
            for name, predicted in measured["predicted"].items()
        )
        where = "x".join(str(number) for number in worst[2].values())
        console.print(f"The cost model is off by {worst[0]:.0%} at most ({worst[1]}, {where}).")


def _show_race(record: Record, console: Console) -> None:
    for task in record["race"]:
        console.print(f"{task['task']}: {task['steps']} steps of {task['batch']}, error to reach {task['target']:.4g}")
        table = columns(["training"], ["s", "last error", "s to target", "× one process"])
        for name, row in task["rows"].items():
            reached = [
                "never" if row["to_target"] is None else f"{row['to_target']:.4g}",
                "" if row["speed_up"] is None else f"{row['speed_up']:.2f}",
            ]
            table.add_row(name, f"{row['seconds']:.4g}", f"{row['error']:.4g}", *reached)
        console.print(table)
    console.print(
        "Target: the last error of sweeps on one process, and 2 % of it; of cifar 30 %. Evaluations are not timed."
    )


def _cells(row: dict[str, Any], name: str) -> list[str]:
    speed_up = row["speed_up"].get(name)
    predicted = row["predicted"].get(name)
    counted = row["volume"].get(name, {}).get("counted")
    return [
        "" if speed_up is None else f"{speed_up:.2f}",
        "" if speed_up is None else f"{speed_up / row['ceiling']:.0%}",
        "" if predicted is None else f"{1e3 * predicted:.4g}",
        *("" if counted is None else f"{counted[kind] / 1e6:.3f}" for kind in ("sent", "reduced")),
    ]


def _as_expected(record: Record) -> bool:
    volumes = (volume for row in record["rows"] for volume in row["volume"].values())
    return all(volume["counted"] == volume["formula"] for volume in volumes)
