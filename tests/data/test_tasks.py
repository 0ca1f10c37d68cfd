"""The three inverse problems and the metrics, against their definitions and scikit-image."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage
import torch
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.data import TASKS, Deblurring, Denoising, Inpainting, load_digits, psnr, ssim


def _images(count: int = 4) -> Tensor:
    return load_digits("test", dtype=torch.float64).images[:count]


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", TASKS)
def test_measurements_are_the_operator_plus_noise(name: str) -> None:
    task, x = TASKS[name], _images(200)
    y, context = task.degrade(x, _generator())
    H = task.operator((1, 28, 28), x)
    rest = y - H(x, context)
    assert float(rest.std()) == pytest.approx(task.noise, rel=0.02, abs=1e-12)
    assert abs(float(rest.mean())) <= 0.01 * max(task.noise, 1e-9)
    again = task.degrade(x, _generator())
    assert torch.equal(y, again.y)
    if task.noise or context is not None:
        assert not torch.equal(y, task.degrade(x, _generator(1)).y)
    assert task.degrade(x.float(), _generator()).y.dtype == torch.float32


def test_blur_is_a_truncated_gaussian_with_reflection() -> None:
    x = _images(2)
    y, _ = Deblurring(noise=0.0).degrade(x)
    # truncate 2 at σ = 1 keeps five taps; scipy's "mirror" does not repeat the border pixel
    expected = np.stack(
        [scipy.ndimage.gaussian_filter(image[0], 1.0, truncate=2, mode="mirror") for image in x.numpy()]
    )
    np.testing.assert_allclose(y[:, 0].numpy(), expected, atol=1e-12)


def test_masks_differ_and_remove_the_stated_share() -> None:
    x = torch.ones(300, 1, 28, 28)
    y, mask = Inpainting(0.3).degrade(x, _generator())
    assert isinstance(mask, Tensor)
    assert torch.equal(y, mask)
    assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert float(mask.mean()) == pytest.approx(0.7, abs=0.005)
    assert not torch.equal(mask[0], mask[1])


def test_psnr_and_ssim_agree_with_scikit_image() -> None:
    x = _images(5)
    y = Denoising().degrade(x, _generator()).y
    expected = [peak_signal_noise_ratio(a.numpy(), b.numpy(), data_range=1.0) for a, b in zip(x, y, strict=True)]
    np.testing.assert_allclose(psnr(y, x).numpy(), expected, rtol=1e-12)
    options = {"data_range": 1.0, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    # In a black frame both libraries go on beyond the border alike; scikit-image's own mean would crop it.
    framed_x, framed_y = (torch.nn.functional.pad(images, (11,) * 4) for images in (x, y))
    pairs = zip(framed_x[:, 0].numpy(), framed_y[:, 0].numpy(), strict=True)
    expected = [structural_similarity(a, b, full=True, **options)[1].mean() for a, b in pairs]
    np.testing.assert_allclose(ssim(framed_y, framed_x).numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("data_range", [1.0, 2.5])
def test_ssim_agrees_with_torchmetrics(data_range: float) -> None:
    """Up to the border, where images go on by reflection, and with several channels."""
    x = torch.rand(3, 2, 20, 13, generator=_generator(), dtype=torch.float64)
    y = x + 0.2 * torch.randn(x.shape, generator=_generator(), dtype=torch.float64)
    expected = structural_similarity_index_measure(y, x, data_range=data_range, reduction="none")
    torch.testing.assert_close(ssim(y, x, data_range), expected)


def test_perfect_images() -> None:
    x = _images(2)
    assert torch.isinf(psnr(x, x)).all()
    torch.testing.assert_close(ssim(x, x), torch.ones(2, dtype=torch.float64))


def test_noise_of_the_paper_in_decibels() -> None:
    """Denoising starts at 20 log₁₀(1/0.15) = 16.5 dB."""
    x = _images(100)
    assert float(psnr(Denoising().degrade(x, _generator()).y, x).mean()) == pytest.approx(16.48, abs=0.05)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Denoising(0.0), ["noise", "> 0"]),
        (lambda: Denoising(float("nan")), ["noise", "finite"]),
        (lambda: Deblurring(size=0), ["size", ">= 1"]),
        (lambda: Deblurring(sigma=-1.0), ["sigma", "> 0"]),
        (lambda: Deblurring(noise=-0.1), ["noise", ">= 0"]),
        (lambda: Deblurring(boundary="wrap").degrade(_images()), ["boundary", "wrap"]),
        (lambda: Inpainting(0.0), ["share", "(0, 1)"]),
        (lambda: Inpainting(1.0), ["share", "(0, 1)"]),
        (lambda: Denoising().degrade(torch.zeros(28, 28)), ["(batch, channels, height, width)", "(28, 28)"]),
        (lambda: Denoising().degrade([1.0]), ["torch.Tensor", "list"]),
        (lambda: psnr(_images(2), _images(3)), ["(3, 1, 28, 28)", "(2, 1, 28, 28)"]),
        (lambda: psnr(_images(2), _images(2), data_range=0.0), ["data_range", "> 0"]),
        (lambda: ssim(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8)), ["11 x 11", "(1, 1, 8, 8)"]),
    ],
    ids=range(13),
)
def test_bad_input_is_refused(call, words: list[str]) -> None:
    with pytest.raises((InvalidValueError, InvalidTypeError)) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
