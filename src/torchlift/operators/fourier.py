"""The discrete Fourier transform, with complex numbers as two channels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, OnImages


@dataclass(frozen=True, eq=False)
class Fourier(OnImages):
    """x ↦ F x, the orthonormal two-dimensional Fourier transform with the frequency 0 in the middle.

    Magnetic resonance imaging measures some of the coefficients: `Mask(shape=(2, H, W)) @ Fourier((1, H, W))`, with
    one sampling mask for all images or, as context, one for each.

    Arguments:
        shape: (1, H, W) for real images, (2, H, W) for complex ones as real and imaginary part.
            Coefficients are (2, H, W) in both cases.
    """

    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape[0] not in (1, 2):
            invalid_value("Fourier shape", "one channel (real) or two (real and imaginary part)", self.shape)

    @property
    def out_shape(self) -> Shape:
        return (2, *self.shape[1:])

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        exact = _supported(x)
        imaginary = exact[:, 1] if self.shape[0] == 2 else torch.zeros_like(exact[:, 0])
        spectrum = torch.fft.fft2(torch.complex(exact[:, 0], imaginary), norm="ortho")
        return torch.stack(_parts(torch.fft.fftshift(spectrum, (-2, -1))), 1).to(x.dtype)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        exact = _supported(y)
        spectrum = torch.fft.ifftshift(torch.complex(exact[:, 0], exact[:, 1]), (-2, -1))
        image = torch.fft.ifft2(spectrum, norm="ortho")
        # the adjoint of x ↦ x + 0i takes the real part
        return torch.stack(_parts(image)[: self.shape[0]], 1).to(y.dtype)

    @property
    def is_orthogonal(self) -> bool:
        return self.shape[0] == 2

    def norm_bound(self, context: Context = None) -> float:
        return 1.0

    def symbol(self) -> str:
        return "F"


def _parts(z: Tensor) -> tuple[Tensor, Tensor]:
    return z.real, z.imag


def _supported(x: Tensor) -> Tensor:
    """x in a precision that torch has a Fourier transform for."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()
