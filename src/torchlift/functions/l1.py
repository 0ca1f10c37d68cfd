"""The ℓ1 norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

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
