"""`torchlift bench solvers`: steps and seconds to a given accuracy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import ClassVar

import torch
from rich.console import Console
from rich.table import Table

from torchlift.cli.command import Command, Record
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.lab.benchmarks import solvers


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

    def collect(self) -> Record:
        setting = solvers.Setting(
            images=check_size("images", self.images), layers=check_size("layers", self.layers), seed=self.seed
        )
        known = solvers.contestants(setting)
        for name in self.only:
            if name not in known:
                invalid_value("only", f"names among {', '.join(known)}", repr(name))
        console = Console(stderr=True)
        seconds = check_positive("seconds", self.seconds)
        with console.status("starting") as status:
            found = list(
                solvers.runs(
                    setting,
                    seconds,
                    self.only or None,
                    lambda name: status.update(f"{name}: {seconds:g} s"),
                )
            )
        levels = solvers.targets(found)
        reached = {run.name: {str(level): run.reached(target) for level, target in levels.items()} for run in found}
        return {
            "setting": asdict(setting),
            "threads": torch.get_num_threads(),
            "runs": [run.record() for run in found],
            "reached": reached,
        }

    def show(self, record: Record, console: Console) -> None:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("solver")
        for heading in ("steps", "objective", "PSNR (dB)"):
            table.add_column(heading, justify="right")
        for level in solvers.LEVELS:
            table.add_column(f"{level:.0%} after", justify="right")
        for run in record["runs"]:
            cells = [_reached(record["reached"][run["name"]][str(level)]) for level in solvers.LEVELS]
            table.add_row(
                run["name"], str(run["steps"][-1]), f"{run['values'][-1]:.4g}", f"{run['psnr'][-1]:.2f}", *cells
            )
        console.print(table)
        setting = record["setting"]
        console.print(
            f"\n{setting['images']} images, {setting['layers']} × 784, from {record['runs'][0]['values'][0]:.4g}. "
            "Percent: share of the largest decrease that any solver made."
        )

    def save(self, record: Record) -> None:
        """The curves beside the JSON object, where matplotlib is installed."""
        if self.out is not None and find_spec("matplotlib") is not None:
            from torchlift.report import plot

            figure = plot.descent(record["runs"])
            for ending in ("png", "svg"):
                figure.savefig(self.out / f"bench-solvers.{ending}", dpi=150)


def _reached(found: tuple[int, float] | list | None) -> str:
    return "–" if found is None else f"{found[0]} steps, {found[1]:.2g} s"
