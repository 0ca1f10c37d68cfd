"""What a solver returns: a point, why it stopped, and how it got there. Failure is a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from torchlift.core.errors import TorchliftError
from torchlift.core.html import curve, facts
from torchlift.core.tensors import Point

S = TypeVar("S")


class Result(Enum):
    """Why a solver stopped, each with its sentence."""

    CONVERGED = "The stopping tolerance was reached."
    MAX_STEPS = "The number of steps ran out before a tolerance was reached."
    TIME_LIMIT = "The time ran out before a tolerance was reached."
    STOPPED = "The callback asked to stop."
    INTERRUPTED = "It was interrupted from the keyboard."
    NOT_FINITE = "A value became NaN or infinite."
    DIVERGED = "The iterates grew without bound."
    LINE_SEARCH_FAILED = "No step size gave enough decrease."
    NOT_POSITIVE_DEFINITE = "A matrix that must be positive definite is not."

    @property
    def code(self) -> str:
        """The name in records on disk: "max_steps"."""
        return self.name.lower()

    @property
    def failed(self) -> bool:
        """Whether the point is unusable or unfinished for a reason other than a budget or a wish."""
        return self in _FAILURES


_FAILURES = {Result.NOT_FINITE, Result.DIVERGED, Result.LINE_SEARCH_FAILED, Result.NOT_POSITIVE_DEFINITE}


class SolverError(TorchliftError, RuntimeError):
    """A solution was asked to be good and is not."""

    def __init__(self, result: Result, message: str) -> None:
        super().__init__(message)
        self.result = result


class StepFailure(Exception):  # noqa: N818 (a message from a step to the driver, never seen by users)
    """A step cannot be made: the driver turns this into a `Solution` with the last good state."""

    def __init__(self, result: Result, detail: str) -> None:
        super().__init__(detail)
        self.result = result
        self.detail = detail


@dataclass(frozen=True)
class Record:
    """One line of the history.

    Arguments:
        step: number of steps made, resumed ones included.
        seconds: since the driver was called.
        value: the objective.
        residual: norm of the solver's optimality residual; NaN before the first step.
        change: ‖x_k − x_{k−1}‖ relative to ‖x_k‖.
        gap: relative duality gap, where both objectives can be evaluated.
        step_sizes: by block.
        extra: what else the solver reports.
    """

    step: int
    seconds: float
    value: float
    residual: float
    change: float
    gap: float | None = None
    step_sizes: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {**self.__dict__, "step_sizes": dict(self.step_sizes), "extra": dict(self.extra)}


@dataclass(frozen=True, eq=False)
class Solution(Generic[S]):
    """Where a solver arrived and why it stopped.

    Arguments:
        point: the last point; after a failure the last finite one.
        state: all that is needed to go on from there.
        result: the code.
        message: one sentence for people.
        history: one record per recorded step.
    """

    point: Point
    state: S
    result: Result
    message: str
    history: tuple[Record, ...] = ()

    @property
    def converged(self) -> bool:
        return self.result is Result.CONVERGED

    @property
    def failed(self) -> bool:
        return self.result.failed

    def raise_if_failed(self, *, unfinished: bool = False) -> Solution[S]:
        """Itself, or a `SolverError` after a failure; with `unfinished` after anything but convergence."""
        if self.failed or (unfinished and not self.converged):
            raise SolverError(self.result, self.message)
        return self

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {"result": self.result.code.replace("_", " "), "message": self.message}
        if self.history:
            last = self.history[-1]
            rows |= {"steps": last.step, "seconds": f"{last.seconds:.3g}", "objective": f"{last.value:.6g}"}
            rows |= {"residual": f"{last.residual:.3g}", "relative change": f"{last.change:.3g}"}
        return facts("Solution", rows) + curve("objective", [record.value for record in self.history])
