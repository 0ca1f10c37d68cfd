"""Patches of large images: drawn at random for training, laid side by side for validation and for use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import check_instance, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data.tasks import Task


@dataclass(frozen=True, eq=False)
class Patches:
    """A function draw(generator) of squares from images, degraded by a task: data for `train`, new in every epoch.

    Place, flips and quarter turns of each patch are drawn, then noise and masks. All come from the generator that
    `train` gives, which is known by seed and number of the epoch, so that runs can be repeated and continued.

    Arguments:
        images: each (channels, height, width), of any size; bytes count from 0 to 255, floating-point numbers are
            taken as they are.
        task: makes inputs from patches, such as `Denoising(25 / 255)`.
        size: side of the patches.
        count: patches per epoch.
        turned: whether patches are flipped and turned.
        dtype: of patches.
    """

    images: Sequence[Tensor]
    task: Task
    size: int = 40
    count: int = 2000
    turned: bool = True
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        check_size("Patches size", self.size)
        check_size("Patches count", self.count)
        check_images("Patches images", self.images, self.size)
        check_instance("Patches task", self.task, Task, "a task such as Denoising(0.1)")

    def __call__(self, generator: torch.Generator) -> tuple[Any, ...]:
        x = torch.stack([self._patch(generator) for _ in range(self.count)])
        y, context = self.task.degrade(as_floats(x, self.dtype), generator)
        return y, as_floats(x, self.dtype), context

    def _patch(self, generator: torch.Generator) -> Tensor:
        image = self.images[self._number(len(self.images), generator)]
        top = self._number(image.shape[1] - self.size + 1, generator)
        left = self._number(image.shape[2] - self.size + 1, generator)
        patch = image[:, top : top + self.size, left : left + self.size]
        if not self.turned:
            return patch
        turn = self._number(8, generator)
        patch = torch.rot90(patch, turn % 4, (1, 2))
        return patch.flip(2) if turn > 3 else patch

    def _number(self, limit: int, generator: torch.Generator) -> int:
        return int(torch.randint(limit, (), generator=generator))


def tiles(images: Sequence[Tensor], size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Squares (n, channels, size, size) that cover every image; the last row and column may overlap those before.

    As targets of validation they show whole images to a network that is made for patches.

    Arguments:
        images: each (channels, height, width), at least of this size.
        size: side of the squares.
        dtype: of the squares; bytes are divided by 255.
    """
    check_size("tiles size", size)
    check_images("tiles images", images, size)
    squares = [
        image[:, top : top + size, left : left + size]
        for image in images
        for top in _starts(image.shape[1], size, size)
        for left in _starts(image.shape[2], size, size)
    ]
    return as_floats(torch.stack(squares), dtype)


@torch.no_grad()
def apply_in_tiles(
    function: Callable[[Tensor], Tensor], images: Tensor, size: int, overlap: int = 8, batch_size: int = 16
) -> Tensor:
    """function(images) for images of any size, square by square, with the memory of a few squares.

    Squares overlap; each pixel is taken from the square in which it is farthest from an inner border, so that
    with an overlap of twice the reach of the function nothing differs from the whole. Images smaller than a square
    are continued by symmetry.

    Arguments:
        function: maps (B, C, size, size) to images of the same size, such as a trained denoiser.
        images: (B, C, H, W).
        size: side of the squares.
        overlap: pixels that neighbours share, less than the size.
        batch_size: squares at once.
    """
    if not 0 <= check_size("apply_in_tiles overlap", overlap, minimum=0) < check_size("apply_in_tiles size", size):
        invalid_value("apply_in_tiles overlap", f"less than the size {size}", overlap)
    if images.ndim != 4:
        invalid_value("apply_in_tiles images", "shape (batch, channels, height, width)", tuple(images.shape))
    whole = images[..., _mirrored(images.shape[2], size), :][..., _mirrored(images.shape[3], size)]
    places = [
        (top, left)
        for top in _starts(whole.shape[2], size, size - overlap)
        for left in _starts(whole.shape[3], size, size - overlap)
    ]
    result = torch.empty_like(whole)
    per_step = max(1, batch_size // len(images))
    for first in range(0, len(places), per_step):
        some = places[first : first + per_step]
        squares = torch.cat([whole[..., top : top + size, left : left + size] for top, left in some])
        for (top, left), square in zip(some, function(squares).split(len(images)), strict=True):
            # squares come in order: a later one keeps half of the overlap that it shares with an earlier one
            up, aside = (overlap // 2 if start else 0 for start in (top, left))
            result[..., top + up : top + size, left + aside : left + size] = square[..., up:, aside:]
    return result[..., : images.shape[2], : images.shape[3]]


def check_images(where: str, images: Sequence[Tensor], size: int) -> None:
    """Refuse anything but images of one number of channels and at least this size."""
    if isinstance(images, str) or not isinstance(images, Sequence | Tensor) or len(images) == 0:
        invalid_type(where, "a sequence of images (channels, height, width)", images)
    for number, image in enumerate(images):
        check_instance(f"{where}[{number}]", image, Tensor, "a torch.Tensor")
        if image.ndim != 3 or image.shape[0] != images[0].shape[0]:
            expected = "(channels, height, width)" if number == 0 else f"{images[0].shape[0]} channels, as the first"
            invalid_value(f"{where}[{number}]", expected, f"shape {tuple(image.shape)}")
        if min(image.shape[1:]) < size:
            hint = "Take smaller patches, or leave small images out."
            invalid_value(f"{where}[{number}]", f"at least {size} x {size} pixels", tuple(image.shape[1:]), hint)


def as_floats(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Floating-point numbers; bytes are divided by 255."""
    return x.to(dtype) / 255 if x.dtype == torch.uint8 else x.to(dtype)


def _starts(length: int, size: int, step: int) -> list[int]:
    """Where squares begin along an axis; the last one ends with it."""
    return [*range(0, length - size, step), length - size]


def _mirrored(length: int, size: int) -> Tensor:
    """Indices of an axis, continued by symmetry where it is shorter than a square."""
    index = torch.arange(max(length, size)).remainder(2 * length)
    return torch.where(index < length, index, 2 * length - 1 - index)
