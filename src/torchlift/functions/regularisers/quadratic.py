"""Quadratic regularisers: ridge and decay towards a point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_finite, check_positive, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.functions.regularisers.base import Regulariser, check_step


@dataclass(frozen=True)
class Ridge(Regulariser):
    """The squared norm (ridge, Tikhonov, weight decay); mind the ½.

        R(x) = ½w‖x‖²
        prox = x / (1 + sw)

    Arguments:
        weight: w > 0.
    """

    smooth: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Ridge weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * self.weight * x.square().sum()

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return x / (1 + check_step(step, x) * self.weight)

    def grad(self, x: Tensor) -> Tensor:
        return self.weight * x

    def curvature(self) -> float:
        return float(self.weight)


@dataclass(frozen=True, eq=False)
class Decay(Regulariser):
    """Decay towards a given point, such as pre-trained weights or the last iterate; mind the ½.

        R(x) = ½w‖x − c‖²
        prox = (x + sw c) / (1 + sw)

    Arguments:
        point: c, a tensor of the shape of x, or a 0-d tensor for all entries alike.
        weight: w > 0.
    """

    smooth: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    point: Tensor
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_finite("Decay point", check_tensor("Decay point", self.point))
        check_positive("Decay weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * self.weight * (x - self._centre(x)).square().sum()

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        centre, factor = self._centre(x), check_step(step, x) * self.weight
        return (x + factor * centre) / (1 + factor)

    def grad(self, x: Tensor) -> Tensor:
        return self.weight * (x - self._centre(x))

    def curvature(self) -> float:
        return float(self.weight)

    @classmethod
    def example(cls) -> Regulariser:
        return cls(torch.tensor(0.7, dtype=torch.float64), 1.5)

    def _centre(self, x: Tensor) -> Tensor:
        if self.point.ndim > 0 and self.point.shape != x.shape:
            hint = "One point belongs to one parameter."
            invalid_value("Decay argument", f"the shape {tuple(self.point.shape)} of the point", tuple(x.shape), hint)
        return self.point.detach().to(x)
