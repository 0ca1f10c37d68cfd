"""Priors on the image itself: sparse, small, inside an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.functions.priors.base import Part, Prior
from torchlift.functions.priors.functions import HalfSquare, Interval, Length
from torchlift.operators import LinearOperator


@dataclass(frozen=True)
class L1(Prior):
    """R(x) = ‖x‖₁: few entries differ from 0."""

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return (Part(Length()),)


@dataclass(frozen=True, eq=False)
class Tikhonov(Prior):
    """R(x) = ½‖Ax‖²: small, or smooth where A takes differences.

    Arguments:
        operator: A; None for the identity.
    """

    operator: LinearOperator | None = None

    def __post_init__(self) -> None:
        if self.operator is not None and not isinstance(self.operator, LinearOperator):
            invalid_type("Tikhonov operator", "a LinearOperator", self.operator, "Try operators.Dense(matrix).")

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        if self.operator is not None and self.operator.in_shape != shape:
            invalid_value("Tikhonov operator", f"an operator on images of shape {shape}", self.operator.in_shape)
        return (Part(HalfSquare(), self.operator),)


@dataclass(frozen=True)
class Box(Prior):
    """R(x) = 0 if every entry is between low and high, +∞ otherwise.

    Arguments:
        low, high: the ends, low < high; −inf or inf leaves a side open.
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        for name, end in (("low", self.low), ("high", self.high)):
            if isinstance(end, bool) or not isinstance(end, Real):
                invalid_type(f"Box {name}", "a real number", end)
        if not self.low < self.high:
            invalid_value("Box", "low < high", f"low={self.low}, high={self.high}")

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return (Part(Interval(float(self.low), float(self.high))),)


@dataclass(frozen=True)
class NonNegative(Prior):
    """R(x) = 0 if every entry is ≥ 0, +∞ otherwise."""

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return (Part(Interval(0.0, math.inf)),)
