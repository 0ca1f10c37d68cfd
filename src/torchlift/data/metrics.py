"""How good an image is, one number per image."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.core.checks import check_positive, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators import Blur, gaussian_kernel

#: Pixels along a side of the window of `ssim`.
WINDOW = 11


@torch.no_grad()
def psnr(images: Tensor, reference: Tensor, data_range: float = 1.0) -> Tensor:
    """Peak signal-to-noise ratio in dB, 10 log₁₀(range² / MSE), per image: (B,). Infinite for equal images.

    Arguments:
        images, reference: (B, …), of one shape.
        data_range: the largest possible value minus the smallest.
    """
    _check(images, reference, data_range)
    error = (images - reference).flatten(1).square().mean(1)
    return 10 * torch.log10(data_range**2 / error)


@torch.no_grad()
def ssim(images: Tensor, reference: Tensor, data_range: float = 1.0) -> Tensor:
    """Structural similarity (Wang et al., 2004: Gaussian window of 11 pixels, σ = 1.5), per image: (B,).

    The mean over all pixels; images go on beyond their border by reflection.

    Arguments:
        images, reference: (B, C, H, W), of one shape, at least 11 pixels wide and high.
        data_range: the largest possible value minus the smallest.
    """
    _check(images, reference, data_range)
    if images.ndim != 4 or min(images.shape[2:]) < WINDOW:
        invalid_value("ssim", "images (B, C, H, W) of at least 11 x 11 pixels", tuple(images.shape))
    kernel = gaussian_kernel(WINDOW, 1.5, images.dtype, images.device)
    window = Blur(kernel, tuple(images.shape[1:]), "reflect").forward  # type: ignore[arg-type]
    a, b = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    mean_x, mean_y = window(images), window(reference)
    x, y = mean_x.square(), mean_y.square()
    spread = (window(images.square()) - x).clamp(min=0) + (window(reference.square()) - y).clamp(min=0)
    common = window(images * reference) - mean_x * mean_y
    similarity = (2 * mean_x * mean_y + a) * (2 * common + b) / ((x + y + a) * (spread + b))
    return similarity.flatten(1).mean(1)


def _check(images: Tensor, reference: Tensor, data_range: float) -> None:
    check_tensor("images", images)
    check_tensor("reference", reference)
    if images.shape != reference.shape or images.ndim < 2 or images.numel() == 0:
        invalid_value("images", f"a batch of the shape {tuple(reference.shape)} of the reference", tuple(images.shape))
    check_positive("data_range", data_range)
