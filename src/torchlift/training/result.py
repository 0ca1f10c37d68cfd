"""What `train` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Generic, TypeVar

from torch import nn

from torchlift.core.solution import Result, SolverError
from torchlift.training.history import History

N = TypeVar("N", bound=nn.Module)


@dataclass(frozen=True, eq=False, repr=False)
class Training(Generic[N]):
    """A trained network, and how it came about.

    Arguments:
        network: with the best parameters seen on the validation data, or the last ones without such data; after a
            failure those of the last evaluation that gave finite losses.
        history: one row per evaluation; see `History`.
        result: why training stopped.
        message: the same as a sentence.
        best: the best value of the monitored metric: {"metric", "value", "step"}; empty without validation data. Step 0
            is the start, which has no row in the history.
        steps: made in all phases, resumed ones included.
        seconds: spent in all phases, resumed ones included.
        folder: where checkpoints and history are; None if nothing was saved.
        start: metrics of the weights before the first step on the validation data; empty without such data, and for a
            run that was resumed.
    """

    network: N
    history: History
    result: Result
    message: str
    best: dict[str, Any]
    steps: int
    seconds: float
    folder: Path | None = None
    start: dict[str, float] = field(default_factory=dict)

    @property
    def converged(self) -> bool:
        """Whether a tolerance was reached or the validation metric stopped improving."""
        return self.result is Result.CONVERGED

    @property
    def failed(self) -> bool:
        return self.result.failed

    def raise_if_failed(self) -> Training[N]:
        """Itself, or a `SolverError` after a failure."""
        if self.failed:
            raise SolverError(self.result, self.message)
        return self

    def __repr__(self) -> str:
        return f"Training({type(self.network).__name__}: {self.message})"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.message)}</p>{self.history._repr_html_()}"


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during training, after everything was saved: a loop of trainings stops too.

    The network holds the best parameters so far.

    Arguments:
        result: what `train` would have returned.
    """

    def __init__(self, result: Training[Any]) -> None:
        super().__init__(result.message)
        self.result = result
