"""`torchlift bench solvers`: how fast the lifted Bregman objective falls on the paper's denoising problem.

One definition for the bench, where each method has the same seconds, and for the experiment `optimisers`, where each
has its number of steps: the same methods, settings, starts and measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from rich.console import Console
from torch import Tensor

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import shown
from torchlift.core.checks import check_choice, check_device, check_positive, check_size
from torchlift.data import as_batches, psnr
from torchlift.functions.losses import SquaredError
from torchlift.lab.problem import MU, WATCHED, Images, build, load_images
from torchlift.lab.trajectory import Row, Trajectory, follow
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.report.records import Curves, Series, Table
from torchlift.solvers import (
    BlockCoordinateDescent,
    FromBound,
    HeavyBall,
    LinearisedBCD,
    Nesterov,
    ProximalAdam,
    ProximalGradient,
    Solver,
)
from torchlift.training import Phase, SweepDescent, TrainMethod, TrainStep, Work
from torchlift.training.lifted_step import LiftedStep
from torchlift.training.step import Budget, unlimited

#: The paper does not tell the threshold of this experiment; this is its harder one.
THRESHOLD = 0.2
RATE = 8e-4
"""Learning rate of Adam, on both blocks and in sweeps."""
BATCH = 100
"""Batch size of sweeps; all other methods take all images in every step."""

PAPER = ("gradient", "heavy-ball", "Nesterov", "Adam")
EXACT, SWEEP_ADAM, SWEEP = "exact block-coordinate descent", "sweeps, Adam", "sweeps, no learning rate"
OURS = (EXACT, SWEEP_ADAM, SWEEP)

LEVELS = (0.5, 0.9, 0.99)
"""Shares of the possible decrease that count as an accuracy reached."""
COLUMNS = {"seconds": "seconds", "values": "objective", "psnr": "training psnr"}
"""Key of a run in the record ↦ what was measured."""


def methods() -> dict[str, Solver[Any, Any] | TrainMethod]:
    """The paper's four on both blocks in turn, and ours.

    The paper tells no step sizes but Adam's. Ours follow from the bounds on each block's curvature,
    which are asked for every ten steps since they cost as much as several: α = 1/L for the gradient
    and for Nesterov, and for heavy-ball with β = 0.9 a little less than its limit 2(1 − β)/L.
    """
    return {
        "gradient": LinearisedBCD(ProximalGradient(FromBound(every=10))),
        "heavy-ball": LinearisedBCD(ProximalGradient(FromBound(0.19, every=10), HeavyBall(0.9))),
        "Nesterov": LinearisedBCD(ProximalGradient(FromBound(every=10), Nesterov())),
        "Adam": LinearisedBCD(ProximalAdam(RATE)),
        EXACT: BlockCoordinateDescent(tolerance=1e-2, inner_steps=30),
        SWEEP_ADAM: SweepDescent(partial(torch.optim.Adam, lr=RATE)),
        SWEEP: SweepDescent(),
    }


def begin(name: str, network: MLP, images: Images, seed: int, budget: Budget = unlimited) -> TrainStep:
    """A method at work on the network: z begins as the replicated input, in sweeps at the forward pass."""
    method = methods()[name]
    if isinstance(method, TrainMethod):
        batches = as_batches((images.y, images.x), batch_size=min(BATCH, len(images.y)), seed=seed)
        return method.init(Work(network, SquaredError(), batches, budget))
    phase = Phase(Bregman(MU), method, batch_size="full", weights="keep", states="input")
    return phase.begin(network, SquaredError(), as_batches((images.y, images.x)), seed=seed)


def steps_per_epoch(name: str, images: Images) -> int:
    return math.ceil(len(images.y) / BATCH) if name in (SWEEP_ADAM, SWEEP) else 1


@torch.no_grad()
def measure(network: MLP, images: Images, step: TrainStep) -> Row:
    """The objective on all training images, and PSNR of the network's own output.

    Sweeps keep z at the forward pass, where every penalty is zero and the objective is the loss.
    """
    if isinstance(step, LiftedStep):
        objective = step.problem.value(step.state.point)
    else:
        objective = SquaredError().mean(network(images.y), images.x)
    return {
        "objective": float(objective),
        "training psnr": _quality(network, images.y[:WATCHED], images.x[:WATCHED]),
        "validation psnr": _quality(network, images.validation_y, images.validation_x),
    }


def _quality(network: MLP, y: Tensor, x: Tensor) -> float:
    return float(psnr(network(y), x).mean())


def race(
    names: Sequence[str],
    count: int,
    layers: int,
    seconds: float,
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
    device: str = "cpu",
) -> dict[str, Trajectory]:
    """Every method from the same start, for the same time.

    Arguments:
        names: of methods.
        count: training images; a fifth as many are held out.
        layers: hidden layers.
        seconds: for the steps of each.
        seed: of noise and weights.
        tell: called with the name of each method.
        device: where all of them work.
    """
    images = load_images("denoising", count, max(1, count // 5), seed, device=device)
    trajectories = {}
    for name in names:
        tell(name)
        network = build(THRESHOLD, seed, layers).to(device)
        step = begin(name, network, images, seed)
        every = 1 if name == EXACT else max(5, steps_per_epoch(name, images))
        trajectories[name] = follow(step, partial(measure, network, images, step), every=every, time_limit=seconds)
    return trajectories


def targets(trajectories: Mapping[str, Trajectory]) -> dict[float, float]:
    """Objective values that stand for `LEVELS` of the largest decrease that any method made."""
    columns = [trajectory.column("objective") for trajectory in trajectories.values()]
    first, best = max(column[0] for column in columns), min(map(min, columns))
    return {level: first - level * (first - best) for level in LEVELS}


def reached(trajectory: Trajectory, target: float) -> tuple[int, float] | None:
    """(steps, seconds) at which the objective first was at most the target."""
    return next(((row["step"], row["seconds"]) for row in trajectory.rows if row["objective"] <= target), None)


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
    """Seed of noise and weights."""
    device: str = "cpu"
    """Where they race: cpu, cuda, mps, xpu."""

    def check(self) -> None:
        check_size("images", self.images)
        check_size("layers", self.layers)
        check_positive("seconds", self.seconds)
        check_device("device", self.device)
        for name in self.only:
            check_choice("only", name, methods())

    def collect(self) -> Record:
        names = [name for name in methods() if not self.only or name in self.only]
        with Console(stderr=True).status("starting") as status:
            trajectories = race(
                names, self.images, self.layers, self.seconds, self.seed,
                lambda name: status.update(f"{name}: {self.seconds:g} s"), self.device,
            )  # fmt: skip
        runs = [
            {"name": name, "failure": trajectory.failure, "steps": trajectory.steps}
            | {key: trajectory.column(measured) for key, measured in COLUMNS.items()}
            for name, trajectory in trajectories.items()
        ]
        levels = targets(trajectories)
        times = {
            name: {str(level): reached(trajectory, target) for level, target in levels.items()}
            for name, trajectory in trajectories.items()
        }
        settings = {name: getattr(self, name) for name in ("images", "layers", "seed", "device")}
        return {**settings, "threads": torch.get_num_threads(), "runs": runs, "reached": times}

    def show(self, record: Record, console: Console) -> None:
        columns = {"solver": "", "steps": "", "objective": ".4g", "PSNR (dB)": ".2f"}
        columns |= {f"{level:.0%} after": "" for level in LEVELS}
        rows = []
        for run in record["runs"]:
            places = [record["reached"][run["name"]][str(level)] for level in LEVELS]
            cells = [None if place is None else f"{place[0]} steps, {place[1]:.2g} s" for place in places]
            rows.append([run["name"], run["steps"][-1], run["values"][-1], run["psnr"][-1], *cells])
        console.print(shown(Table.of("solvers", "", columns, rows)))
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
