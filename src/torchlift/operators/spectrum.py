"""Norms of convolutions from the spectrum of their filters, for images of any size."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Samples of the spectrum per axis.
GRID = 128


def filter_norm(weight: Tensor, grid: int = GRID) -> Tensor:
    """A bound of ‖x ↦ w ⋆ x‖₂ for stride 1, with zero or circular padding, that holds for images of every size.

    On the whole plane the norm is the supremum over frequencies ω of the largest singular value of the matrix
    ŵ(ω) (out, in); cutting an image out of the plane, or closing it to a torus, makes it no larger. ‖ŵ(ω) a‖² is a
    trigonometric polynomial of degree (kh − 1, kw − 1) for every a, and such a polynomial of degree n exceeds its
    largest sample of N > 2n by a factor 1 / cos(πn / N) at most (Ehlich and Zeller, 1964). Differentiable.

    Arguments:
        weight: (out, in, kh, kw).
        grid: N, samples per axis; 3 × 3 filters exceed the norm by 0.1 % at most for 128, 7 × 7 filters by 1.1 %.
    """
    degrees = weight.shape[-2] - 1, weight.shape[-1] - 1
    grid = max(grid, 4 * max(degrees) + 1)
    spectrum = torch.fft.rfft2(weight, s=(grid, grid))  # real filters: half of the frequencies are conjugates
    outputs, inputs = weight.shape[:2]
    matrices = spectrum.permute(2, 3, 0, 1)
    if min(outputs, inputs) == 1:
        largest = (spectrum.abs() ** 2).sum((0, 1)).max()
    else:
        small = matrices if outputs <= inputs else matrices.mH
        largest = torch.linalg.eigvalsh(small @ small.mH)[..., -1].max()
    slack = math.prod(math.cos(math.pi * degree / grid) for degree in degrees)
    return (largest / slack).sqrt()


def is_sharp(size: tuple[int, int], kernel: tuple[int, int]) -> bool:
    """Whether `filter_norm` is at most 1 % above the norm on images of this size, with any zero padding.

    The test image is the worst wave under half a period of a sine on the n = pixels − taps + 1 pixels per axis that
    the filter keeps inside. Its frequencies spread by δ with E[δ²] ≤ (π²/4)(π/n)², and by Bernstein's inequality it
    loses at most E[(Σ (taps − 1)|δ|)²] / 2 of the squared norm.
    """
    spread = [(taps - 1) * math.pi / max(n - taps + 1, 1) for n, taps in zip(size, kernel, strict=True)]
    loss = (math.pi / 2 * sum(spread)) ** 2 / 2
    slack = math.prod(math.cos(math.pi * (taps - 1) / GRID) for taps in kernel)
    return max(kernel) <= GRID // 4 and (1 - loss) * slack >= 1 / 1.01**2
