"""Sparse wavelet coefficients."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_size
from torchlift.core.errors import invalid_value, optional_module
from torchlift.functions.base import Part, Prior
from torchlift.functions.l1 import L1
from torchlift.functions.priors.total_variation import image_shape
from torchlift.operators import Context
from torchlift.operators.base import OnShape


@dataclass(frozen=True)
class Wavelet(Prior):
    """R(x) = ‖detail coefficients of x‖₁ in an orthogonal wavelet basis, periodic at the border.

    Needs the package PyWavelets, which knows the wavelets.

    Arguments:
        name: an orthogonal wavelet of PyWavelets: "haar", "db2", "sym4", "coif1", …
        level: number of scales; None for as many as the size allows, at most 3.

    Reference: Mallat, A Wavelet Tour of Signal Processing, chapters 7 and 11;
    Donoho & Johnstone, Biometrika 81 (1994).
    """

    name: str = "db2"
    level: int | None = None

    def __post_init__(self) -> None:
        if self.level is not None:
            check_size("Wavelet level", self.level)

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return (Part(L1(), WaveletDetails.of(self.name, image_shape("Wavelet", shape), self.level)),)


@dataclass(frozen=True, eq=False)
class WaveletDetails(OnShape):
    """The detail coefficients of all scales, flattened, coarse ones last; the last average is left out.

    One scale maps an image X to T_H X T_Wᵀ with orthogonal matrices whose upper
    halves average and whose lower halves take differences; the next scale does
    the same to the quarter of averages. Hence AAᵀ = I.

    Arguments:
        shape: (channels, height, width).
        rows, columns: T_H and T_W of each scale.
    """

    shape: Shape
    rows: tuple[Tensor, ...]
    columns: tuple[Tensor, ...]

    @classmethod
    def of(cls, name: str, shape: Shape, level: int | None) -> WaveletDetails:
        wavelet, (_, height, width) = _orthogonal(name), shape
        common = math.gcd(height, width)
        most = (common & -common).bit_length() - 1  # how often both sides can be halved
        if most < (level or 1):
            hint = "Crop or pad the images, or lower the level."
            invalid_value("Wavelet", f"sides that 2^{level or 1} divides", f"{height} x {width}", hint)
        scales = range(min(most, 3) if level is None else level)
        rows = tuple(_one_scale(wavelet, height >> scale) for scale in scales)
        return cls(shape, rows, tuple(_one_scale(wavelet, width >> scale) for scale in scales))

    @property
    def out_shape(self) -> Shape:
        channels, height, width = self.shape
        scales = len(self.rows)
        return (channels * (height * width - (height >> scales) * (width >> scales)),)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        details = []
        for across, along in self._matrices(x):
            x = across @ x @ along.T
            h, w = x.shape[-2] // 2, x.shape[-1] // 2
            details += [x[..., :h, w:], x[..., h:, :w], x[..., h:, w:]]
            x = x[..., :h, :w]
        return torch.cat([detail.flatten(1) for detail in details], 1)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        channels, height, width = self.shape
        matrices = self._matrices(y)
        sizes = [(height >> s + 1, width >> s + 1) for s in range(len(matrices))]
        pieces = list(y.split([channels * h * w for h, w in sizes for _ in range(3)], 1))
        x = y.new_zeros(y.shape[0], channels, *sizes[-1])
        for (across, along), (h, w) in zip(reversed(matrices), reversed(sizes), strict=True):
            upper, lower, both = (piece.view(-1, channels, h, w) for piece in pieces[-3:])
            del pieces[-3:]
            x = torch.cat([torch.cat([x, upper], -1), torch.cat([lower, both], -1)], -2)
            x = across.T @ x @ along
        return x

    def norm_bound(self, context: Context = None) -> float:
        return 1.0

    def _matrices(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [(row.to(x), column.to(x)) for row, column in zip(self.rows, self.columns, strict=True)]


def _package() -> Any:
    return optional_module("Wavelet", "pywt", "PyWavelets", "wavelet")


def _orthogonal(name: str) -> Any:
    pywt = _package()
    hint = "pywt.wavelist(kind='discrete') lists names; biorthogonal ones do not fit."
    if name not in pywt.wavelist(kind="discrete"):
        invalid_value("Wavelet name", "a discrete wavelet of PyWavelets", repr(name), hint)
    wavelet = pywt.Wavelet(name)
    if not wavelet.orthogonal:
        invalid_value("Wavelet name", "an orthogonal wavelet", repr(name), hint)
    return wavelet


def _one_scale(wavelet: Any, size: int) -> Tensor:
    """The orthogonal matrix of one periodic scale: averages above, differences below."""
    halves = _package().dwt(torch.eye(size, dtype=torch.float64).numpy(), wavelet, mode="periodization", axis=0)
    return torch.cat([torch.from_numpy(half) for half in halves])
