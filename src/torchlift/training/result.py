"""What `train` returns."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from torchlift.core.solution import Result, SolverError
from torchlift.networks import Network
from torchlift.training.history import History


@dataclass(frozen=True, eq=False)
class Training:
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
    """

    network: Network
    history: History
    result: Result
    message: str
    best: dict[str, Any]
    steps: int
    seconds: float
    folder: Path | None = None

    @property
    def converged(self) -> bool:
        """Whether a tolerance was reached or the validation metric stopped improving."""
        return self.result is Result.CONVERGED

    @property
    def failed(self) -> bool:
        return self.result.failed

    def raise_if_failed(self) -> Training:
        """Itself, or a `SolverError` after a failure."""
        if self.failed:
            raise SolverError(self.result, self.message)
        return self

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.message)}</p>{self.history._repr_html_()}"
