"""The loss of energies without a target, and of processes that do not hold the output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.functions.losses import Loss


@dataclass(frozen=True)
class ZeroLoss(Loss):
    """L ≡ 0, whatever the target."""

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return prediction.new_zeros(len(prediction))

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return torch.zeros_like(prediction)

    def curvature(self) -> float:
        return 0.0

    def prox(self, prediction: Tensor, target: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return prediction

    def check(self, prediction_shape: Shape, target: object, *, values: bool = True) -> None:
        return
