"""Constraints on every entry: non-negative, or inside an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from torch import Tensor
from torch.nn import functional as F

from torchlift.core.errors import invalid_type, invalid_value
from torchlift.functions.regularisers.base import Regulariser, check_step, zero_or_infinite


@dataclass(frozen=True)
class NonNegative(Regulariser):
    """The constraint x ≥ 0.

    R(x) = 0 if all x_i ≥ 0, +∞ otherwise
    prox = max(x, 0), whatever the step
    """

    elementwise: ClassVar[bool] = True

    def value(self, x: Tensor) -> Tensor:
        return zero_or_infinite(x >= 0, x)

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        check_step(step, x)
        return F.relu(x)


@dataclass(frozen=True)
class Interval(Regulariser):
    """The constraint lo ≤ x ≤ hi.

        R(x) = 0 if all lo ≤ x_i ≤ hi, +∞ otherwise
        prox = min(max(x, lo), hi), whatever the step

    Arguments:
        lo, hi: the ends, lo < hi; lo = −inf or hi = inf leaves a side open.
    """

    elementwise: ClassVar[bool] = True

    lo: float
    hi: float

    def __post_init__(self) -> None:
        for name, end in (("lo", self.lo), ("hi", self.hi)):
            if isinstance(end, bool) or not isinstance(end, Real):
                invalid_type(f"Interval {name}", "a real number", end)
            if math.isnan(end):
                invalid_value(f"Interval {name}", "a number", end)
        if not self.lo < self.hi:
            invalid_value("Interval", "lo < hi", f"lo={self.lo}, hi={self.hi}", "Swap the two, or widen the interval.")

    def value(self, x: Tensor) -> Tensor:
        return zero_or_infinite((x >= self.lo) & (x <= self.hi), x)

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        check_step(step, x)
        return x.clamp(self.lo, self.hi)

    @classmethod
    def example(cls) -> Regulariser:
        return cls(-0.5, 1.0)
