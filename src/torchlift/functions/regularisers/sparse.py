"""Regularisers that make entries vanish: the ℓ1 norm and the elastic net."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.functions.regularisers.base import Regulariser, check_step, soft


@dataclass(frozen=True)
class L1(Regulariser):
    """The ℓ1 norm, for sparse codes and sparse weights.

        R(x) = w‖x‖₁
        prox with step s is soft-thresholding at sw.

    Arguments:
        weight: w > 0.

    Reference: Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    elementwise: ClassVar[bool] = True

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_positive("L1 weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return self.weight * x.abs().sum()

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return soft(x, check_step(step, x) * self.weight)


@dataclass(frozen=True)
class ElasticNet(Regulariser):
    """The sum of an ℓ1 norm and a ridge.

        R(x) = a‖x‖₁ + ½b‖x‖²
        prox with step s is soft-thresholding at sa, divided by 1 + sb.

    Arguments:
        l1: a > 0.
        ridge: b > 0.

    Reference: Zou & Hastie, Journal of the Royal Statistical Society B 67
    (2005); Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    elementwise: ClassVar[bool] = True

    l1: float = 1.0
    ridge: float = 1.0

    def __post_init__(self) -> None:
        check_positive("ElasticNet l1", self.l1)
        check_positive("ElasticNet ridge", self.ridge)

    def value(self, x: Tensor) -> Tensor:
        return self.l1 * x.abs().sum() + 0.5 * self.ridge * x.square().sum()

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        step = check_step(step, x)
        return soft(x, step * self.l1) / (1 + step * self.ridge)

    @classmethod
    def example(cls) -> Regulariser:
        return cls(0.4, 1.5)
