"""Constraints: an interval, a ball, a given value. Each is 0 inside, +∞ outside."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_finite, check_positive, check_tensor
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.functions.base import Amount, Function, check_step, per_sample, zero_or_infinite
from torchlift.prox import L2Ball


@dataclass(frozen=True)
class Box(Function):
    """The constraint lo ≤ x ≤ hi.

        g(x)  = 0 if all lo ≤ x_i ≤ hi, +∞ otherwise
        prox  = min(max(x, lo), hi), whatever the step
        g*(p) = Σ max(lo·p_i, hi·p_i)

    Arguments:
        lo, hi: the ends, lo < hi; lo = −inf or hi = inf leaves a side open.
    """

    elementwise: ClassVar[bool] = True
    constraint: ClassVar[bool] = True

    lo: float = 0.0
    hi: float = 1.0

    def __post_init__(self) -> None:
        for name, end in (("lo", self.lo), ("hi", self.hi)):
            if isinstance(end, bool) or not isinstance(end, int | float):
                invalid_type(f"Box {name}", "a real number", end)
            if math.isnan(end):
                invalid_value(f"Box {name}", "a number", end)
        if not self.lo < self.hi:
            invalid_value("Box", "lo < hi", f"lo={self.lo}, hi={self.hi}", "Swap the two, or widen the interval.")

    def value(self, x: Tensor) -> Tensor:
        return zero_or_infinite((x >= self.lo) & (x <= self.hi), x)

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        check_step(step, x)
        return x.clamp(self.lo, self.hi)

    def conjugate(self, p: Tensor) -> Tensor:
        # 0·∞ must count as 0: an open side costs nothing where p does not point to it
        return per_sample(torch.where(p > 0, self.hi * p, 0.0) + torch.where(p < 0, self.lo * p, 0.0))

    def meet(self, other: Function) -> Function | None:
        if not isinstance(other, Box):
            return None
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        if not lo < hi:
            got = f"[{self.lo:g}, {self.hi:g}] and [{other.lo:g}, {other.hi:g}]"
            invalid_value("sum of constraints", "intervals that overlap", got)
        return Box(lo, hi)

    @classmethod
    def examples(cls) -> tuple[Function, ...]:
        return cls(), cls(-0.5, 1.0), cls(-math.inf, 0.5)


@dataclass(frozen=True)
class NonNegative(Box):
    """The constraint x ≥ 0, a `Box` without an upper end."""

    lo: float = field(default=0.0, init=False, repr=False)
    hi: float = field(default=math.inf, init=False, repr=False)

    @classmethod
    def examples(cls) -> tuple[Function, ...]:
        return (cls(),)


@dataclass(frozen=True)
class Ball(Function):
    """The constraint ‖x‖₂ ≤ r on every sample.

        g(x)  = 0 if ‖x‖₂ ≤ r, +∞ otherwise
        prox  = x·min(1, r/‖x‖₂), whatever the step
        g*(p) = r‖p‖₂

    Arguments:
        radius: r > 0.
    """

    constraint: ClassVar[bool] = True

    radius: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Ball radius", self.radius)

    def value(self, x: Tensor) -> Tensor:
        return L2Ball(self.radius).psi(x.reshape(len(x), -1))

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        check_step(step, x)
        return L2Ball(self.radius)(x.reshape(len(x), -1)).view_as(x)

    def conjugate(self, p: Tensor) -> Tensor:
        return self.radius * torch.linalg.vector_norm(p.reshape(len(p), -1), dim=1)

    def meet(self, other: Function) -> Function | None:
        return min(self, other, key=lambda ball: ball.radius) if isinstance(other, Ball) else None


@dataclass(frozen=True, eq=False)
class Equals(Function):
    """The constraint x = b.

        g(x)  = 0 if ‖x − b‖∞ is at most a tolerance, +∞ otherwise
        prox  = b
        g*(p) = ⟨p, b⟩

    Arguments:
        target: b, of the shape of x or one that broadcasts.
        tolerance: how far a point may be from b for its value to count as 0.
    """

    elementwise: ClassVar[bool] = True
    constraint: ClassVar[bool] = True

    target: Tensor
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        check_finite("Equals target", check_tensor("Equals target", self.target))
        if not self.tolerance >= 0:
            invalid_value("Equals tolerance", "a number >= 0", self.tolerance)

    def value(self, x: Tensor) -> Tensor:
        return zero_or_infinite((x - self.target.to(x)).abs() <= self.tolerance, x)

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        check_step(step, x)
        return self.target.to(x).expand_as(x).clone()

    def conjugate(self, p: Tensor) -> Tensor:
        return per_sample(p * self.target.to(p))

    @classmethod
    def example(cls) -> Function:
        return cls(torch.tensor(0.7, dtype=torch.float64))
