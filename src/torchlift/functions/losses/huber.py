"""The Huber loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.checks import check_positive
from torchlift.functions.losses.base import Loss, per_sample
from torchlift.prox.base import check_step


@dataclass(frozen=True)
class Huber(Loss):
    """Quadratic up to a residual of δ and linear beyond; entries are summed.

        L(p; x) = Σ h(p_i − x_i),  h(r) = ½r² if |r| ≤ δ, δ(|r| − ½δ) otherwise
        grad    = min(max(r, −δ), δ)
        prox    = p − s·min(max(r / (1 + s), −δ), δ)

    Arguments:
        delta: δ > 0.

    Reference: Huber, Annals of Mathematical Statistics 35 (1964).
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Huber delta", self.delta)

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return per_sample(F.huber_loss(prediction, target, reduction="none", delta=self.delta))

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return torch.clamp(prediction - target, -self.delta, self.delta)

    def curvature(self) -> float:
        return 1.0

    def prox(self, prediction: Tensor, target: Tensor, step: float | Tensor = 1.0) -> Tensor:
        step = check_step(step, prediction)
        return prediction - step * torch.clamp((prediction - target) / (1 + step), -self.delta, self.delta)
