"""The default algorithm: sweeps into the right basin, then quasi-Newton and proximal steps on the network itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchlift.core.checks import check_size
from torchlift.core.solution import Record, Result
from torchlift.core.tensors import Point
from torchlift.inversion.accelerated import Accelerated
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.quasi_newton import QuasiNewton
from torchlift.inversion.result import Inversion
from torchlift.inversion.run import Budget, Progress, run_steps
from torchlift.inversion.solver import length
from torchlift.inversion.state import Status, choose, select
from torchlift.inversion.sweep import Sweep
from torchlift.solvers import solve

#: Sweeps go on for an image while so many of them take this share off the objective of the network.
CHUNK, SHARE = 10, 0.25

#: Steps without visible progress that end quasi-Newton steps, which others follow.
PATIENCE = 10

#: Of the quasi-Newton steps where no start was given.
SPECTRUM = 1.0

#: Steps from every start before the best one is chosen, and steps of the last phase.
TRIAL, POLISH = 20, 100


@dataclass(frozen=True, kw_only=True)
class Automatic:
    """Minimises L(N(x); y) + ρR(x) + λ/2 ‖x − x₀‖² of the network itself, in three phases.

    1. Where no start was given, or gradients vanish at the start, backward sweeps of
       the lifted problem look for a better one: they move x where activations are
       flat. They end for an image when ten of them no longer take a quarter off its
       objective; networks without a lifted form, and losses other than the squared
       error, do without. Without a start, short runs from several are compared.
    2. Projected L-BFGS on the network with a smoothed prior, from the input with the
       lowest objective of those met, the start among them, so that the result is
       never worse than the start. Denoisers as priors and
       constraints on several entries at once do without.
    3. Accelerated proximal gradient with the prior itself, from there.

    Arguments:
        sweeps: at most; 0 for none.
        lifted: how to sweep.
        descent: how to go on from there.
        finish: how to end.
    """

    sweeps: int = 40
    lifted: Sweep = field(default_factory=Sweep)
    descent: QuasiNewton = field(default_factory=lambda: QuasiNewton(patience=PATIENCE))
    finish: Accelerated = field(default_factory=Accelerated)

    def __post_init__(self) -> None:
        check_size("Automatic sweeps", self.sweeps, minimum=0)

    @property
    def tolerance(self) -> float:
        """Of the finish, which decides."""
        return self.finish.tolerance

    @torch.no_grad()
    def run(self, problem: InversionProblem, starts: tuple[Tensor, ...], budget: Budget) -> Inversion:
        """Invert one batch from the best of some starts for every image."""
        first = starts[0]
        if problem.blind:
            return run_steps(problem, self.finish, first, budget)
        best = _Best(problem, first)
        descent = self.descent if problem.entrywise else self.finish
        if isinstance(descent, QuasiNewton) and len(starts) > 1:
            descent = replace(descent, spectrum=SPECTRUM)
        swept, most = torch.zeros_like(problem.weight, dtype=torch.int64), min(self.sweeps, budget.max_steps // 2)
        seeds = torch.ones_like(swept, dtype=torch.bool)
        if len(starts) == 1:
            fit, gradient = problem.smooth_gradient(best.x)
            seeds = (length(gradient) == 0) & (fit > 0)
        if most and problem.curvatures and bool(seeds.any()):
            x, budget = self._sweep(problem, best.x, seeds, swept, most, budget)
            starts = (*starts, x)
        trial = replace(budget, max_steps=min(TRIAL, budget.max_steps))
        for start in starts if len(starts) > 1 else ():
            best.offer(start)
            best.offer(run_steps(problem, replace(descent, tolerance=0.0), start, trial).x)
        result = run_steps(problem, replace(descent, tolerance=self.tolerance), best.x, budget)
        history, steps = result.history, result.steps + swept
        unfinished = result.status == Status.STALLED
        if problem.entrywise and bool(unfinished.any()):
            # without the smoothing of the prior; steps are counted for each image alone
            index = unfinished.nonzero().flatten()
            others = float(result.objective.sum() - result.objective[index].sum())
            note = _with_others(budget.progress, others / problem.batch, len(index) / problem.batch)
            ending = replace(budget, max_steps=min(POLISH, budget.max_steps), progress=note)
            polished = run_steps(problem.select(index), self.finish, result.x[index], ending)
            result = _merged(result, polished, index)
            steps = steps.index_add(0, index, polished.steps)
        made = int(swept.max())
        return replace(
            result,
            steps=steps,
            start_residual=problem.residual(first),
            start_objective=best.start,
            history=tuple(replace(record, step=record.step + made) for record in history),
        )

    def _sweep(
        self, problem: InversionProblem, x: Tensor, seeds: Tensor, swept: Tensor, most: int, budget: Budget
    ) -> tuple[Tensor, Budget]:
        """Where some images come to by sweeps that pay, counted in `swept`; an empty budget after a request to stop."""
        index = seeds.nonzero().flatten()
        part = problem.select(index)
        state = self.lifted.init(part, Point({"x": x[index]}))
        value = part.network_value(state.x)
        while len(index) and state.count < most:
            stopping = budget.stopping(state.count)
            if stopping is None:
                break
            stopping = replace(stopping, max_steps=min(CHUNK, most - state.count))
            solution = solve(part, self.lifted, state=state, stopping=stopping, callback=_callback(budget.progress))
            state = solution.state
            x = x.index_copy(0, index, state.x)
            swept[index] = state.watch.steps
            if solution.result in (Result.STOPPED, Result.INTERRUPTED):
                return x, replace(budget, max_steps=0)
            before, value = value, part.network_value(state.x)
            paying = state.watch.running & (value < (1 - SHARE) * before)
            if not bool(paying.all()):
                keep = paying.nonzero().flatten()
                part, state, index, value = part.select(keep), select(state, keep), index[keep], value[keep]
        return x, budget


class _Best:
    """The input with the lowest objective of the network that was met, for every image."""

    def __init__(self, problem: InversionProblem, x: Tensor) -> None:
        self.problem = problem
        self.x = problem.split.prox(x, 0.0) if problem.constrained else x
        self.value = self.start = problem.network_value(self.x)

    def offer(self, x: Tensor) -> None:
        """Take over the inputs that are better."""
        x = self.problem.split.prox(x, 0.0) if self.problem.constrained else x
        value = self.problem.network_value(x)
        better = value < self.value
        self.x, self.value = choose(better, x, self.x), torch.where(better, value, self.value)


def _merged(whole: Inversion, part: Inversion, index: Tensor) -> Inversion:
    """An inversion with some of its images replaced."""
    names = ("x", "residual", "gaps", "objective", "bound", "status")
    return replace(whole, **{name: getattr(whole, name).index_copy(0, index, getattr(part, name)) for name in names})


def _with_others(progress: Progress | None, others: float, share: float) -> Progress | None:
    """Records of a share of the images as records of all of them."""
    if progress is None:
        return None
    return lambda record: progress(replace(record, value=others + share * record.value))


def _callback(progress: Progress | None) -> Callable[[Record, object], bool]:
    def callback(record: Record, state: object) -> bool:
        # its value is the lifted objective, not that of the network
        return progress is not None and bool(progress(replace(record, extra={**record.extra, "lifted": 1.0})))

    return callback


def several_starts(problem: InversionProblem) -> tuple[Tensor, ...]:
    """Where to begin without a start: 0, mid-grey for images, and small random inputs for deep networks."""
    zero = problem.guess
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(zero.shape[1:], generator=generator, dtype=zero.dtype).to(zero.device)
    starts = [zero]
    if zero.ndim == 4:
        starts.append(torch.full_like(zero, 0.5))
    return (*starts, zero + 0.5 * noise)
