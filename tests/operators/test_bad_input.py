"""Bad input is refused at construction, by name, with what was expected and what came."""

from __future__ import annotations

import math

import pytest
import torch

from torchlift.core.errors import TorchliftError
from torchlift.operators import (
    AveragePool2d,
    Blur,
    Compose,
    Conv2d,
    ConvTranspose2d,
    Dense,
    FiniteDifference,
    Identity,
    Mask,
    Reshape,
    Scaled,
    Sum,
    Zero,
    gaussian_kernel,
)
from torchlift.operators.context import context_batch


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape)


W = ones(2, 3, 3, 3)  # two output channels, three input channels
IMAGE = (3, 8, 8)

CASES = {
    "dense vector": (lambda: Dense(ones(3)), r"Dense weight: expected shape \(out, in\), got \(3,\)"),
    "dense list": (lambda: Dense([[1.0]]), "Dense weight: expected a torch.Tensor, got list"),
    "dense integers": (lambda: Dense(ones(2, 2).long()), "floating-point tensor, got torch.int64"),
    "conv weight axes": (
        lambda: Conv2d(ones(2, 3, 3), IMAGE),
        r"Conv2d weight: expected .*\(out, in / groups, kh, kw\)",
    ),
    "conv empty weight": (lambda: Conv2d(ones(2, 3, 0, 3), IMAGE), "non-empty"),
    "conv complex": (lambda: Conv2d(W.to(torch.complex64), IMAGE), "floating-point tensor, got torch.complex64"),
    "conv channels": (lambda: Conv2d(W, (4, 8, 8)), r"4 / 1 input channels .*got \(2, 3, 3, 3\)"),
    "conv image shape": (
        lambda: Conv2d(W, (8, 8)),
        r"Conv2d input_shape: expected a shape \(channels, height, width\)",
    ),
    "conv empty image": (lambda: Conv2d(W, (3, 0, 8)), r"input_shape\[1\]: expected a whole number >= 1, got 0"),
    "conv stride zero": (lambda: Conv2d(W, IMAGE, stride=0), "Conv2d stride: expected a whole number >= 1, got 0"),
    "conv stride triple": (lambda: Conv2d(W, IMAGE, stride=(1, 2, 3)), r"one number or a pair, got \(1, 2, 3\)"),
    "conv stride float": (lambda: Conv2d(W, IMAGE, stride=1.5), "Conv2d stride: expected a whole number, got float"),
    "conv padding": (lambda: Conv2d(W, IMAGE, padding=-1), "Conv2d padding: expected a whole number >= 0, got -1"),
    "conv padding word": (
        lambda: Conv2d(W, IMAGE, padding="full"),
        """"same", "valid", a number or a pair, got 'full'""",
    ),
    "conv same stride": (lambda: Conv2d(W, IMAGE, stride=2, padding="same"), '"same" needs stride 1'),
    "conv dilation": (lambda: Conv2d(W, IMAGE, dilation=0), "Conv2d dilation"),
    "conv groups": (lambda: Conv2d(W, IMAGE, groups=2), "groups: expected a divisor of the 3 input channels, got 2"),
    "conv output groups": (lambda: Conv2d(W, IMAGE, groups=3), "a divisor of the 2 output channels, got 3"),
    "conv no groups": (lambda: Conv2d(W, IMAGE, groups=0), "Conv2d groups: expected a whole number >= 1"),
    "conv kernel": (lambda: Conv2d(W, (3, 2, 8)), r"fits into the padded image \(2, 8\), got one that spans \(3, 3\)"),
    "conv dilated kernel": (lambda: Conv2d(W, IMAGE, dilation=4), r"spans \(9, 9\)"),
    "transposed channels": (lambda: ConvTranspose2d(W, IMAGE), "3 input channels on axis 0"),
    "transposed output padding": (
        lambda: ConvTranspose2d(W, (2, 4, 4), stride=2, output_padding=2),
        r"output_padding: expected less than the stride \(2, 2\) or the dilation \(1, 1\), got \(2, 2\)",
    ),
    "transposed padding": (lambda: ConvTranspose2d(W, (2, 1, 1), padding=2), "one that leaves an output"),
    "transposed same": (lambda: ConvTranspose2d(W, (2, 4, 4), padding="same"), "padding: expected a whole number"),
    "transposed groups": (lambda: ConvTranspose2d(W, (2, 4, 4), groups=3), "a divisor of the 2 input channels"),
    "pool kernel": (lambda: AveragePool2d(IMAGE, 0), "AveragePool2d kernel_size: expected a whole number >= 1"),
    "pool large kernel": (lambda: AveragePool2d(IMAGE, 9), "AveragePool2d kernel_size: expected a kernel that fits"),
    "pool stride": (lambda: AveragePool2d(IMAGE, 2, -1), "AveragePool2d stride"),
    "pool padding": (lambda: AveragePool2d(IMAGE, 2, 2, 2), "at most half the kernel size"),
    "reshape": (lambda: Reshape((2, 3), 5), r"as many entries as \(2, 3\), got \(5,\)"),
    "reshape shape": (lambda: Reshape("ab", 5), "Reshape from_shape: expected a shape"),
    "identity": (lambda: Identity((3, -1)), r"Identity shape\[1\]: expected a whole number >= 1, got -1"),
    "zero": (lambda: Zero(3, 2.5), "Zero to_shape: expected a shape"),
    "difference": (lambda: FiniteDifference((5,)), "FiniteDifference shape"),
    "factor not a number": (lambda: Scaled(Identity(3), math.nan), "Scaled factor: expected a finite number, got nan"),
    "factor infinite": (lambda: math.inf * Identity(3), "finite number, got inf"),
    "factor vector": (lambda: Scaled(Identity(3), ones(3)), r"a number or a 0-d tensor, got shape \(3,\)"),
    "factor integer tensor": (lambda: torch.tensor(2) * Identity(3), "Scaled factor: expected a floating-point"),
    "factor text": (lambda: Scaled(Identity(3), "2"), "a real number, got str"),
    "scaled tensor": (
        lambda: Scaled(ones(3, 3), 2.0),
        r"a LinearOperator, got Tensor. Wrap a matrix as Dense\(weight\)",
    ),
    "compose": (
        lambda: Dense(ones(2, 3)) @ Identity(4),
        r"Compose: expected an input of Dense that fits the output of Identity, got \(3,\) after \(4,\)",
    ),
    "compose nothing": (lambda: Compose(), "at least one operator"),
    "compose matrix": (lambda: Compose(Identity(3), ones(3, 3)), "Compose operator 1: expected a LinearOperator"),
    "sum": (
        lambda: Dense(ones(2, 3)) + Identity(3),
        r"Sum: expected Identity to have the shapes \(3,\) -> \(2,\) of Dense, got \(3,\) -> \(3,\)",
    ),
    "sum nothing": (lambda: Sum(), "at least one operator"),
    "blur even kernel": (lambda: Blur(ones(2, 3), IMAGE), "odd kh and kw, got .* centre"),
    "blur kernel axes": (lambda: Blur(ones(3), IMAGE), r"Blur kernel: expected shape \(kh, kw\)"),
    "blur boundary": (lambda: Blur(ones(3, 3), IMAGE, "mirror"), "one of 'zero', 'replicate', .* got 'mirror'"),
    "blur reach": (lambda: Blur(ones(5, 5), (1, 2, 8), "reflect"), "at most 3 taps along 2 pixels with .*'reflect'"),
    "gaussian size": (lambda: gaussian_kernel(4), "gaussian_kernel size: expected an odd number, got 4"),
    "gaussian sigma": (lambda: gaussian_kernel(5, 0.0), "gaussian_kernel sigma: expected a number > 0"),
    "mask nothing": (lambda: Mask(), "a mask, or the shape of the masks in the context, got neither"),
    "mask shape": (lambda: Mask(ones(2, 3), (3, 2)), r"the shape \(2, 3\) of the mask, got \(3, 2\)"),
    "mask boolean": (lambda: Mask(ones(3).bool()), "Mask mask: expected a floating-point tensor, got torch.bool"),
    "mask missing": (lambda: Mask(shape=3)(ones(2, 3)), "per-sample context with a tensor 'mask', got NoneType"),
    "mask other name": (lambda: Mask(shape=3)(ones(2, 3), {"noise": ones(2, 3)}), r"tensor 'mask', got \['noise'\]"),
    "mask context shape": (lambda: Mask(shape=3)(ones(2, 3), ones(2, 4)), r"\(batch, 3\), got \(2, 4\)"),
    "mask context batch": (lambda: Mask(shape=3)(ones(2, 3), ones(5, 3)), "one mask for each of 2 samples, got 5"),
    "mask norm without context": (lambda: Mask(shape=3).norm_bound(), "per-sample context"),
    "context batches": (lambda: context_batch("here", {"a": ones(2), "b": ones(3)}), "here: .* one non-empty batch"),
    "empty batch": (lambda: Identity(3)(ones(0, 3)), "Identity input: expected at least one sample"),
    "no batch axis": (lambda: Identity(3)(ones(3)), r"expected shape \(batch, 3\), got \(3,\)\. Add a batch axis"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused(case):
    build, pattern = CASES[case]
    with pytest.raises(TorchliftError, match=pattern):
        build()
