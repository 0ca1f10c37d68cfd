"""The Radon transform of parallel beams."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from numbers import Real

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_number, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.operators.base import Context, OnImages, store


@dataclass(frozen=True, eq=False)
class Radon(OnImages):
    """x ↦ line integrals over parallel rays: (C, H, W) to (C, angles, detectors).

    With coordinates from the centre of the image (p to the right, q upwards), ray t at angle θ is the line
    p cos θ + q sin θ = t; detectors are one pixel apart. Joseph's method: a ray that is closer to vertical meets each
    row of pixels once, between two of them; these count with the weights of linear interpolation, times the length
    of the ray per row. The adjoint distributes each measurement by the same weights, so it is exact.

    Arguments:
        shape: (channels, height, width).
        angles: θ in degrees, in any order.
        detectors: number of rays per angle; None for as many as cover the diagonal, an odd number.

    Reference: Joseph, IEEE Trans. Med. Imaging 1 (1982).
    """

    shape: tuple[int, int, int]
    angles: tuple[float, ...]
    detectors: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.angles, str | Real):
            invalid_type("Radon angles", "a sequence of numbers in degrees", self.angles)
        angles = tuple(check_number("Radon angles", float(angle)) for angle in self.angles)
        if not angles:
            invalid_value("Radon angles", "at least one angle", "none")
        diagonal = math.ceil(math.hypot(*self.shape[1:])) // 2 * 2 + 1
        count = diagonal if self.detectors is None else check_size("Radon detectors", self.detectors)
        store(self, angles=angles, detectors=count)

    @property
    def out_shape(self) -> Shape:
        return (self.shape[0], len(self.angles), self._count)

    @property
    def _count(self) -> int:
        assert self.detectors is not None  # set in __post_init__
        return self.detectors

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        pixels = x.flatten(-2)
        return torch.stack([self._project(pixels, *rays) for rays in self._rays(x)], -2)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        x = y.new_zeros(*y.shape[:-2], math.prod(self.shape[1:]))
        for number, rays in enumerate(self._rays(y)):
            for index, weight in rays:
                x = x.index_add(-1, index.flatten(), (y[..., number, None, :] * weight).flatten(-2))
        return x.reshape(*y.shape[:-2], *self.shape[1:])

    def symbol(self) -> str:
        return "Radon"

    def _project(self, pixels: Tensor, *neighbours: tuple[Tensor, Tensor]) -> Tensor:
        left, right = (
            pixels.index_select(-1, index.flatten()).unflatten(-1, index.shape) * weight for index, weight in neighbours
        )
        return (left + right).sum(-2)

    def _rays(self, like: Tensor) -> Iterator[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]:
        """The two pixels that a ray passes between, and their weights, for each angle: (lines, detectors) each."""
        _, height, width = self.shape
        exact = {"dtype": torch.float64, "device": like.device}
        t = torch.arange(self._count, **exact) - (self._count - 1) / 2
        for angle in self.angles:
            cosine, sine = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            steep = abs(cosine) >= abs(sine)  # the ray is closer to vertical: one crossing in every row
            lines, places = (height, width) if steep else (width, height)
            line = torch.arange(lines, device=like.device)[:, None]
            offset = line.to(torch.float64) - (lines - 1) / 2
            # rows count downwards, so q = −offset along them
            crossing = (t + offset * sine) / cosine if steep else -(t - offset * cosine) / sine
            crossing = crossing + (places - 1) / 2
            length = 1 / max(abs(cosine), abs(sine))
            first = crossing.floor()
            yield tuple(  # type: ignore[misc]
                _clipped(first + step, length * (1 - (crossing - first - step).abs()), line, places, width, steep, like)
                for step in (0, 1)
            )


def _clipped(
    place: Tensor, weight: Tensor, line: Tensor, places: int, width: int, steep: bool, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Positions in the flattened image; those outside weigh nothing."""
    inside = (place >= 0) & (place < places)
    position = place.clamp(0, places - 1).long()
    index = line * width + position if steep else position * width + line
    return index, torch.where(inside, weight, 0.0).to(like.dtype)
