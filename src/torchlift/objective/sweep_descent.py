# pyright: reportPrivateImportUsage=false
"""Stochastic descent by backward sweeps: the price of back-propagation, no derivative of an activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import check_number
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point, clone
from torchlift.objective.back_propagation import back_propagate
from torchlift.objective.batches import TrainingBatches
from torchlift.objective.contrast import contrast
from torchlift.objective.nudge import Nudge, NudgeState
from torchlift.objective.relative_step import RelativeStep
from torchlift.objective.rules import SweepRule
from torchlift.objective.sweep import Sweep, backward_sweep
from torchlift.solvers import Measure, Solver, State
from torchlift.solvers.base import NAN

#: Steps between two updates of the average, which cost as much as a tenth of a step.
EVERY = 5


@dataclass(frozen=True)
class SweepState(State):
    """Parameters, sizes of the nudges, what the rule remembers, and the average.

    Arguments:
        loss: mean loss of the last batch, before its step; NaN before the first.
        average: running average of the parameters; without tensors where there is none.
    """

    nudge: NudgeState
    rule: Any
    size: float
    loss: Tensor
    average: Point

    @property
    def step_sizes(self) -> Mapping[str, float]:
        return dict.fromkeys(self.point, self.size)

    @property
    def answer(self) -> Point:
        """The parameters to use: the average where there is one."""
        return self.average if self.average.tensors else self.point


@dataclass(frozen=True)
class SweepDescent(Solver[TrainingBatches, SweepState]):
    """On batch after batch, one backward sweep from the forward pass and one step of the parameters.

    A sweep costs the matrix products of back-propagation and tends to its
    gradient as the nudges vanish; at finite size it also moves units whose
    activation is flat. Only the current batch's lifted variables exist. With
    the Conventional lifting the gradient is that of back-propagation itself,
    with the Contrastive one that of its two energies.

    Arguments:
        rule: how the gradients become a step: `RelativeStep()` needs no learning rate; `ScaledStep(α)`, `GramRule()`.
        nudge: settings of the nudges.
        average: weight of the past in an average of the parameters over the steps, whose answer is
            better than the last point while steps are long; 0 for none.
        reuse: overwrite the memory of the state that `step` is given, which saves much of the time of a
            step where there are many parameters. Only the newest state is valid then.
    """

    rule: SweepRule = field(default_factory=RelativeStep)
    nudge: Nudge = field(default_factory=Nudge)
    average: float = 0.98
    reuse: bool = False

    def __post_init__(self) -> None:
        for name, kind in (("rule", SweepRule), ("nudge", Nudge)):
            if not isinstance(getattr(self, name), kind):
                hint = "Try ScaledStep(1e-3)." if name == "rule" else ""
                invalid_type(f"SweepDescent {name}", f"a {kind.__name__}", getattr(self, name), hint)
        if not 0 <= check_number("SweepDescent average", self.average) < 1:
            invalid_value("SweepDescent average", "a number in [0, 1)", self.average)

    def check(self, problem: TrainingBatches, point: Point) -> None:
        if not isinstance(problem, TrainingBatches):
            hint = "Wrap the data: TrainingBatches(objective, as_batches((y, x), batch_size=100))."
            invalid_type("SweepDescent", "TrainingBatches", problem, hint)
        if point.blocks != problem.blocks:
            invalid_value("SweepDescent start", f"the blocks {list(problem.blocks)}", list(point))
        self.rule.check(problem.names, self._sweep(problem, 0, point, None))

    def init(self, problem: TrainingBatches, point: Point) -> SweepState:
        sweep = self._sweep(problem, 0, point, None)
        nudge = replace(sweep.state, multipliers=torch.ones_like(sweep.state.multipliers))
        memory = self.rule.init(problem.names, point, sweep)
        average = point if self.average else Point({})
        loss = torch.full_like(sweep.loss, NAN)
        return SweepState(0, point, NAN, nudge, memory, self.rule.size(memory, 0), loss, average)

    def step(self, problem: TrainingBatches, state: SweepState) -> SweepState:
        k = state.count
        sweep = self._sweep(problem, k, state.point, state.nudge)
        if not bool(sweep.loss.isfinite()):
            raise StepFailure(Result.NOT_FINITE, f"the loss is {float(sweep.loss)}{_where(problem, sweep)}")
        share = problem.share_left(k)
        point, memory = self.rule.move(problem.names, state.point, sweep, state.rule, k, share, self.reuse)
        size = self.rule.size(memory, k)
        average = self._average(state.average, point, k + 1)
        return SweepState(k + 1, point, NAN, sweep.state, memory, size, sweep.loss, average)

    def measure(self, problem: TrainingBatches, state: SweepState) -> Measure:
        return Measure(problem.value(state.point))

    def _average(self, average: Point, point: Point, count: int) -> Point:
        """Every few steps; over all steps at first, so that the start is forgotten."""
        if not average.tensors:
            return average
        if count <= EVERY:  # the point itself, until the average begins there
            return clone(point) if count == EVERY else point
        if count % EVERY:
            return average
        average = average if self.reuse else clone(average)
        weight = max(1 - self.average**EVERY, 1 / (1 + 0.2 * count / EVERY))
        torch._foreach_lerp_(average.tensors, point.tensors, weight)
        return average

    def _sweep(self, problem: TrainingBatches, count: int, point: Point, nudge: NudgeState | None) -> Sweep:
        y, x, context = problem.data(count, point)
        share = problem.share(count)
        network, loss, lifting = problem.objective.network, problem.objective.loss, problem.objective.lifting
        if lifting.hard:
            return back_propagate(network, loss, y, x, context, share)
        if lifting.contrastive:
            return contrast(problem.objective, y, x, context, share, problem.part)
        return backward_sweep(network, loss, y, x, self.nudge, nudge, context, share, self.rule.centring)


def _where(problem: TrainingBatches, sweep: Sweep) -> str:
    """The processes whose own samples are at fault, where there are many."""
    if problem.mesh is None:
        return ""
    found = problem.mesh.which(not bool(sweep.output.isfinite().all()))
    return f", on {found}" if found else ""
