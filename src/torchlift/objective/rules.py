"""How a sweep's gradients become a step of the parameters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_type
from torchlift.core.tensors import Point, add_scaled
from torchlift.objective.centring import centre, uncentre
from torchlift.objective.sweep import Sweep
from torchlift.solvers import AdamScaling, Scaling
from torchlift.solvers.scaling import ScalingState
from torchlift.solvers.step_size import Schedule

BLOCK = "parameters"


class SweepRule(ABC):
    """From the gradients at a point to the next point. Settings are frozen, what is remembered is a state."""

    centring: bool = False
    """Whether gradients are centred before they are used."""

    def check(self, names: Sequence[str], sweep: Sweep) -> None:
        """Refuse networks that this rule does not serve."""
        return

    @abstractmethod
    def init(self, names: Sequence[str], point: Point, sweep: Sweep) -> Any:
        """What is remembered before the first step, made of tensors and numbers."""

    @abstractmethod
    def move(
        self,
        names: Sequence[str],
        point: Point,
        sweep: Sweep,
        state: Any,
        count: int,
        share: float,
        reuse: bool = False,
    ) -> tuple[Point, Any]:
        """The next point and what is remembered.

        Arguments:
            names: of the parameters, in the order of the point's block.
            sweep: the gradients; its tensors may be overwritten.
            count: number of the step, from 0.
            share: of the budget that is left, from 1 down to 0; rules that anneal by themselves use it.
            reuse: whether the memory of `point` and `state` may be overwritten.
        """

    @abstractmethod
    def size(self, state: Any, count: int) -> float:
        """A step size to record."""


@dataclass(frozen=True)
class ScaledStep(SweepRule):
    """θ ← θ − α d with d from the gradient by a scaling (Adam by default).

    Arguments:
        step_size: α > 0, or a schedule such as Cosine.
        scaling: how the gradient becomes a direction.
        centring: eliminate the biases of dense layers; see `centring`.
        anneal: multiply α by the share of the budget that is left, linearly down to zero.
    """

    step_size: float | Schedule = 1e-3
    scaling: Scaling = field(default_factory=AdamScaling)
    centring: bool = False
    anneal: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.step_size, Schedule):
            check_positive("ScaledStep step_size", self.step_size)
        if not isinstance(self.scaling, Scaling):
            invalid_type("ScaledStep scaling", "a Scaling", self.scaling)

    def init(self, names: Sequence[str], point: Point, sweep: Sweep) -> ScalingState:
        return self.scaling.init(point)

    def move(
        self,
        names: Sequence[str],
        point: Point,
        sweep: Sweep,
        state: ScalingState,
        count: int,
        share: float,
        reuse: bool = False,
    ) -> tuple[Point, ScalingState]:
        size = self.size(state, count) * (share if self.anneal else 1.0)
        means = centre(sweep) if self.centring else ()
        gradient = Point({BLOCK: [sweep.gradients[name] for name in names]})
        direction, state = self.scaling.direction(state, gradient)
        uncentre(dict(zip(names, direction[BLOCK], strict=True)), means)
        return add_scaled(point, direction, {BLOCK: -size}), state

    def size(self, state: ScalingState, count: int) -> float:
        return self.step_size.size(count) if isinstance(self.step_size, Schedule) else float(self.step_size)
