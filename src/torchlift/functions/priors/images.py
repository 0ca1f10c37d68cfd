"""Priors of images: total variation, also smoothed, and wavelets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_choice, check_positive, check_size
from torchlift.core.errors import invalid_value, optional_module
from torchlift.functions.base import Part, Prior
from torchlift.functions.group_norm import GroupNorm
from torchlift.functions.l1 import L1
from torchlift.operators import Context, FiniteDifference
from torchlift.operators.base import OnShape

Channels = Literal["separate", "coupled"]


@dataclass(frozen=True)
class TotalVariation(Prior):
    """R(x) = Σ_pixels ‖(∇x)_pixel‖, with forward differences and no differences across the border.

    Arguments:
        isotropic: measure the length of the gradient; otherwise add up the sizes of its two entries.
        channels: "separate" adds up the channels; "coupled" takes the length over all of them, so that
            colours change at the same edges.

    Reference: Rudin, Osher & Fatemi, Physica D 60 (1992); Chambolle, Journal of
    Mathematical Imaging and Vision 20 (2004); Blomgren & Chan, IEEE Transactions
    on Image Processing 7 (1998), for colours.
    """

    isotropic: bool = True
    channels: Channels = "separate"

    def __post_init__(self) -> None:
        check_choice("TotalVariation channels", self.channels, get_args(Channels))

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        gradient = _gradient("TotalVariation", shape)
        return (Part(GroupNorm(dim=_axes(self.isotropic, self.channels, shape)), gradient),)


@dataclass(frozen=True)
class HuberTV(Prior):
    """Total variation that is quadratic for small gradients, so that slopes do not turn into stairs.

        R(x) = Σ_pixels h(‖(∇x)_pixel‖),   h(s) = s − δ/2 if s ≥ δ, s²/2δ otherwise

    Arguments:
        delta: δ > 0, the length from which a gradient counts as an edge.
        isotropic, channels: as in `TotalVariation`.

    Reference: Chambolle & Pock, Journal of Mathematical Imaging and Vision 40
    (2011), section 6.2.1.
    """

    delta: float = 0.01
    isotropic: bool = True
    channels: Channels = "separate"

    def __post_init__(self) -> None:
        check_positive("HuberTV delta", self.delta)
        check_choice("HuberTV channels", self.channels, get_args(Channels))

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        axes, gradient = _axes(self.isotropic, self.channels, shape), _gradient("HuberTV", shape)
        return (Part(GroupNorm(dim=axes, delta=float(self.delta)), gradient),)


def _axes(isotropic: bool, channels: Channels, shape: Shape) -> tuple[int, ...]:
    """The axes of ∇x (batch, direction, channel, height, width) that belong together; there may be no channels."""
    return ((1,) if isotropic else ()) + ((2,) if channels == "coupled" and len(shape) == 3 else ())


def _gradient(name: str, shape: Shape) -> FiniteDifference:
    return FiniteDifference(shape if len(shape) == 2 else image_shape(name, shape, "(height, width) or "))


def image_shape(name: str, shape: Shape, others: str = "") -> Shape:
    """(channels, height, width), or an error that names the prior and what else it takes."""
    if len(shape) == 3:
        return shape
    hint = "For vectors try L1() or Tikhonov()."
    if len(shape) == 1 and (side := math.isqrt(shape[0])) ** 2 == shape[0] and side > 2:
        hint = f"If these are images, invert nn.Sequential(nn.Flatten(), network) with input_shape=(1, {side}, {side})."
    invalid_value(name, f"images of shape {others}(channels, height, width)", f"shape {shape}", hint)


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
