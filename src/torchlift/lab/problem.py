"""The paper's inverse problems: degraded digits and the 7 × 784 soft-threshold network."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.data import TASKS, load_digits, psnr
from torchlift.networks import MLP
from torchlift.prox import SoftThreshold

SIDE, PIXELS = 28, 784

#: Hidden layers. The paper counts seven layers without saying whether the affine output is one of them.
LAYERS = 7

#: The weight of every Bregman penalty.
MU = 5e-3

#: Training images that are measured on the way, so that measuring stays cheap.
WATCHED = 500


@dataclass(frozen=True, eq=False)
class Images:
    """Degraded and clean images, flat, for training and for validation."""

    y: Tensor
    x: Tensor
    validation_y: Tensor
    validation_x: Tensor

    @property
    def degraded(self) -> Tensor:
        """PSNR of each degraded validation image."""
        return psnr(self.validation_y, self.validation_x)


def load_images(task: str, training: int, validation: int, seed: int) -> Images:
    """The first bundled digits of each split, degraded as the paper does."""
    tensors = []
    for split, count, draw in (("train", training, seed), ("validation", validation, seed + 1)):
        x = load_digits(split).images[:count]
        y = TASKS[task].degrade(x, torch.Generator().manual_seed(draw)).y
        tensors += [y.flatten(1), x.flatten(1)]
    return Images(*tensors)


def build(threshold: float, seed: int, layers: int = LAYERS) -> MLP:
    """The network as torch starts it: weights and biases uniform in ±1/√784 = ±0.036."""
    generator = torch.Generator().manual_seed(seed)
    return MLP([PIXELS] * (layers + 2), SoftThreshold(threshold), generator=generator)
