"""Sub-pixel adjoints are the adjoints of the convolutions that they stand for."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from torchlift.inversion.layers import Layers
from torchlift.inversion.sub_pixel import MOST_CHANNELS, SubPixel, quick
from torchlift.networks import lift
from torchlift.operators import Compose, Conv2d, Reshape


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def convolution(channels: int, size: int, stride: int, padding: int, sides: tuple[int, int] = (12, 18)) -> Conv2d:
    return Conv2d(normal(5, channels, size, size), (channels, *sides), stride=stride, padding=padding)


@pytest.mark.parametrize(
    ("size", "stride", "padding"),
    [(4, 2, 1), (3, 2, 1), (2, 2, 0), (5, 2, 2), (6, 2, 2), (3, 3, 0), (5, 3, 1), (7, 3, 2), (8, 2, 3)],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_it_is_the_same_operator(channels: int, size: int, stride: int, padding: int) -> None:
    plain = convolution(channels, size, stride, padding)
    fast = quick(plain)
    assert isinstance(fast, SubPixel)
    assert (fast.in_shape, fast.out_shape) == (plain.in_shape, plain.out_shape)
    x, y = normal(2, *plain.in_shape), normal(2, *plain.out_shape)
    torch.testing.assert_close(fast.forward(x), plain.forward(x))
    torch.testing.assert_close(fast.adjoint(y), plain.adjoint(y))
    assert fast.norm_bound() == plain.norm_bound()


@pytest.mark.parametrize(
    "plain",
    [
        convolution(MOST_CHANNELS + 1, 4, 2, 1),
        convolution(1, 3, 1, 1),
        convolution(1, 4, 2, 1, (13, 18)),
        convolution(1, 6, 2, 0),
        Conv2d(normal(4, 1, 4, 4), (4, 12, 12), stride=2, padding=1, groups=4),
        Conv2d(normal(4, 1, 3, 3), (1, 12, 12), stride=2, padding=2, dilation=2),
        Conv2d(normal(4, 1, 4, 2), (1, 12, 12), stride=2, padding=1),
        Conv2d(normal(4, 1, 4, 4), (1, 12, 12), stride=(2, 3), padding=1),
    ],
    ids=["channels", "no stride", "odd side", "windows", "groups", "dilation", "kernel", "strides"],
)
def test_others_stay_as_they_are(plain: Conv2d) -> None:
    assert quick(plain) is plain


def test_products_keep_their_order() -> None:
    plain = convolution(1, 4, 2, 1)
    product = quick(Compose(Reshape(plain.out_shape, (math.prod(plain.out_shape),)), plain))
    y = normal(2, *product.out_shape)
    torch.testing.assert_close(product.adjoint(y), plain.adjoint(y.view(2, *plain.out_shape)))


def test_inversion_uses_it() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 4, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    layers = Layers.of(lift(module, (1, 12, 12)))
    ((_, block),) = layers.jacobians[0].reads[0]
    assert isinstance(block, SubPixel)
