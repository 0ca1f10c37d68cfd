"""Agreement with torch modules, pylops and scipy."""

from __future__ import annotations

import numpy as np
import pylops
import pytest
import torch
from scipy import ndimage

from torchlift.operators import AveragePool2d, Blur, Conv2d, ConvTranspose2d, FiniteDifference, gaussian_kernel

CONVOLUTIONS = [
    {"kernel_size": 3},
    {"kernel_size": (2, 3), "stride": 2, "padding": (1, 0)},
    {"kernel_size": 3, "dilation": 2, "groups": 2},
    {"kernel_size": 3, "padding": "same"},
    {"kernel_size": (3, 5), "padding": "same", "dilation": (2, 1)},
    {"kernel_size": 3, "padding": "valid"},
]


@pytest.mark.parametrize("settings", CONVOLUTIONS)
def test_convolution_equals_torch(settings):
    module = torch.nn.Conv2d(4, 6, bias=False, **settings)
    settings = {key: value for key, value in settings.items() if key != "kernel_size"}
    x = torch.randn(2, 4, 9, 8)
    operator = Conv2d(module.weight, (4, 9, 8), **settings)
    assert torch.equal(operator(x), module(x)) and operator.out_shape == module(x).shape[1:]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("kernel", [2, 4, (3, 4), (4, 1)])
def test_uneven_same_padding_equals_torch(kernel):
    module = torch.nn.Conv2d(1, 2, kernel, bias=False, padding="same")
    x = torch.randn(2, 1, 6, 7)
    torch.testing.assert_close(Conv2d(module.weight, (1, 6, 7), padding="same")(x), module(x))


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_size": 3},
        {"kernel_size": 2, "stride": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
        {"kernel_size": (2, 3), "dilation": 2, "groups": 2, "padding": (0, 1)},
    ],
)
def test_transposed_convolution_equals_torch(settings):
    module = torch.nn.ConvTranspose2d(4, 6, bias=False, **settings)
    settings = {key: value for key, value in settings.items() if key != "kernel_size"}
    x = torch.randn(2, 4, 5, 6)
    operator = ConvTranspose2d(module.weight, (4, 5, 6), **settings)
    assert torch.equal(operator(x), module(x)) and operator.out_shape == module(x).shape[1:]


@pytest.mark.parametrize("arguments", [(2,), (3, 2, 1), ((2, 3), (1, 2), (1, 0)), (3, 1, 1, False)])
def test_pooling_equals_torch(arguments):
    kernel, *rest = arguments
    include = rest.pop() if len(rest) == 3 else True
    module = torch.nn.AvgPool2d(kernel, *rest, count_include_pad=include)
    x = torch.randn(2, 3, 7, 9)
    operator = AveragePool2d((3, 7, 9), kernel, *rest, count_include_pad=include)
    assert torch.equal(operator(x), module(x)) and operator.out_shape == module(x).shape[1:]


def test_pooling_without_overlap_has_norm_one_over_root_of_the_window():
    assert AveragePool2d((2, 9, 9), (2, 4)).norm_bound() == pytest.approx(8**-0.5, rel=1e-12)


def test_finite_difference_is_the_formula():
    x = torch.arange(12.0).reshape(1, 1, 3, 4) ** 2
    gradient = FiniteDifference((1, 3, 4))(x)[0, :, 0]
    for i in range(3):
        for j in range(4):
            down = x[0, 0, i + 1, j] - x[0, 0, i, j] if i < 2 else 0
            right = x[0, 0, i, j + 1] - x[0, 0, i, j] if j < 3 else 0
            assert gradient[0, i, j] == down and gradient[1, i, j] == right


def test_finite_difference_equals_pylops():
    height, width = 5, 7
    reference = pylops.Gradient((height, width), kind="forward", edge=False)
    operator = FiniteDifference((1, height, width))
    x, y = (
        torch.randn(1, 1, height, width, dtype=torch.float64),
        torch.randn(1, 2, 1, height, width, dtype=torch.float64),
    )
    np.testing.assert_allclose(operator(x).flatten(), np.asarray(reference @ x.numpy().ravel()).ravel(), atol=1e-14)
    np.testing.assert_allclose(operator.adjoint(y).flatten(), reference.H @ y.numpy().ravel(), atol=1e-14)


def test_finite_difference_ends_below_root_eight():
    assert FiniteDifference((1, 400, 400)).norm_bound() < 8**0.5
    assert FiniteDifference((1, 400, 400)).norm_bound() == pytest.approx(8**0.5, rel=1e-4)


MODES = {
    "zero": "constant",
    "replicate": "nearest",
    "reflect": "mirror",
    "symmetric": "reflect",
    "circular": "wrap",
}


@pytest.mark.parametrize("boundary", MODES)
@pytest.mark.parametrize("size", [(3, 3), (5, 3), (1, 7)])
def test_blur_equals_scipy(boundary, size):
    kernel, x = torch.randn(size, dtype=torch.float64), torch.randn(2, 3, 7, 8, dtype=torch.float64)
    blurred = Blur(kernel, (3, 7, 8), boundary)(x)
    for sample in range(2):
        for channel in range(3):
            expected = ndimage.convolve(x[sample, channel].numpy(), kernel.numpy(), mode=MODES[boundary])
            np.testing.assert_allclose(blurred[sample, channel], expected, atol=1e-12)


def test_gaussian_blur_equals_scipy():
    x = torch.randn(1, 1, 12, 11, dtype=torch.float64)
    for boundary, mode in (("zero", "constant"), ("symmetric", "reflect")):
        blurred = Blur(gaussian_kernel(5, 1.0, torch.float64), (1, 12, 11), boundary)(x)
        expected = ndimage.gaussian_filter(x[0, 0].numpy(), sigma=1.0, truncate=2.0, mode=mode)
        np.testing.assert_allclose(blurred[0, 0], expected, atol=1e-12)


def test_gaussian_kernel():
    kernel = gaussian_kernel(5, 1.0, torch.float64)
    profile = torch.exp(-(torch.tensor([-2.0, -1, 0, 1, 2], dtype=torch.float64) ** 2) / 2)
    torch.testing.assert_close(kernel, torch.outer(profile, profile) / profile.sum() ** 2)
    assert float(kernel.sum()) == pytest.approx(1, abs=1e-15)
    assert gaussian_kernel().dtype == torch.get_default_dtype()
    assert gaussian_kernel(3, 0.5, torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("boundary", ["zero", "reflect", "circular"])
def test_derivatives_of_a_blur_are_those_of_torch(boundary):
    """First and second ones, and through torch.func; a kernel that is learned has its own."""
    kernel = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    blur = Blur(kernel, (2, 5, 6), boundary)
    x = torch.randn(3, 2, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for apply in (blur.forward, blur.adjoint):
        twice = lambda x, apply=apply: apply(apply(x).square())  # noqa: E731
        few = x[:1].clone().requires_grad_()  # second derivatives of all pairs: 3,600 for one sample of two channels
        assert torch.autograd.gradcheck(twice, x[:2].clone().requires_grad_())
        assert torch.autograd.gradgradcheck(twice, few)
        learned = Blur(kernel.clone().requires_grad_(), (2, 5, 6), boundary)  # torch's own convolution
        plain = learned.forward if apply == blur.forward else learned.adjoint
        expected = torch.func.jacrev(lambda x, plain=plain: plain(plain(x).square()))(x[:1])
        torch.testing.assert_close(torch.func.jacrev(twice)(x[:1]), expected)
