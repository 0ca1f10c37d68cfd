"""The absolute error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.functions.losses.base import Loss, per_sample
from torchlift.prox.base import check_step


@dataclass(frozen=True)
class Absolute(Loss):
    """The ℓ1 distance, robust against outliers.

        L(p; x) = ‖p − x‖₁
        grad    = sign(p − x), a subgradient: the one of least norm where entries agree
        prox    = x + soft-thresholding of p − x at s

    Reference: Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    smooth: ClassVar[bool] = False

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return per_sample((prediction - target).abs())

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return torch.sign(prediction - target)

    def curvature(self) -> float:
        return math.inf

    def prox(self, prediction: Tensor, target: Tensor, step: float | Tensor = 1.0) -> Tensor:
        step = check_step(step, prediction)
        # The nearest point of [p − s, p + s] to x: exactly x where the two are close.
        return torch.minimum(torch.maximum(target, prediction - step), prediction + step)
