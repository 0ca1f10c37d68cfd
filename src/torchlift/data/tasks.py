"""Inverse problems y = H x + noise: the three of the paper and three more, which differ in H only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_interval, check_number, check_positive, check_size, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators import (
    Blur,
    Context,
    DownSample,
    Fourier,
    Identity,
    LinearOperator,
    Mask,
    Radon,
    gaussian_kernel,
)


class Degraded(NamedTuple):
    """Measurements, and what H needs to know about each of them (a mask), or None."""

    y: Tensor
    context: Context


class Task(ABC):
    """An inverse problem y = H x + noise, with Gaussian noise of standard deviation `noise`.

    Subclasses are frozen dataclasses.
    """

    noise: float

    @abstractmethod
    def operator(self, shape: Shape, like: Tensor | None = None) -> LinearOperator:
        """H for images of shape (C, H, W), in the dtype and on the device of `like`."""

    def context(self, x: Tensor, generator: torch.Generator | None = None) -> Context:
        """What differs from sample to sample; None where nothing does."""
        return None

    def degrade(self, x: Tensor, generator: torch.Generator | None = None) -> Degraded:
        """y = H x + noise for images x (B, C, H, W); the generator lives on the CPU."""
        if check_tensor("images", x).ndim != 4 or 0 in x.shape:
            invalid_value("images", "shape (batch, channels, height, width)", tuple(x.shape))
        context = self.context(x, generator)
        y = self.operator(tuple(x.shape[1:]), x).forward(x, context)
        if self.noise > 0:
            y = y + self.noise * torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
        return Degraded(y, context)


@dataclass(frozen=True)
class Denoising(Task):
    """H = I.

    Arguments:
        noise: standard deviation; 0.15 in the paper.
    """

    noise: float = 0.15

    def __post_init__(self) -> None:
        check_positive("Denoising noise", self.noise)

    def operator(self, shape: Shape, like: Tensor | None = None) -> LinearOperator:
        return Identity(shape)


@dataclass(frozen=True)
class Deblurring(Task):
    """H blurs with a Gaussian kernel; images go on beyond their border by reflection.

    Arguments:
        size, sigma: of the kernel; 5 and 1 in the paper.
        noise: standard deviation; 0.03 in the paper.
        boundary: see `operators.Blur`.
    """

    size: int = 5
    sigma: float = 1.0
    noise: float = 0.03
    boundary: str = "reflect"

    def __post_init__(self) -> None:
        check_size("Deblurring size", self.size)
        check_positive("Deblurring sigma", self.sigma)
        check_number("Deblurring noise", self.noise, minimum=0)

    def operator(self, shape: Shape, like: Tensor | None = None) -> LinearOperator:
        like = torch.empty(0) if like is None else like
        kernel = gaussian_kernel(self.size, self.sigma, dtype=like.dtype, device=like.device)
        return Blur(kernel, shape, self.boundary)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Inpainting(Task):
    """H removes pixels at random, other ones in every image: the mask (1 where a pixel is known) is the context.

    Arguments:
        share: of pixels removed; 0.3 in the paper.
        noise: standard deviation; none in the paper.
    """

    share: float = 0.3
    noise: float = 0.0

    def __post_init__(self) -> None:
        check_interval("Inpainting share", self.share, "(0, 1)")
        check_number("Inpainting noise", self.noise, minimum=0)

    def operator(self, shape: Shape, like: Tensor | None = None) -> LinearOperator:
        return Mask(shape=shape)

    def context(self, x: Tensor, generator: torch.Generator | None = None) -> Context:
        drawn = torch.rand(x.shape, generator=generator, dtype=x.dtype)
        return (drawn >= self.share).to(x)


@dataclass(frozen=True)
class SuperResolution(Task):
    """H blurs with a Gaussian kernel and keeps every `factor`-th pixel of both axes.

    Arguments:
        factor: of the size.
        size, sigma: of the kernel.
        noise: standard deviation.
    """

    factor: int = 2
    size: int = 5
    sigma: float = 1.0
    noise: float = 0.01

    def __post_init__(self) -> None:
        check_size("SuperResolution factor", self.factor, minimum=2)
        check_number("SuperResolution noise", self.noise, minimum=0)

    def operator(self, shape: Shape, like: Tensor | None = None) -> LinearOperator:
        blur = Deblurring(self.size, self.sigma, self.noise, "symmetric").operator(shape, like)
        return DownSample(_image(shape), self.factor) @ blur


@dataclass(frozen=True)
class MagneticResonance(Task):
    """H keeps columns of the Fourier transform of a grey image: near frequency 0, and others, drawn for each image.

    Measurements are real and imaginary parts, (2, height, width), and the sampled columns are the context.

    Arguments:
        acceleration: one over the share of columns that are measured.
        centre: share of the columns, around frequency 0, that always are.
        noise: standard deviation.
    """

    acceleration: float = 4.0
    centre: float = 0.08
    noise: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("acceleration", self.acceleration), ("centre", self.centre)):
            check_positive(f"MagneticResonance {name}", value)
        if self.centre * self.acceleration > 1 or self.acceleration < 1:
            expected = "a centre of at most the measured share 1 / acceleration"
            invalid_value("MagneticResonance", expected, f"{self.centre} and 1 / {self.acceleration}")
        check_number("MagneticResonance noise", self.noise, minimum=0)

    def operator(self, shape: Shape, like: Tensor | None = None) -> LinearOperator:
        image = _image(shape)
        return Mask(shape=(2, *image[1:])) @ Fourier(image)

    def context(self, x: Tensor, generator: torch.Generator | None = None) -> Context:
        count, _, height, width = x.shape
        chance = torch.rand(count, width, generator=generator, dtype=torch.float64)
        middle = (torch.arange(width) - width // 2).abs()
        inner = round(self.centre * width / 2)
        chance[:, middle < inner] = -1
        kept = chance.argsort(1).argsort(1) < max(1, round(width / self.acceleration))
        return kept[:, None, None].expand(count, 2, height, width).to(x)


@dataclass(frozen=True)
class Tomography(Task):
    """H takes line integrals over parallel rays at equal angles, in units of the height of an image.

    Arguments:
        angles: number of them, over half a turn.
        noise: standard deviation.
    """

    angles: int = 60
    noise: float = 0.01

    def __post_init__(self) -> None:
        check_size("Tomography angles", self.angles)
        check_number("Tomography noise", self.noise, minimum=0)

    def operator(self, shape: Shape, like: Tensor | None = None) -> LinearOperator:
        degrees = tuple(180 * number / self.angles for number in range(self.angles))
        return (1 / _image(shape)[1]) * Radon(_image(shape), degrees)


def _image(shape: Shape) -> tuple[int, int, int]:
    if len(shape) != 3:
        invalid_value("images", "shape (channels, height, width)", shape)
    return shape[0], shape[1], shape[2]


#: The paper's settings, by name.
TASKS: dict[str, Task] = {"denoising": Denoising(), "deblurring": Deblurring(), "inpainting": Inpainting()}
