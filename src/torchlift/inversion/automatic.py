"""The default algorithm: the best of several starts, then quasi-Newton and proximal steps on the network itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchlift.core.checks import check_size
from torchlift.core.tensors import Point
from torchlift.functions.losses import SquaredError
from torchlift.inversion.accelerated import Accelerated
from torchlift.inversion.lifted import Sweep
from torchlift.inversion.problem import InversionProblem, is_picture
from torchlift.inversion.quasi_newton import QuasiNewton
from torchlift.inversion.result import Inversion
from torchlift.inversion.run import Budget, Progress, Rounds, run_steps
from torchlift.inversion.solver import Nested, Status, choose
from torchlift.prox import Identity

#: Sweeps go on for an image while so many of them take this share off the objective of the network; they begin where
#: the first steps from every start took less.
CHUNK, SHARE = 10, 0.25

#: Steps without visible progress that end quasi-Newton steps, which others follow.
PATIENCE = 10

#: Of the quasi-Newton steps where no start was given.
SPECTRUM = 1.0

#: Steps from every start before the worse half of them is given up, and steps of the last phase.
TRIAL, POLISH = 20, 100

#: Inputs of at most so many entries are tried from more starts, with shorter trials, as long as images times starts
#: times parameters are at most so many: for small networks they cost next to nothing, and those with kinks have many
#: minima that do not fit.
SMALL, STARTS, SHORT, WORK = 128, 32, 15, 2**25

#: Sizes of random starts, in turn; large inputs get the first.
SIZES = (0.5, 0.1, 0.1, 0.5, 1.0, 1.0, 2.0)

#: Noise on the mid-grey starts of images. In a constant image all entries of a pooling window tie and all units of a
#: channel are active or none is: from 0.5 itself, features of a deep layer lead to worse minima.
GREY_NOISE = (0.05, 0.15)


@dataclass(frozen=True, kw_only=True)
class Automatic:
    """Minimises L(N(x); y) + ρR(x) + λ/2 ‖x − x₀‖² of the network itself.

    1. Projected L-BFGS on the network with a smoothed prior. Without a start, a few steps
       are made from several; the worse half of them is given up, then the next, and the best
       goes on from where it came to. The objective decreases, so that the result is never worse
       than the start. Denoisers as priors and constraints on several entries at once do without.
    2. Where these steps hardly move, or gradients vanish at the start that was given,
       backward sweeps of the lifted problem look for a better one: they move x where
       activations are flat. They end for an image when ten of them no longer take a quarter off
       its objective. Networks without a lifted form, and losses other than the squared
       error, do without.
    3. Where the prior is not smooth, accelerated proximal gradient with the prior itself.

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
        first, several = starts[0], len(starts) > 1
        if problem.blind:
            return run_steps(problem, self.finish, first, budget)
        descent: Nested = self.finish
        if problem.entrywise:
            spectrum = SPECTRUM if several else self.descent.spectrum
            descent = replace(self.descent, tolerance=self.tolerance, spectrum=spectrum)
            if problem.smooth_prior:  # nothing follows
                descent = replace(descent, patience=2 * descent.patience, visible=descent.visible / 2)
        images = torch.arange(problem.batch, device=first.device)
        copies = problem.select(images.repeat(len(starts))) if several else problem
        rounds = Rounds(copies, descent, torch.cat(starts), budget, len(starts))
        begin = rounds.state.watch.start[: problem.batch]
        stuck = (descent.pull(rounds.state) == 0)[: problem.batch]
        if several:
            least = rounds.state.watch.value.view(len(starts), -1).amin(0)
            while rounds.copies > 1:
                rounds.advance(rounds.state.count + (SHORT if first[0].numel() <= SMALL else TRIAL))
                _halve(rounds, images)
            stuck = rounds.state.watch.value > (1 - SHARE) * least
        elif self._worth_sweeping(problem, first):
            stuck = torch.ones_like(stuck)
        swept = self._sweep(problem, first, rounds, stuck)
        rounds.advance()
        result = rounds.finish()
        unfinished = result.status == Status.STALLED
        if isinstance(descent, QuasiNewton) and not problem.smooth_prior and bool(unfinished.any()):
            result = self._polished(problem, result, unfinished.nonzero().flatten(), budget)
        made = int(swept.max())
        return replace(
            result,
            steps=result.steps + swept,
            start_residual=problem.residual(first),
            start_objective=begin,
            history=tuple(replace(record, step=record.step + made) for record in result.history),
        )

    def _worth_sweeping(self, problem: InversionProblem, x: Tensor) -> bool:
        """Whether the lifted problem is convex and that of the network is not: one layer with an activation."""
        layers = problem.layers
        if layers is None or isinstance(layers.activations[0], Identity):
            return False
        return layers.is_convex(x, problem.context)

    def _sweep(self, problem: InversionProblem, x: Tensor, rounds: Rounds, stuck: Tensor) -> Tensor:
        """Sweeps of some images from x, which go on from there where that is better; how many there were: (B,)."""
        swept = torch.zeros_like(problem.weight, dtype=torch.int64)
        most = min(self.sweeps, rounds.budget.max_steps // 2)
        index = stuck.nonzero().flatten()
        if not (most and len(index) and isinstance(problem.loss, SquaredError) and (lifted := problem.sweepable())):
            return swept
        part = lifted.select(index)
        value = part.network_value(x[index])
        sweeps = Rounds(part, self.lifted, x[index], replace(rounds.budget, max_steps=most), extra={"lifted": 1.0})
        while len(index):
            before, done = value, sweeps.state.count
            sweeps.advance(done + CHUNK)
            if sweeps.state.count == done:
                break
            x, value = x.index_copy(0, index, sweeps.state.x), sweeps.problem.network_value(sweeps.state.x)
            swept[index] = sweeps.state.watch.steps
            keep = (sweeps.state.watch.running & (value < (1 - SHARE) * before)).nonzero().flatten()
            sweeps.keep(keep, 1)
            index, value = index[keep], value[keep]
        rounds.stopped |= sweeps.stopped
        better = (swept > 0) & (problem.network_value(x) < rounds.state.watch.value)
        if bool(better.any()):
            fresh = rounds.solver.init(problem, Point({"x": x}))
            rounds.state = choose(~better, rounds.state, fresh)
        return swept

    def _polished(self, problem: InversionProblem, result: Inversion, index: Tensor, budget: Budget) -> Inversion:
        """Some images again, from where they are, without the smoothing of the prior."""
        others = float(result.objective.sum() - result.objective[index].sum())
        note = _with_others(budget.progress, others / problem.batch, len(index) / problem.batch)
        ending = replace(budget, max_steps=min(POLISH, budget.max_steps), progress=note)
        part = run_steps(problem.select(index), self.finish, result.x[index], ending)
        names = ("x", "residual", "gaps", "objective", "bound", "status")
        merged = {name: getattr(result, name).index_copy(0, index, getattr(part, name)) for name in names}
        return replace(result, steps=result.steps.index_add(0, index, part.steps), **merged)


def _halve(rounds: Rounds, images: Tensor) -> None:
    """Give up the worse half of the starts of every image."""
    left = (rounds.copies + 1) // 2
    best = rounds.state.watch.value.view(rounds.copies, -1).argsort(0)[:left]
    rounds.keep((best * len(images) + images).flatten(), left)


def _with_others(progress: Progress | None, others: float, share: float) -> Progress | None:
    """Records of a share of the images as records of all of them."""
    if progress is None:
        return None
    return lambda record: progress(replace(record, value=others + share * record.value))


def several_starts(problem: InversionProblem, room: int, parameters: int) -> tuple[Tensor, ...]:
    """Where to begin without a start: 0, mid-grey with noise for images, and random inputs for others and small ones.

    Arguments:
        room: inputs that fit into memory at once.
        parameters: of the network.
    """
    zero = problem.guess
    grey = [(0.5, size) for size in GREY_NOISE] if is_picture(zero) else []
    count = max(1, len(grey))
    if zero[0].numel() <= SMALL:
        count = max(count, min(STARTS, WORK // (problem.batch * max(parameters, 1))) - 1)
    generator = torch.Generator().manual_seed(0)
    levels = [*grey, *((0.0, SIZES[k % len(SIZES)]) for k in range(count))]
    starts = [zero]
    for level, size in levels[: max(0, min(count, room // problem.batch - 1))]:
        noise = torch.randn(zero.shape[1:], generator=generator, dtype=zero.dtype).to(zero.device)
        starts.append(zero + level + size * noise)
    return tuple(starts)
