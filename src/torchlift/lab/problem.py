"""The paper's inverse problems: degraded digits and the 7 × 784 soft-threshold network, or both at half resolution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from torchlift.data import TASKS, load_digits, psnr
from torchlift.networks import MLP
from torchlift.prox import SoftThreshold

#: Pixels in a row of an image.
SIDE = 28

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
    def side(self) -> int:
        """Pixels in a row."""
        return math.isqrt(self.x.shape[1])

    @property
    def degraded(self) -> Tensor:
        """PSNR of each degraded validation image."""
        return psnr(self.validation_y, self.validation_x)


def load_images(
    task: str, training: int, validation: int, seed: int, side: int = SIDE, device: torch.device | str = "cpu"
) -> Images:
    """The first bundled digits of each split, degraded as the paper does; the same on every device."""
    tensors = []
    for split, count, draw in (("train", training, seed), ("validation", validation, seed + 1)):
        x = shrunk(load_digits(split).images[:count], side)
        y = TASKS[task].degrade(x, torch.Generator().manual_seed(draw)).y
        tensors += [y.flatten(1).to(device), x.flatten(1).to(device)]
    return Images(*tensors)


def shrunk(images: Tensor, side: int) -> Tensor:
    """Means over squares of pixels, so that `side` of them are left in a row."""
    return avg_pool2d(images, SIDE // side)


def build(threshold: float, seed: int, layers: int = LAYERS, side: int = SIDE) -> MLP:
    """The network as torch starts it, as wide as the images: weights and biases uniform in ±1/√784 = ±0.036."""
    generator = torch.Generator().manual_seed(seed)
    return MLP([side**2] * (layers + 2), SoftThreshold(threshold), generator=generator)
