"""Solvers side by side on the paper's denoising problem: how fast the lifted Bregman objective falls."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from torchlift.core.solution import Record, Result, StepFailure
from torchlift.data import Denoising, as_batches, load_digits, psnr
from torchlift.functions.losses import SquaredError
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import Objective, TrainingProblem
from torchlift.prox import SoftThreshold
from torchlift.solvers import (
    BlockCoordinateDescent,
    FromBound,
    HeavyBall,
    LinearisedBCD,
    Nesterov,
    ProximalAdam,
    ProximalGradient,
    Solver,
    Stopping,
    solve,
)
from torchlift.training import SweepDescent, TrainMethod, Work

#: Shares of the possible decrease that count as an accuracy reached.
LEVELS = (0.5, 0.9, 0.99)


@dataclass(frozen=True)
class Setting:
    """The paper's optimiser figure: 7 layers of 784 units, soft-threshold 0.2, μ = 5e-3, Gaussian noise 0.15.

    Args:
        images: noisy digits (2,000 in the paper).
        layers: hidden layers.
        threshold, mu, noise: as named.
        learning_rate: of Adam on both blocks.
        seed: of noise and weights.
    """

    images: int = 200
    layers: int = 7
    threshold: float = 0.2
    mu: float = 5e-3
    noise: float = 0.15
    learning_rate: float = 8e-4
    seed: int = 0


@dataclass(frozen=True)
class Run:
    """One solver's way down."""

    name: str
    result: str
    steps: tuple[int, ...]
    seconds: tuple[float, ...]
    values: tuple[float, ...]
    psnr: tuple[float, ...]

    def record(self) -> dict[str, object]:
        return asdict(self)

    def reached(self, target: float) -> tuple[int, float] | None:
        """(steps, seconds) at which the objective first was at most `target`."""
        for step, second, value in zip(self.steps, self.seconds, self.values, strict=True):
            if value <= target:
                return step, second
        return None


def contestants(setting: Setting) -> dict[str, Solver | TrainMethod]:
    """The paper's four optimisers on both blocks; ours: exact block-coordinate descent, and backward sweeps.

    The sweeps run in batches and keep the lifted variables at the forward
    pass, where every penalty is zero: their objective is the loss itself.
    """
    # Bounds are asked for every ten steps, since a norm of each layer costs as much as several steps. Heavy-ball
    # takes a third of the step: its momentum on both blocks at once is not stable with the whole one.
    return {
        "gradient": LinearisedBCD(ProximalGradient(FromBound(every=10))),
        "heavy-ball": LinearisedBCD(ProximalGradient(FromBound(0.3, every=10), HeavyBall(0.7))),
        "Nesterov": LinearisedBCD(ProximalGradient(FromBound(every=10), Nesterov())),
        "Adam": LinearisedBCD(ProximalAdam(setting.learning_rate)),
        "exact": BlockCoordinateDescent(tolerance=1e-2, inner_steps=30),
        "sweep + Adam": SweepDescent(partial(torch.optim.Adam, lr=setting.learning_rate)),
        "sweep, no learning rate": SweepDescent(),
    }


def build(setting: Setting) -> tuple[MLP, Tensor, Tensor]:
    """The network, noisy inputs and clean targets."""
    generator = torch.Generator().manual_seed(setting.seed)
    images = load_digits("train").images[: setting.images]
    y, x = (part.flatten(1) for part in (Denoising(setting.noise).degrade(images, generator).y, images))
    size = x.shape[1]
    return MLP([size] * (setting.layers + 2), SoftThreshold(setting.threshold), generator=generator), y, x


def runs(
    setting: Setting,
    seconds: float,
    names: tuple[str, ...] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Run]:
    """Every solver from the same start, for the same time."""
    for name, solver in contestants(setting).items():
        if names is None or name in names:
            if progress is not None:
                progress(name)
            yield run(setting, name, solver, seconds)


def run(setting: Setting, name: str, solver: Solver | TrainMethod, seconds: float) -> Run:
    """One solver for a time; of recording, only the value of the objective counts."""
    network, y, x = build(setting)
    if isinstance(solver, TrainMethod):
        return _sweep(setting, name, solver, seconds)
    objective = Objective(network, Bregman(setting.mu))
    problem = TrainingProblem(objective, y, x, split="odd-even" if solver.exact else "whole")
    start, every = problem.start("input"), 1 if solver.exact else 5
    steps, times, values, quality = [0], [0.0], [problem.value(start)], [_psnr(network, y, x)]
    spent = 0.0  # by recording

    def note(record: Record, _state: object) -> None:
        nonlocal spent
        begin = time.perf_counter()
        steps.append(record.step)
        times.append(record.seconds - spent)
        values.append(record.value)
        quality.append(_psnr(network, y, x))
        spent += time.perf_counter() - begin

    stopping = Stopping(10**6, change=None, time_limit=seconds)
    solution = solve(problem, solver, start, stopping=stopping, callback=note, record_every=every)
    return Run(name, solution.result.code, tuple(steps), tuple(times), tuple(values), tuple(quality))


def _sweep(setting: Setting, name: str, method: TrainMethod, seconds: float) -> Run:
    """Sweeps keep z at the forward pass, where every penalty is zero and the objective is the loss."""
    network, y, x = build(setting)
    batches = as_batches((y, x), batch_size=100, seed=setting.seed)
    begun = method.init(Work(network, SquaredError(), batches, lambda count: 1.0))
    rows, spent = [(0, 0.0, _loss(network, y, x), _psnr(network, y, x))], 0.0
    result, begin = Result.TIME_LIMIT, time.perf_counter()
    while time.perf_counter() - begin - spent < seconds:
        try:
            begun.step()
        except StepFailure as failure:
            result = failure.result
            break
        if begun.count % batches.per_epoch == 0:
            paused = time.perf_counter()
            rows.append((begun.count, paused - begin - spent, _loss(network, y, x), _psnr(network, y, x)))
            spent += time.perf_counter() - paused
    return Run(name, result.code, *map(tuple, zip(*rows, strict=True)))


def targets(found: list[Run]) -> dict[float, float]:
    """Objective values that stand for `LEVELS` of the largest decrease any solver made."""
    first = max(each.values[0] for each in found)
    best = min(min(each.values) for each in found)
    return {level: first - level * (first - best) for level in LEVELS}


@torch.no_grad()
def _loss(network: MLP, y: Tensor, x: Tensor) -> float:
    return float(SquaredError().mean(network(y), x))


@torch.no_grad()
def _psnr(network: MLP, y: Tensor, x: Tensor) -> float:
    """Mean over images of the peak signal-to-noise ratio, in dB, of the network's own output."""
    found = float(psnr(network(y), x).mean())
    return found if math.isfinite(found) else -math.inf
