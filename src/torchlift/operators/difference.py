"""Forward differences, the gradient in total variation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import pad

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, OnShape


@dataclass(frozen=True, eq=False)
class FiniteDifference(OnShape):
    """The image gradient ∇ from (C, H, W) to (2, C, H, W), with Neumann boundary:

        (∇x)[0, c, i, j] = x[c, i+1, j] − x[c, i, j]   for i < H − 1, else 0,
        (∇x)[1, c, i, j] = x[c, i, j+1] − x[c, i, j]   for j < W − 1, else 0.

    Direction comes first, so that the length of the gradient in a pixel is a
    norm over the first axis of a sample.
    """

    shape: Shape

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.shape) < 2:
            invalid_value("FiniteDifference shape", "a shape (channels, height, width)", self.shape)

    @property
    def out_shape(self) -> Shape:
        return (2, *self.shape)

    # Both directions write into one fresh tensor: about twice as fast as padding and stacking.

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        y = x.new_zeros(x.shape[0], *self.out_shape)
        y[:, 0, ..., :-1, :] = x[..., 1:, :] - x[..., :-1, :]
        y[:, 1, ..., :-1] = x[..., 1:] - x[..., :-1]
        return y

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        # minus the divergence; the last row of y[:, 0] and the last column of y[:, 1] never count
        down, right = y[:, 0, ..., :-1, :], y[:, 1, ..., :-1]
        x = pad(down, (0, 0, 1, 0))
        x[..., :-1, :].sub_(down)
        x[..., 1:].add_(right)
        x[..., :-1].sub_(right)
        return x

    def symbol(self) -> str:
        return "∇"

    def norm_bound(self, context: Context = None) -> float:
        """2 √(cos²(π / 2H) + cos²(π / 2W)), since ∇ᵀ∇ has the eigenvalues 4 sin²(πk / 2H) + 4 sin²(πl / 2W)."""
        height, width = self.shape[-2:]
        return 2 * math.hypot(_highest(height), _highest(width))


def _highest(size: int) -> float:
    """sin of half the highest frequency of a Neumann grid; 0 for one pixel, which has no differences."""
    return math.sin(math.pi * (size - 1) / (2 * size))
