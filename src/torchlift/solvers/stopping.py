"""When to stop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from torchlift.core.checks import check_number, check_positive, check_size
from torchlift.core.errors import invalid_type, invalid_value


@dataclass(frozen=True)
class Stopping:
    """Budgets and tolerances; the first one that is met stops the solver.

    Arguments:
        max_steps: steps of one call of `solve`.
        change: stop when ‖x_k − x_{k−1}‖ ≤ change · max(‖x_k‖, √ε‖x_0‖) with ε the precision of
            the point. "auto" is √ε; None is never.
        residual: stop when the solver's optimality residual is at most this (absolute): the norm of
            the gradient mapping, or the larger of the primal and the dual residual.
        gap: stop when the relative duality gap is at most this. Looked at when a step is recorded.
        time_limit: seconds of one call.
        divergence: stop when ‖x_k‖ > divergence · (1 + ‖x_0‖).
    """

    max_steps: int = 1000
    change: float | Literal["auto"] | None = "auto"
    residual: float | None = None
    gap: float | None = None
    time_limit: float | None = None
    divergence: float = 1e10

    def __post_init__(self) -> None:
        check_size("Stopping max_steps", self.max_steps)
        if self.change not in ("auto", None):
            if isinstance(self.change, str):
                invalid_type("Stopping change", "a number, 'auto' or None", self.change)
            _check_relative("Stopping change", self.change)
        if self.gap is not None:
            _check_relative("Stopping gap", self.gap)
        if self.residual is not None:
            check_positive("Stopping residual", self.residual)
        if self.time_limit is not None:
            check_positive("Stopping time_limit", self.time_limit)
        if check_number("Stopping divergence", self.divergence) <= 1:
            invalid_value("Stopping divergence", "a number > 1", self.divergence)

    def change_for(self, dtype: torch.dtype) -> float | None:
        """The tolerance of relative change for points of a dtype; refuses what rounding makes impossible."""
        epsilon = torch.finfo(dtype).eps
        if self.change == "auto":
            return math.sqrt(epsilon)
        if self.change is not None and self.change < epsilon:
            hint = "Use double precision, or a larger tolerance."
            invalid_value("Stopping change", f"at least {epsilon:.2g}, the precision of {dtype}", self.change, hint)
        return self.change


def _check_relative(where: str, value: object) -> None:
    if not check_positive(where, value) < 1:
        invalid_value(where, "a relative tolerance < 1", value)
