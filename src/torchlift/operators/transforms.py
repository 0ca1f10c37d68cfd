"""The cosine transform as a matrix, and banks of cosine filters."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchlift.core.checks import check_size
from torchlift.core.errors import invalid_value
from torchlift.operators.base import LinearOperator
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
