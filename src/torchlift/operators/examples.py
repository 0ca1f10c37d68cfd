"""Small operators of every kind, in double precision, for tests and for a first look.

A new operator adds lines here and inherits the whole contract suite.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Generator, Tensor
from torch.nn.functional import pad

from torchlift.operators.base import Compose, Context, LinearOperator, Sum
from torchlift.operators.convolution import AveragePool2d, Conv2d, ConvTranspose2d
from torchlift.operators.difference import FiniteDifference
from torchlift.operators.elementary import Dense, Diagonal, Identity, Reshape, Zero
from torchlift.operators.imaging import Blur, DownSample, Mask, Radon, gaussian_kernel
from torchlift.operators.physics import Functional
from torchlift.operators.transforms import CosineTransform, Fourier, Separable, WaveletTransform


class Example(NamedTuple):
    """An operator, and a context of two samples if it needs one."""

    operator: LinearOperator
    context: Context = None


def _randn(generator: Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _masks(generator: Generator, *shape: int) -> Tensor:
    return torch.rand((2, *shape), generator=generator, dtype=torch.float64)


def _conv(g: Generator, weight: tuple[int, ...], shape: tuple[int, int, int], **settings: object) -> Example:
    return Example(Conv2d(_randn(g, *weight), shape, **settings))  # type: ignore[arg-type]


def _transpose(g: Generator, weight: tuple[int, ...], shape: tuple[int, int, int], **settings: object) -> Example:
    return Example(ConvTranspose2d(_randn(g, *weight), shape, **settings))  # type: ignore[arg-type]


def _encoder(g: Generator) -> Example:
    """Convolution, pooling, flattening, dense: a convolutional encoder without activations."""
    conv = Conv2d(_randn(g, 3, 1, 3, 3), (1, 6, 6), padding=1)
    return Example(Compose(Dense(_randn(g, 4, 27)), Reshape((3, 3, 3), (27,)), AveragePool2d((3, 6, 6), 2), conv))


def _masked_blur(g: Generator) -> Example:
    shape = (1, 5, 6)
    mask, blur = Mask(shape=shape), Blur(_randn(g, 3, 3), shape, "symmetric")
    return Example(mask @ blur, {"mask": _masks(g, *shape)})


def _inpainting_normal_map(g: Generator) -> Example:
    mask = Mask(shape=(2, 3, 3), key="known")
    return Example(Identity((2, 3, 3)) - 0.5 * (mask.T @ mask), {"known": _masks(g, 2, 3, 3), "noise": _masks(g, 1)})


#: Name -> a function that draws the example from a generator.
OPERATORS: dict[str, Callable[[Generator], Example]] = {
    "dense wide": lambda g: Example(Dense(_randn(g, 3, 7))),
    "dense tall": lambda g: Example(Dense(_randn(g, 8, 2))),
    "dense single": lambda g: Example(Dense(_randn(g, 1, 1))),
    "conv": lambda g: _conv(g, (3, 2, 3, 3), (2, 6, 5), padding=1),
    "conv stride leaves rows unread": lambda g: _conv(g, (2, 1, 2, 3), (1, 8, 9), stride=(3, 2)),
    "conv dilated": lambda g: _conv(g, (1, 2, 3, 2), (2, 7, 6), dilation=(2, 3), padding=(1, 0)),
    "conv grouped": lambda g: _conv(g, (4, 2, 3, 3), (4, 5, 5), groups=2, stride=2, padding=1),
    "conv depthwise": lambda g: _conv(g, (3, 1, 1, 3), (3, 4, 6), groups=3),
    "conv same, even kernel": lambda g: _conv(g, (2, 1, 4, 2), (1, 5, 6), padding="same"),
    "conv same, dilated": lambda g: _conv(g, (1, 1, 3, 2), (1, 6, 7), padding="same", dilation=(2, 1)),
    "conv padded beyond its kernel": lambda g: _conv(g, (1, 1, 1, 2), (1, 3, 3), padding=(2, 3), stride=2),
    "conv transposed": lambda g: _transpose(g, (2, 3, 3, 3), (2, 4, 5), stride=2, padding=1, output_padding=1),
    "conv transposed grouped": lambda g: _transpose(g, (4, 1, 2, 3), (4, 3, 4), groups=2, stride=(1, 2)),
    "conv transposed, output padding beside dilation": lambda g: _transpose(
        g, (1, 2, 2, 2), (1, 3, 4), dilation=3, output_padding=(2, 1), padding=(0, 1)
    ),
    "average pool": lambda g: Example(AveragePool2d((2, 6, 4), 2)),
    "average pool overlapping": lambda g: Example(AveragePool2d((1, 7, 8), 3, 2, 1)),
    "average pool without pad count": lambda g: Example(AveragePool2d((2, 5, 6), (3, 2), (1, 2), (1, 0), False)),
    "reshape": lambda g: Example(Reshape((2, 3, 2), (4, 3))),
    "flatten": lambda g: Example(Reshape((2, 3, 2), (12,))),
    "identity": lambda g: Example(Identity((2, 3))),
    "zero": lambda g: Example(Zero((2, 3), (4,))),
    "scaled identity": lambda g: Example(-0.7 * Identity((5,))),
    "scaled by a tensor": lambda g: Example(_randn(g) * Dense(_randn(g, 3, 4))),
    "finite difference": lambda g: Example(FiniteDifference((2, 5, 4))),
    "finite difference, one row": lambda g: Example(FiniteDifference((1, 1, 4))),
    "blur zero": lambda g: Example(Blur(_randn(g, 3, 5), (2, 6, 7), "zero")),
    "blur replicate": lambda g: Example(Blur(_randn(g, 5, 3), (1, 6, 5), "replicate")),
    "blur reflect": lambda g: Example(Blur(_randn(g, 3, 3), (2, 4, 5), "reflect")),
    "blur symmetric": lambda g: Example(Blur(gaussian_kernel(5, 1.0, torch.float64), (1, 7, 6), "symmetric")),
    "blur circular": lambda g: Example(Blur(_randn(g, 3, 7), (1, 4, 5), "circular")),
    "cosine transform": lambda g: Example(CosineTransform((3, 5, 6))),
    "cosine transform of blocks": lambda g: Example(CosineTransform((2, 7, 5), block=3)),
    "wavelet transform": lambda g: Example(WaveletTransform((3, 8, 4), "db2", 2)),
    "wavelet transform, odd size": lambda g: Example(WaveletTransform((1, 7, 5), "db3", 2)),
    "wavelet transform of blocks": lambda g: Example(WaveletTransform((1, 9, 6), "haar", 2, block=4)),
    "separable": lambda g: Example(Separable(_randn(g, 3, 4), _randn(g, 6, 5), (2, 4, 5))),
    "Fourier": lambda g: Example(Fourier((2, 5, 4))),
    "Fourier of real images": lambda g: Example(Fourier((1, 4, 5))),
    "magnetic resonance": lambda g: Example(Mask(shape=(2, 4, 4)) @ Fourier((1, 4, 4)), _masks(g, 2, 4, 4)),
    "Radon": lambda g: Example(Radon((1, 5, 6), (0.0, 30.0, 45.0, 90.0, 120.0))),
    "Radon with few detectors": lambda g: Example(Radon((2, 6, 4), (-10.0, 200.0), detectors=4)),
    "down-sampling": lambda g: Example(DownSample((2, 5, 7), (2, 3))),
    "super-resolution": lambda g: Example(DownSample((3, 6, 6)) @ Blur(_randn(g, 3, 3), (3, 6, 6), "symmetric")),
    "mask": lambda g: Example(Mask(_randn(g, 2, 3))),
    "colour mask per sample": lambda g: Example(Mask(shape=(3, 4, 4)), _masks(g, 3, 4, 4)),
    "mask per sample": lambda g: Example(Mask(shape=(1, 4, 3)), _masks(g, 1, 4, 3)),
    "mask per sample by name": lambda g: Example(Mask(shape=(5,), key="known"), {"known": _masks(g, 5)}),
    "diagonal per channel": lambda g: Example(Diagonal(_randn(g, 3, 1), (3, 4))),
    "functional": lambda g: Example(
        Functional(lambda x, w: pad(w @ x, (2, 1), mode="reflect"), (2, 4), (2, 7), (_randn(g, 2, 2),), "reflect")
    ),
    "functional with context": lambda g: Example(
        Functional(lambda x, scale: x.flip(-1) * scale, (2, 3), (2, 3), name="flip", key="scale"),
        {"scale": _masks(g, 2, 3)},
    ),
    "adjoint": lambda g: Example(Conv2d(_randn(g, 2, 1, 3, 3), (1, 5, 5), stride=2).T),
    "compose": lambda g: Example(Dense(_randn(g, 3, 5)) @ Dense(_randn(g, 5, 4)) @ Dense(_randn(g, 4, 6))),
    "compose encoder": _encoder,
    "compose with context": _masked_blur,
    "sum": lambda g: Example(Sum(Dense(_randn(g, 4, 4)), Identity((4,)), -Dense(_randn(g, 4, 4)))),
    "sum with context": _inpainting_normal_map,
}
