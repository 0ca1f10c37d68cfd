"""Half the squared error."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchlift.functions.losses.base import Loss, per_sample
from torchlift.prox.base import check_step


@dataclass(frozen=True)
class SquaredError(Loss):
    """Half the squared Euclidean distance; mind the ½, and that entries are summed, not averaged.

    L(p; x) = ½‖p − x‖²
    prox    = (p + s x) / (1 + s)

    Half of `torch.nn.functional.mse_loss` times the entries of a sample.
    """

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return 0.5 * per_sample((prediction - target).square())

    def mean(self, prediction: Tensor, target: Tensor) -> Tensor:
        return 0.5 * (prediction - target).square().sum() / len(prediction)

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return prediction - target

    def curvature(self) -> float:
        return 1.0

    def prox(self, prediction: Tensor, target: Tensor, step: float | Tensor = 1.0) -> Tensor:
        step = check_step(step, prediction)
        return (prediction + step * target) / (1 + step)
