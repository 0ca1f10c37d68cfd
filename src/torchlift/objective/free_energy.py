"""The free energy of the contrastive scheme: the classical lifted energy with no target in it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.engine import Engine, States
from torchlift.operators import Context


@dataclass(frozen=True)
class NoLoss:
    """A loss that is always zero."""

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return prediction.new_zeros(len(prediction))

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return torch.zeros_like(prediction)


def minimise(
    engine: Engine, y: Tensor, z: States, context: Context = None, tolerance: float = 1e-10, steps: int = 5000
) -> States:
    """argmin_z Σ_j D_j(z_j, v_j(z)), jointly convex for the classical energy.

    Accelerated proximal gradient with backtracking, restarted whenever the
    step turns against the momentum (O'Donoghue and Candès, Found. Comput.
    Math. 15, 2015), from the forward pass. Stops when the step is below
    `tolerance` relative to the variables.
    """
    x = y  # never read: the engine's loss is NoLoss
    inverse_step, momentum = 1.0, 1.0
    current = z.clone()
    ahead = current.clone()
    for _ in range(steps):
        gradient = engine.gradients(y, x, ahead, context).z
        smooth = _smooth(engine, y, ahead, context)
        while True:
            new = _step(engine, ahead, gradient, inverse_step)
            moved = _difference(new, ahead)
            bound = smooth + _dot(gradient, moved) + 0.5 * inverse_step * _dot(moved, moved)
            if _smooth(engine, y, new, context) <= bound + 1e-12 * (1 + abs(bound)):
                break
            inverse_step *= 2.0
        change = _difference(new, current)
        if _dot(moved, change) < 0:
            momentum = 1.0
        following = 0.5 * (1 + (1 + 4 * momentum**2) ** 0.5)
        factor = (momentum - 1) / following
        momentum = following
        if _dot(moved, moved) ** 0.5 <= tolerance * (1 + _dot(new, new) ** 0.5):
            return new
        current = new
        ahead = new.clone()
        for buffer, delta in zip(ahead.buffers, change, strict=True):
            buffer.add_(delta, alpha=factor)
    return current


def _step(engine: Engine, z: States, gradient: States, inverse_step: float) -> States:
    """The proximal gradient step from z, layer by layer."""
    setting, scale = engine.setting, 1.0 / z.batch
    activations = engine.network.operators().activations
    new = z.clone()
    for layer, grad, activation, weight in zip(new, gradient, activations, setting.weights, strict=True):
        moved = layer - grad / inverse_step
        layer.copy_(setting.lifting.prox_z(activation, moved, scale / inverse_step, weight))
    return new


def _smooth(engine: Engine, y: Tensor, z: States, context: Context) -> float:
    """Σ_j μ_j/2 ‖z_j − v_j‖², the smooth part of the energy, as a mean over samples."""
    total = 0.0
    for part in engine.evaluate(y, z, context).parts:
        total += float((0.5 * part.weight * (part.z - part.v).square()).sum())
    return total / len(y)


def _difference(one: States, other: States) -> list[Tensor]:
    return [a - b for a, b in zip(one.buffers, other.buffers, strict=True)]


def _dot(one: States | list[Tensor], other: States | list[Tensor]) -> float:
    first = one.buffers if isinstance(one, States) else one
    second = other.buffers if isinstance(other, States) else other
    return sum(float((a * b).sum()) for a, b in zip(first, second, strict=True))
