"""Stochastic descent by backward sweeps: the price of back-propagation, no derivative of an activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point, add_scaled, norm, subtract
from torchlift.objective.batches import TrainingBatches
from torchlift.objective.nudge import Nudge, NudgeState
from torchlift.objective.sweep import LayerStep, Sweep, backward_sweep
from torchlift.solvers import AdamScaling, Measure, Scaling, Solver, State
from torchlift.solvers.base import NAN
from torchlift.solvers.gram import GramState, GramStep
from torchlift.solvers.scaling import ScalingState
from torchlift.solvers.step_size import Schedule


@dataclass(frozen=True)
class SweepState(State):
    """Parameters, sizes of the nudges, and what the steps remember."""

    nudge: NudgeState
    scaling: ScalingState
    gram: tuple[GramState, ...]
    size: float

    @property
    def step_sizes(self) -> Mapping[str, float]:
        return dict.fromkeys(self.point, self.size)


@dataclass(frozen=True)
class SweepDescent(Solver[TrainingBatches, SweepState]):
    """On batch after batch, one backward sweep from the forward pass and one step of the parameters.

        θ ← θ − α d,   d from the sweep's gradient by a scaling (Adam by default),
        or, with `gram`, an implicit step of every dense layer in the metric of its inputs.

    A sweep costs the matrix products of back-propagation and tends to its
    gradient as the nudges vanish; at finite size it also moves units whose
    activation is flat. Only the current batch's lifted variables exist.

    Arguments:
        step_size: α > 0, or a schedule such as Cosine; with `gram` it is τ.
        scaling: how the gradient becomes a direction.
        gram: settings of the Gram-preconditioned step instead; dense layers only.
        nudge: settings of the nudges.
    """

    step_size: float | Schedule = 1e-3
    scaling: Scaling = field(default_factory=AdamScaling)
    gram: GramStep | None = None
    nudge: Nudge = field(default_factory=Nudge)

    def __post_init__(self) -> None:
        if not isinstance(self.step_size, Schedule):
            check_positive("SweepDescent step_size", self.step_size)
        for name, kind in (("scaling", Scaling), ("nudge", Nudge)):
            if not isinstance(getattr(self, name), kind):
                invalid_type(f"SweepDescent {name}", f"a {kind.__name__}", getattr(self, name))

    def check(self, problem: TrainingBatches, point: Point) -> None:
        if not isinstance(problem, TrainingBatches):
            hint = "Wrap the data: TrainingBatches(objective, as_batches((y, x), batch_size=100))."
            invalid_type("SweepDescent", "TrainingBatches", problem, hint)
        if point.blocks != problem.blocks:
            invalid_value("SweepDescent start", f"the blocks {list(problem.blocks)}", list(point))
        if self.gram is not None:
            dense = {layer.weight_name for layer in self._sweep(problem, 0, point, None).layers}
            others = [name for name in problem.names if not name.endswith("bias") and name not in dense]
            if others:
                hint = "Use scaling=AdamScaling() for such networks."
                invalid_value("SweepDescent gram", "dense layers only", f"other parameters: {others}", hint)

    def init(self, problem: TrainingBatches, point: Point) -> SweepState:
        sweep = self._sweep(problem, 0, point, None)
        gram: tuple[GramState, ...] = ()
        if self.gram is not None:
            values = dict(zip(problem.names, point["parameters"], strict=True))
            gram = tuple(self.gram.init(values[name]) for name in _stacks(sweep.layers))
        fresh = replace(sweep.state, multipliers=torch.ones_like(sweep.state.multipliers))
        return SweepState(0, point, NAN, fresh, self.scaling.init(point), gram, self._size(0))

    def step(self, problem: TrainingBatches, state: SweepState) -> SweepState:
        size = self._size(state.count)
        sweep = self._sweep(problem, state.count, state.point, state.nudge)
        scaling, gram = state.scaling, state.gram
        if self.gram is None:
            gradient = Point({"parameters": [sweep.gradients[name] for name in problem.names]})
            direction, scaling = self.scaling.direction(scaling, gradient)
            new = add_scaled(state.point, direction, {"parameters": -size})
        else:
            new, gram = self._implicit(problem, state, sweep, replace(self.gram, step=size))
        residual = norm(subtract(new, state.point)) / size
        return SweepState(state.count + 1, new, residual, sweep.state, scaling, gram, size)

    def measure(self, problem: TrainingBatches, state: SweepState) -> Measure:
        return Measure(problem.value(state.point))

    def _sweep(self, problem: TrainingBatches, count: int, point: Point, nudge: NudgeState | None) -> Sweep:
        y, x, context = problem.data(count, point)
        return backward_sweep(problem.objective.network, problem.objective.loss, y, x, self.nudge, nudge, context)

    def _implicit(
        self, problem: TrainingBatches, state: SweepState, sweep: Sweep, gram: GramStep
    ) -> tuple[Point, tuple[GramState, ...]]:
        """The Gram step of every stack of layers."""
        values = dict(zip(problem.names, state.point["parameters"], strict=True))
        states = []
        for memory, (name, layers) in zip(state.gram, _stacks(sweep.layers).items(), strict=True):
            bias_name = layers[0].bias_name
            inputs = torch.stack([each.inputs for each in layers])
            residual = torch.stack([each.residual for each in layers])
            bias = None if bias_name is None else values[bias_name]
            update = gram.update(memory, values[name], bias, inputs, residual)
            if not update.ok:
                raise StepFailure(Result.NOT_POSITIVE_DEFINITE, f"the Gram matrix of {name!r}")
            values[name] = values[name] + update.weight
            if bias_name is not None and update.bias is not None:
                values[bias_name] = values[bias_name] + update.bias
            states.append(update.state)
        return Point({"parameters": [values[name] for name in problem.names]}), tuple(states)

    def _size(self, count: int) -> float:
        return self.step_size.size(count) if isinstance(self.step_size, Schedule) else float(self.step_size)


def _stacks(layers: tuple[LayerStep, ...]) -> dict[str, list[LayerStep]]:
    """Layers that share one stacked parameter, by its name."""
    found: dict[str, list[LayerStep]] = {}
    for layer in sorted(layers, key=lambda each: each.index):
        found.setdefault(layer.weight_name, []).append(layer)
    return found
