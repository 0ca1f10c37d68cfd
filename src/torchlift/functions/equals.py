"""The indicator of one point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_finite, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.functions.base import Amount, Function, check_step, per_sample, zero_or_infinite


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
