"""The ℓ1 norm, alone and with a ridge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.checks import check_positive
from torchlift.functions.base import ROUNDING, Amount, Function, along, check_step, per_sample, zero_or_infinite
from torchlift.prox import SoftThreshold


@dataclass(frozen=True)
class L1(Function):
    """The ℓ1 norm, for sparse codes, weights and images.

        g(x)  = w‖x‖₁
        prox with step s is soft-thresholding at sw
        g*(p) = 0 if all |p_i| ≤ w, +∞ otherwise

    Arguments:
        weight: w > 0.

    Reference: Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    elementwise: ClassVar[bool] = True

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_positive("L1 weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return self.weight * per_sample(x.abs())

    def grad(self, x: Tensor) -> Tensor:
        return self.weight * torch.sign(x)

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        return SoftThreshold(self.weight).prox(x, check_step(step, x))

    def conjugate(self, p: Tensor) -> Tensor:
        return zero_or_infinite(p.abs() <= self.weight * (1 + ROUNDING * torch.finfo(p.dtype).eps), p)

    def prox_conjugate(self, p: Tensor, step: Amount = 1.0, weight: Amount = 1.0) -> Tensor:
        limit = along(self.weight * weight, p)
        return p.maximum(-limit).minimum(limit) if isinstance(limit, Tensor) else p.clamp(-limit, limit)


@dataclass(frozen=True)
class ElasticNet(Function):
    """The sum of an ℓ1 norm and half a squared norm.

        g(x)  = a‖x‖₁ + ½b‖x‖²
        prox with step s is soft-thresholding at sa, divided by 1 + sb
        g*(p) = Σ max(|p_i| − a, 0)² / 2b

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
        return per_sample(self.l1 * x.abs() + 0.5 * self.ridge * x.square())

    def grad(self, x: Tensor) -> Tensor:
        return self.l1 * torch.sign(x) + self.ridge * x

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        step = check_step(step, x)
        return SoftThreshold(self.l1).prox(x, step) / (1 + step * self.ridge)

    def conjugate(self, p: Tensor) -> Tensor:
        return per_sample(F.relu(p.abs() - self.l1).square()) / (2 * self.ridge)

    @classmethod
    def example(cls) -> Function:
        return cls(0.4, 1.5)
