"""Operators of photographs, scans and tomographs against scipy, PyWavelets, pylops and scikit-image."""

from __future__ import annotations

import numpy as np
import pylops
import pytest
import pywt
import scipy.fft
import torch
from skimage.data import shepp_logan_phantom
from skimage.transform import radon, resize

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.operators import (
    Conv2d,
    CosineTransform,
    DownSample,
    Fourier,
    Mask,
    Radon,
    Separable,
    WaveletTransform,
    adjoint_error,
    convolutional_dictionary,
    cosine_filters,
    filter_norm,
)


def images(*shape: int) -> torch.Tensor:
    return torch.randn(2, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_cosine_transform_equals_scipy():
    x = images(3, 9, 14)
    expected = scipy.fft.dctn(x.numpy(), axes=(2, 3), norm="ortho")
    for operator in (CosineTransform((3, 9, 14)), Separable.cosine((3, 9, 14), torch.float64)):
        np.testing.assert_allclose(operator(x).numpy(), expected, atol=1e-12)


def test_blocks_are_transformed_alone():
    x = images(2, 10, 7)
    found = CosineTransform((2, 10, 7), block=4)(x)
    for rows in (slice(0, 4), slice(4, 8), slice(8, 10)):
        for columns in (slice(0, 4), slice(4, 7)):
            block = x[..., rows, columns].numpy()
            expected = scipy.fft.dctn(block, axes=(2, 3), norm="ortho")
            np.testing.assert_allclose(found[..., rows, columns].numpy(), expected, atol=1e-12)


@pytest.mark.filterwarnings("ignore:Level value of")
@pytest.mark.parametrize("wavelet", ["haar", *(f"db{order}" for order in range(2, 11))])
def test_wavelets_equal_pywavelets(wavelet):
    x = images(1, 16, 24)
    expected, _ = pywt.coeffs_to_array(pywt.wavedec2(x[0, 0].numpy(), wavelet, mode="periodization", level=3))
    found = WaveletTransform((1, 16, 24), wavelet, 3)(x)
    np.testing.assert_allclose(found[0, 0].numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(
    "operator",
    [
        CosineTransform((3, 64, 49)),
        CosineTransform((1, 30, 30), block=8),
        WaveletTransform((3, 63, 50), "db4", 4),
        WaveletTransform((1, 30, 29), "db2", 3, block=8),
        WaveletTransform((1, 1, 1), "haar"),
        WaveletTransform((1, 2, 3), "db10", 5),
    ],
    ids=repr,
)
def test_transforms_of_any_size_are_orthonormal(operator):
    x = images(*operator.in_shape)
    for there, back in ((operator.forward, operator.adjoint), (operator.adjoint, operator.forward)):
        torch.testing.assert_close(back(there(x)), x, rtol=0, atol=1e-11)


def test_fourier_equals_numpy_and_pylops():
    x = images(2, 6, 5)
    numbers = x[:, 0].numpy() + 1j * x[:, 1].numpy()
    expected = np.fft.fftshift(np.fft.fft2(numbers, norm="ortho"), axes=(-2, -1))
    found = Fourier((2, 6, 5))(x).numpy()
    np.testing.assert_allclose(found[:, 0] + 1j * found[:, 1], expected, atol=1e-12)
    real = pylops.signalprocessing.FFT2D((6, 5), norm="ortho", fftshift_after=True)
    found = Fourier((1, 6, 5))(x[:, :1])[0].numpy()
    np.testing.assert_allclose(found[0] + 1j * found[1], (real @ numbers[0].real.ravel()).reshape(6, 5), atol=1e-12)


def test_sampling_every_frequency_keeps_norms():
    x, H = images(2, 8, 8), Mask(torch.ones(2, 8, 8, dtype=torch.float64)) @ Fourier((2, 8, 8))
    torch.testing.assert_close(H(x).norm(), x.norm())
    assert H.norm_bound() == 1.0


def test_radon_agrees_with_scikit_image():
    """Odd sizes, where both turn about the same pixel and only the interpolation differs."""
    axis = np.linspace(-3, 3, 65)
    smooth = np.exp(-((axis[:, None] - 0.4) ** 2) - (axis[None] + 0.7) ** 2 / 0.6)
    angles = (0.0, 20.0, 45.0, 80.0, 90.0, 135.0, 170.0)
    operator = Radon((1, 65, 65), angles, detectors=65)
    for image, tolerance in ((smooth, 0.002), (resize(shepp_logan_phantom(), (65, 65), anti_aliasing=True), 0.03)):
        image = np.where(axis[:, None] ** 2 + axis**2 < 8.9, image, 0.0)
        found = operator(torch.from_numpy(image)[None, None])[0, 0].numpy()
        expected = radon(image, np.array(angles), circle=True).T
        assert np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected)


def test_radon_of_a_disc_is_the_length_of_chords():
    axis = torch.arange(65, dtype=torch.float64) - 32
    disc = (axis[:, None] ** 2 + axis**2 <= 20**2).double()[None, None]
    found = Radon((1, 65, 65), tuple(range(0, 180, 20)), detectors=65)(disc)
    chords = 2 * (20.2**2 - axis**2).clamp(min=0).sqrt()
    inside = axis.abs() <= 18
    assert float((found - chords)[..., inside].abs().max()) < 2.0
    # the mass of the disc is seen from everywhere
    torch.testing.assert_close(found.sum(-1), disc.sum().expand(1, 1, 9), rtol=5e-3, atol=0)


def test_adjoints_at_ordinary_sizes():
    for operator in (
        Radon((1, 64, 48), tuple(range(0, 180, 30))),
        Fourier((1, 64, 48)),
        WaveletTransform((3, 64, 47)),
        DownSample((3, 33, 64), 3),
    ):
        assert adjoint_error(operator) <= 1e-12


def test_down_sampling_takes_every_other_pixel():
    x = images(3, 5, 6)
    assert torch.equal(DownSample((3, 5, 6), 2)(x), x[..., ::2, ::2])


@pytest.mark.parametrize("channels", [1, 3])
def test_cosine_filters_are_a_tight_frame(channels):
    bank = cosine_filters(5, channels, dtype=torch.float64)
    x = images(channels, 9, 8)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="circular")
    torch.testing.assert_close(torch.nn.functional.conv2d(padded, bank).norm(), x.norm())
    assert float(bank[1:25].sum((2, 3)).abs().max()) < 1e-12  # waves have no mean
    assert 1 <= float(filter_norm(bank)) <= 1.005


def test_dictionary_adds_filters_up():
    dictionary = convolutional_dictionary((3, 8, 8), 3, dtype=torch.float64)
    assert dictionary.in_shape == (27, 8, 8) and dictionary.out_shape == (3, 8, 8)
    code = torch.zeros(1, 27, 8, 8, dtype=torch.float64)
    code[0, 4, 5, 2] = 1
    expected = cosine_filters(3, 3, dtype=torch.float64)[4]
    torch.testing.assert_close(dictionary(code)[0, :, 4:7, 1:4], expected)


@pytest.mark.parametrize("weight", [(4, 1, 3, 3), (2, 3, 3, 3), (3, 2, 2, 3)])
def test_filter_norm_bounds_every_size_and_is_sharp_for_large_images(weight):
    w = torch.randn(weight, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    bound = float(filter_norm(w))
    small = [Conv2d(w, (weight[1], *size), padding=1).norm_bound() for size in ((3, 3), (9, 5), (14, 14))]
    assert max(small) <= bound
    # the largest singular value over many frequencies, away from the grid of the bound
    frequency = torch.linspace(0, torch.pi, 333, dtype=torch.float64)
    taps = [torch.exp(-1j * frequency[:, None] * torch.arange(n)) for n in weight[2:]]
    matrices = torch.einsum("oiab,xa,yb->xyoi", w + 0j, taps[0], torch.cat((taps[1], taps[1].conj())))
    supremum = float(torch.linalg.matrix_norm(matrices, 2).max())
    assert supremum <= bound <= 1.003 * supremum


@pytest.mark.parametrize(("weight", "padding"), [((2, 1, 3, 3), 1), ((3, 2, 3, 5), 0), ((1, 3, 2, 2), 1)])
def test_norm_of_convolutions_on_large_images_needs_no_iterations(weight, padding):
    w = torch.randn(weight, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    large = Conv2d(w, (weight[1], 90, 80), padding=padding)
    assert large._spectral_norm() == large.norm_bound()
    by_lanczos = super(Conv2d, large).norm_bound()  # at most 0.61 % above the norm
    assert by_lanczos / 1.0061 <= large.norm_bound() <= 1.01 * by_lanczos


def test_norms_of_zero_and_of_wide_kernels_are_left_to_lanczos():
    assert Conv2d(torch.zeros(2, 1, 3, 3), (1, 70, 70)).norm_bound() == 0
    assert Conv2d(torch.ones(1, 1, 31, 31), (1, 70, 70), padding=15)._spectral_norm() is None


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: CosineTransform((3, 4)), InvalidValueError, "CosineTransform shape: expected a shape"),
        (lambda: CosineTransform((1, 4, 4), block=0), InvalidValueError, "CosineTransform block"),
        (lambda: WaveletTransform((1, 4, 4), "sym4"), InvalidValueError, "'haar' or 'db1' to 'db10'"),
        (lambda: WaveletTransform((1, 4, 4), levels=0), InvalidValueError, "WaveletTransform levels"),
        (lambda: Fourier((3, 4, 4)), InvalidValueError, "one channel"),
        (lambda: Radon((1, 4, 4), ()), InvalidValueError, "at least one angle"),
        (lambda: Radon((1, 4, 4), 30.0), InvalidTypeError, "a sequence of numbers in degrees"),
        (lambda: DownSample((1, 4, 4), 5), InvalidValueError, "at most the size"),
        (lambda: Separable(torch.eye(3), torch.eye(4), (1, 4, 4)), InvalidValueError, "Separable rows"),
        (lambda: convolutional_dictionary((1, 4, 4), 4), InvalidValueError, "an odd number"),
    ],
)
def test_what_does_not_fit_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()
