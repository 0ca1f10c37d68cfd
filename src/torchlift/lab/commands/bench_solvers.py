"""`torchlift bench solvers`: steps and seconds to a given accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from rich.console import Console

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import columns
from torchlift.core.checks import check_device, check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.lab.benchmarks import solvers
from torchlift.report.records import Curves, Series


@dataclass(frozen=True, kw_only=True)
class BenchSolvers(Command):
    """Race the solvers on the paper's denoising objective (soft-threshold network, Bregman lifting)."""

    name: ClassVar[str] = "bench solvers"

    images: int = 200
    """Noisy digits; the paper takes 2,000."""
    layers: int = 7
    """Hidden layers of 784 units."""
    seconds: float = 20.0
    """Time for each solver."""
    only: tuple[str, ...] = ()
    """Names of the solvers to run; all by default."""
    seed: int = 0
    """Of noise and weights."""
    device: str = "cpu"
    """Where they race: cpu, cuda, mps, xpu."""

    def check(self) -> None:
        check_size("images", self.images)
        check_size("layers", self.layers)
        check_positive("seconds", self.seconds)
        check_device("device", self.device)
        names = solvers.methods()
        for name in self.only:
            if name not in names:
                invalid_value("only", f"names among {', '.join(names)}", repr(name))

    def collect(self) -> Record:
        names = [name for name in solvers.methods() if not self.only or name in self.only]
        with Console(stderr=True).status("starting") as status:
            trajectories = solvers.race(
                names, self.images, self.layers, self.seconds, self.seed,
                lambda name: status.update(f"{name}: {self.seconds:g} s"), self.device,
            )  # fmt: skip
        levels = solvers.targets(trajectories)
        return {
            "images": self.images,
            "layers": self.layers,
            "seed": self.seed,
            "device": self.device,
            "threads": torch.get_num_threads(),
            "runs": [
                {
                    "name": name,
                    "failure": trajectory.failure,
                    "steps": trajectory.steps,
                    "seconds": trajectory.column("seconds"),
                    "values": trajectory.column("objective"),
                    "psnr": trajectory.column("training psnr"),
                }
                for name, trajectory in trajectories.items()
            ],
            "reached": {
                name: {str(level): solvers.reached(trajectory, target) for level, target in levels.items()}
                for name, trajectory in trajectories.items()
            },
        }

    def show(self, record: Record, console: Console) -> None:
        levels = [f"{level:.0%} after" for level in solvers.LEVELS]
        table = columns(["solver"], ["steps", "objective", "PSNR (dB)", *levels])
        for run in record["runs"]:
            cells = [_reached(record["reached"][run["name"]][str(level)]) for level in solvers.LEVELS]
            table.add_row(
                run["name"], str(run["steps"][-1]), f"{run['values'][-1]:.4g}", f"{run['psnr'][-1]:.2f}", *cells
            )
        console.print(table)
        console.print(
            f"\n{record['images']} images, {record['layers']} × 784, from {record['runs'][0]['values'][0]:.4g}. "
            "Percent: share of the largest decrease that any solver made."
        )

    def save(self, record: Record) -> None:
        self.save_figure("bench-solvers", lambda plot: plot.figure(*descent(record["runs"])), ("png", "svg"))


def descent(runs: Sequence[dict[str, Any]]) -> list[Curves]:
    """The objective against steps and seconds, and the PSNR against seconds."""

    def curves(title: str, x: str, y: str, label: str) -> Curves:
        series = [Series(run["name"], run[x], run[y]) for run in runs]
        return Curves(f"{y}-{x}", title, x[:-1] if x == "steps" else x, label, series, y_log=y == "values")

    return [
        curves("Descent by steps", "steps", "values", "objective"),
        curves("Descent by time", "seconds", "values", "objective"),
        curves("Images", "seconds", "psnr", "PSNR (dB)"),
    ]


def _reached(place: Sequence[float] | None) -> str:
    return "–" if place is None else f"{place[0]} steps, {place[1]:.2g} s"
