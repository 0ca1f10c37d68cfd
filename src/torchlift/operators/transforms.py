"""Transforms of images: cosines, wavelets, Fourier, as operators and as matrices, separable ones, banks of filters."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_size, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, LinearOperator, OnImages, store
from torchlift.operators.convolution import Conv2d
from torchlift.operators.geometry import check_image_shape


def dct_matrix(height: int, width: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """C ⊗ C′ of shape (height·width, height·width): the orthonormal two-dimensional cosine transform (DCT-II).

    For an image x in row-major order, `dct_matrix(h, w) @ x.flatten()` are its coefficients, the mean first; the
    columns of the transpose are the cosine waves, so `Dense(dct_matrix(h, w).T)` is an orthonormal dictionary of small
    images; `CosineTransform` needs no matrix.

    Arguments:
        height, width: of the image.
        dtype: of the matrix; it is computed in double precision and rounded once.
    """
    rows, columns = cosines(check_size("height", height)), cosines(check_size("width", width))
    return torch.kron(rows, columns).to(dtype)


def cosines(size: int, device: torch.device | str | None = None) -> Tensor:
    """C_kn = √(2/N) cos(π (2n + 1) k / 2N), with the first row divided by √2; in double precision."""
    k = torch.arange(size, dtype=torch.float64, device=device)[:, None]
    n = torch.arange(size, dtype=torch.float64, device=device)
    waves = torch.cos(math.pi / (2 * size) * (2 * n + 1) * k) * math.sqrt(2 / size)
    return torch.cat((waves[:1] / math.sqrt(2), waves[1:]))


def cosine_filters(size: int = 7, channels: int = 1, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The cosine waves of size × size patches, all channels mixed: (channels·size², channels, size, size).

    They form a tight frame: on a torus the convolutions w keep norms, ‖w ⋆ x‖ = ‖x‖. The first filter is the mean,
    all others have mean 0.
    """
    waves = cosines(check_size("cosine_filters size", size))
    colours = cosines(check_size("cosine_filters channels", channels))
    bank = torch.einsum("ac,bi,dj->abdcij", colours, waves, waves) / size
    return bank.reshape(channels * size**2, channels, size, size).to(dtype)


def convolutional_dictionary(
    shape: tuple[int, int, int], size: int = 7, *, dtype: torch.dtype = torch.float32
) -> LinearOperator:
    """code ↦ Σ_f w_f ∗ code_f, images made of filters at every place; the filters start as cosine waves.

    `LISTA(H, convolutional_dictionary(shape), iterations)` is a convolutional LISTA, and
    `PrimalDual(H, convolutional_dictionary(shape).T, iterations)` has learned analysis convolutions.

    Arguments:
        shape: (channels, height, width) of images; codes have channels · size² channels.
        size: side of the filters, odd.
        dtype: of the filters.
    """
    shape = check_image_shape("convolutional_dictionary shape", shape)
    if check_size("convolutional_dictionary size", size) % 2 == 0:
        invalid_value("convolutional_dictionary size", "an odd number", size)
    return Conv2d(cosine_filters(size, shape[0], dtype=dtype), shape, padding=size // 2).T


@dataclass(frozen=True, eq=False)
class Separable(OnImages):
    """X ↦ R X Cᵀ in each channel: the matrix R ⊗ C of (HW)² entries from H² + W² numbers, which can be learned.

    Arguments:
        rows: R (h, H), which acts along the height.
        columns: C (w, W), which acts along the width.
        shape: (channels, H, W).
    """

    rows: Tensor
    columns: Tensor
    shape: tuple[int, int, int]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, matrix, size in (("rows", self.rows, self.shape[1]), ("columns", self.columns, self.shape[2])):
            if check_tensor(f"Separable {name}", matrix).ndim != 2 or matrix.shape[1] != size:
                expected = f"a matrix (any, {size}) for shape {self.shape}"
                invalid_value(f"Separable {name}", expected, tuple(matrix.shape))

    @classmethod
    def cosine(cls, shape: tuple[int, int, int], dtype: torch.dtype = torch.float32) -> Separable:
        """The orthonormal cosine transform as a start of learned transforms."""
        channels, height, width = check_image_shape("Separable.cosine shape", shape)
        return cls(cosines(height).to(dtype), cosines(width).to(dtype), (channels, height, width))

    @property
    def out_shape(self) -> Shape:
        return (self.shape[0], self.rows.shape[0], self.columns.shape[0])

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return self.rows @ x @ self.columns.T

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return self.rows.T @ y @ self.columns

    @torch.no_grad()
    def norm_bound(self, context: Context = None) -> float:
        """‖R‖₂ ‖C‖₂, the norm of a Kronecker product."""
        rows, columns = (float(torch.linalg.matrix_norm(side.double(), 2)) for side in (self.rows, self.columns))
        return rows * columns


class Orthonormal(OnImages):
    """A transform Q of each channel of (C, H, W) with QᵀQ = QQᵀ = I, so that the adjoint is the inverse.

    With a `block` each block × block square is transformed by itself; squares at the lower and right border are
    smaller where `block` does not divide the size.
    """

    block: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block is not None:
            check_size(f"{type(self).__name__} block", self.block)

    @abstractmethod
    def _analysis(self, x: Tensor) -> Tensor:
        """Q of images on the last two axes, of any size."""

    @abstractmethod
    def _synthesis(self, x: Tensor) -> Tensor:
        """Qᵀ of images on the last two axes, of any size."""

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return self._analysis(x) if self.block is None else _in_blocks(x, self.block, self._analysis)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return self._synthesis(y) if self.block is None else _in_blocks(y, self.block, self._synthesis)

    @property
    def is_orthogonal(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class CosineTransform(Orthonormal):
    """The orthonormal two-dimensional DCT-II: X ↦ C_H X C_Wᵀ.

    Arguments:
        shape: (channels, height, width), of any size.
        block: side of the squares that are transformed; None for the whole image.
    """

    shape: Shape
    block: int | None = None

    def _analysis(self, x: Tensor) -> Tensor:
        rows, columns = (cosines(size, x.device).to(x.dtype) for size in x.shape[-2:])
        return rows @ x @ columns.T

    def _synthesis(self, x: Tensor) -> Tensor:
        rows, columns = (cosines(size, x.device).to(x.dtype) for size in x.shape[-2:])
        return rows.T @ x @ columns

    def symbol(self) -> str:
        return "DCT"


@dataclass(frozen=True, eq=False)
class WaveletTransform(Orthonormal):
    """Daubechies' orthonormal wavelets, periodic at the border, averages in the upper left corner of each scale.

    Each scale maps an image X to T_H X T_Wᵀ, and the next one does the same to the averages. The last row or column
    of an odd number counts as an average of its own, so that every size has an orthonormal transform.

    Arguments:
        shape: (channels, height, width), of any size.
        wavelet: "haar" or "db1", …, "db10": N vanishing moments and 2N taps.
        levels: number of scales; sides that have become 1 are left alone.
        block: side of the squares that are transformed; None for the whole image.

    Reference: Mallat, A Wavelet Tour of Signal Processing, section 7.5 and 7.7.
    """

    shape: Shape
    wavelet: str = "db4"
    levels: int = 3
    block: int | None = None
    _taps: tuple[float, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("WaveletTransform levels", self.levels)
        names = {"haar": 1} | {f"db{order}": order for order in range(1, 11)}
        if self.wavelet not in names:
            invalid_value("WaveletTransform wavelet", "'haar' or 'db1' to 'db10'", repr(self.wavelet))
        store(self, _taps=_daubechies(names[self.wavelet]))

    def _analysis(self, x: Tensor) -> Tensor:
        coefficients = x.clone()
        for height, width in self._sizes(x):
            corner = coefficients[..., :height, :width]
            corner = _scale(_scale(corner, self._taps).transpose(-2, -1), self._taps).transpose(-2, -1)
            coefficients = _with_corner(coefficients, corner)
        return coefficients

    def _synthesis(self, x: Tensor) -> Tensor:
        for height, width in reversed(self._sizes(x)):
            corner = x[..., :height, :width]
            corner = _unscale(_unscale(corner, self._taps).transpose(-2, -1), self._taps).transpose(-2, -1)
            x = _with_corner(x, corner)
        return x

    def _sizes(self, x: Tensor) -> list[tuple[int, int]]:
        """Height and width of the averages before each scale."""
        height, width = x.shape[-2:]
        return [(-(-height >> level), -(-width >> level)) for level in range(self.levels)]

    def symbol(self) -> str:
        return "DWT"


def _in_blocks(x: Tensor, block: int, transform: Callable[[Tensor], Tensor]) -> Tensor:
    """The transform of every square; all whole ones at once, then those that the border cuts."""
    height, width = x.shape[-2] // block * block, x.shape[-1] // block * block
    bands = []
    for band in x.split([height, x.shape[-2] - height], -2):
        parts = [_tiled(part, block, transform) for part in band.split([width, x.shape[-1] - width], -1)]
        bands.append(torch.cat(parts, -1))
    return torch.cat(bands, -2)


def _tiled(x: Tensor, block: int, transform: Callable[[Tensor], Tensor]) -> Tensor:
    *batch, height, width = x.shape
    if height == 0 or width == 0:
        return x
    h, w = min(block, height), min(block, width)
    tiles = x.reshape(*batch, height // h, h, width // w, w).transpose(-3, -2)
    return transform(tiles).transpose(-3, -2).reshape(x.shape)


def _scale(x: Tensor, taps: tuple[float, ...]) -> Tensor:
    """One scale along the last axis: averages, the last sample of an odd number, differences."""
    even = x.shape[-1] // 2 * 2
    if even == 0:
        return x
    index, filters = _windows(even, taps, x)
    pairs = x[..., index].reshape(*x.shape[:-1], -1, len(taps)) @ filters
    return torch.cat((pairs[..., 0], x[..., even:], pairs[..., 1]), -1)


def _unscale(y: Tensor, taps: tuple[float, ...]) -> Tensor:
    half = y.shape[-1] // 2
    if half == 0:
        return y
    index, filters = _windows(2 * half, taps, y)
    middle = y.shape[-1] - half
    pairs = torch.stack((y[..., :half], y[..., middle:]), -1)
    windows = (pairs @ filters.T).flatten(-2)
    even = windows.new_zeros(*y.shape[:-1], 2 * half).index_add(-1, index, windows)
    return torch.cat((even, y[..., half:middle]), -1)


def _windows(size: int, taps: tuple[float, ...], like: Tensor) -> tuple[Tensor, Tensor]:
    """Which samples each pair of coefficients reads, and the two filters (taps, 2); PyWavelets' phase."""
    count = len(taps)
    start = 2 * torch.arange(size // 2, device=like.device)[:, None] + 1 - count // 2
    index = (start + torch.arange(count, device=like.device)).remainder(size)
    low = like.new_tensor(taps)
    sign = like.new_tensor([1.0, -1.0] * (count // 2))
    return index.flatten(), torch.stack((low, low.flip(0) * sign), -1)


def _with_corner(x: Tensor, corner: Tensor) -> Tensor:
    height, width = corner.shape[-2:]
    upper = torch.cat((corner, x[..., :height, width:]), -1)
    return torch.cat((upper, x[..., height:, :]), -2)


def _daubechies(order: int) -> tuple[float, ...]:
    """The low-pass filter with `order` vanishing moments and the shortest delay, by spectral factorisation.

    |h(ω)|² = 2 cos²ᴺ(ω/2) P(sin²(ω/2)) with P(s) = Σ_k C(N − 1 + k, k) sᵏ; of each pair of roots (z, 1/z) the one
    inside the unit circle is taken.
    """
    polynomial = [math.comb(order - 1 + k, k) for k in reversed(range(order))]
    taps = np.ones(1)
    for root in np.roots(polynomial):
        half = 1 - 2 * root  # s = (2 − z − 1/z) / 4
        z = half + np.sqrt(half * half - 1 + 0j)
        taps = np.convolve(taps, [1, -(z if abs(z) < 1 else 1 / z)])
    for _ in range(order):
        taps = np.convolve(taps, [1, 1])
    real = np.real(taps)
    return tuple(float(tap) for tap in real * math.sqrt(2) / real.sum())


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
