"""The cosine transform as a matrix: for small images; `CosineTransform` needs no matrix of the whole image."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchlift.core.checks import check_size


def dct_matrix(height: int, width: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """C ⊗ C′ of shape (height·width, height·width): the orthonormal two-dimensional cosine transform (DCT-II).

    For an image x in row-major order, `dct_matrix(h, w) @ x.flatten()` are its coefficients, the mean first; the
    columns of the transpose are the cosine waves, so `Dense(dct_matrix(h, w).T)` is an orthonormal dictionary.

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
