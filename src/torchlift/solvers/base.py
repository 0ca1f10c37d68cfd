"""The contract of a solver: frozen settings, an explicit state, one step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Generic, TypeVar

from torchlift.core.tensors import Point

P = TypeVar("P", contravariant=True)
S = TypeVar("S", bound="State")


@dataclass(frozen=True, eq=False)
class State:
    """What every solver's state has; solvers add fields of points, tensors, numbers and other records.

    Arguments:
        count: steps made so far.
        point: the current point, dual variables included.
        residual: norm of the optimality residual of the last step; NaN before the first.
    """

    count: int
    point: Point
    residual: float

    @property
    def step_sizes(self) -> Mapping[str, float]:
        """The sizes used in the last step, by block."""
        return {}


@dataclass(frozen=True)
class Measure:
    """What is evaluated only when a step is recorded.

    Arguments:
        value: the objective.
        gap: relative duality gap, None where it cannot be evaluated.
        extra: anything else worth recording.
    """

    value: float
    gap: float | None = None
    extra: Mapping[str, float] = field(default_factory=dict)


class Solver(ABC, Generic[P, S]):
    """An iteration x_{k+1} = T(x_k) for problems of type P with states of type S.

    Subclasses are frozen dataclasses. They never loop over steps: `solve` does.
    """

    #: What it solves: "blocks" of variables, "batches" of samples, "saddle problems" or "sums of residuals".
    solves: ClassVar[str] = "blocks"
    #: Whether blocks are minimised exactly, for which layers that do not meet should be blocks of their own.
    exact: ClassVar[bool] = False

    @abstractmethod
    def check(self, problem: P, point: Point) -> None:
        """Refuse a problem this solver cannot handle, naming the alternatives."""

    @abstractmethod
    def init(self, problem: P, point: Point) -> S:
        """The state before the first step."""

    @abstractmethod
    def step(self, problem: P, state: S) -> S:
        """The next state; the given one stays as it is."""

    @abstractmethod
    def measure(self, problem: P, state: S) -> Measure:
        """The objective and the gap at a state."""


NAN = math.nan
