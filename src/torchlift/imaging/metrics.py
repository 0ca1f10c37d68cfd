"""How good an image is, one number per image."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.core.checks import check_positive, check_tensor
from torchlift.core.errors import invalid_value


@torch.no_grad()
def psnr(images: Tensor, reference: Tensor, data_range: float = 1.0) -> Tensor:
    """Peak signal-to-noise ratio in dB, 10 log₁₀(range² / MSE), per image: (B,). Infinite for equal images.

    Args:
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

    Args:
        images, reference: (B, C, H, W), of one shape, at least 11 pixels wide and high.
        data_range: the largest possible value minus the smallest.
    """
    # torchmetrics takes a second to import, and most programs need no similarity
    from torchmetrics.functional.image import structural_similarity_index_measure

    _check(images, reference, data_range)
    if images.ndim != 4 or min(images.shape[2:]) < 11:
        invalid_value("ssim", "images (B, C, H, W) of at least 11 x 11 pixels", tuple(images.shape))
    found = structural_similarity_index_measure(images, reference, data_range=data_range, reduction="none")
    assert isinstance(found, Tensor)  # a tuple only where more is asked for
    return found


def _check(images: Tensor, reference: Tensor, data_range: float) -> None:
    check_tensor("images", images)
    check_tensor("reference", reference)
    if images.shape != reference.shape or images.ndim < 2 or images.numel() == 0:
        invalid_value("images", f"a batch of the shape {tuple(reference.shape)} of the reference", tuple(images.shape))
    check_positive("data_range", data_range)
