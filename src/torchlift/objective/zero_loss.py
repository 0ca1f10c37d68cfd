"""Losses that objectives make themselves: none, of energies without a target, and what clamped outputs leave."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.functions.losses import Loss, Target, WeightedSquaredError
from torchlift.liftings import Lifting
from torchlift.networks import Network
from torchlift.operators import Identity


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


def clamped(network: Network, lifting: Lifting | None, loss: Loss) -> Loss:
    """What is left of the clamp z = x of an output layer: its energy μ/2 ‖x − (K u + d)‖²; other losses as they are.

    The source clamps the last layer, whose activation is the identity. Without
    the clamp its energy has the minimum 0, so nothing is left of it in the
    free energy; with it, z is no longer a variable.

    Arguments:
        network: whose output is affine.
        lifting: a contrastive one changes `Target`; μ is that of its last layer.
        loss: of any kind.
    """
    if not isinstance(loss, Target) or lifting is None or not lifting.contrastive:
        return loss
    form = network.operators()
    if all(isinstance(block, Identity) for block in form.K.blocks.values()):
        hint = "Use SquaredError(), or add an affine layer."
        expected = "a network whose last layer has no activation"
        invalid_value("Target with Contrastive", expected, "one that ends with an activation", hint)
    return WeightedSquaredError(lifting.weights(form.depth)[-1] if form.depth else 1.0)
