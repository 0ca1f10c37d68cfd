"""The indicator of the target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.functions.losses.base import Loss, per_sample
from torchlift.prox.base import check_step, indicator


@dataclass(frozen=True)
class Target(Loss):
    """The constraint that a prediction equals its target.

        L(p; x) = 0 if p = x, +∞ otherwise
        prox    = x

    Equality is meant up to 256 eps · (1 + |x|) per entry, since predictions are
    rounded. There is no gradient; contrastive training clamps outputs this way.
    """

    smooth: ClassVar[bool] = False

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        tolerance = 256 * torch.finfo(prediction.dtype).eps * (1 + target.abs())
        missed = per_sample(~((prediction - target).abs() <= tolerance))  # true for NaN
        return indicator(missed == 0, per_sample(prediction))

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        hint = "Use its prox, or try SquaredError(), which penalises instead."
        invalid_value("Target.grad", "a loss with a gradient", "the hard constraint p = x", hint)

    def curvature(self) -> float:
        return math.inf

    def prox(self, prediction: Tensor, target: Tensor, step: float | Tensor = 1.0) -> Tensor:
        check_step(step, prediction)
        return target.to(prediction, copy=True)
