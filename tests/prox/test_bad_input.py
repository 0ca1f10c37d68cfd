"""Bad input to activations is refused with a message that helps."""

from __future__ import annotations

import math

import pytest
import torch

from torchlift.core.errors import InvalidTypeError, InvalidValueError, NotProximalError
from torchlift.prox import (
    CELU,
    ELU,
    ISRU,
    Box,
    GroupSoftThreshold,
    Hardtanh,
    L2Ball,
    LeakyReLU,
    ReLU,
    Simplex,
    Softmax,
    Softplus,
    SoftThreshold,
    Squareplus,
    Tanh,
)

V = torch.zeros(4, 3)

CASES = [
    (lambda: SoftThreshold(0.0), InvalidValueError, ["SoftThreshold threshold", "> 0", "0.0"]),
    (lambda: SoftThreshold(-0.2), InvalidValueError, ["SoftThreshold threshold", "> 0", "-0.2"]),
    (lambda: SoftThreshold(math.nan), InvalidValueError, ["SoftThreshold", "finite", "nan"]),
    (lambda: SoftThreshold(math.inf), InvalidValueError, ["SoftThreshold", "finite", "inf"]),
    (lambda: SoftThreshold("0.2"), InvalidTypeError, ["SoftThreshold", "real number", "str"]),
    (lambda: SoftThreshold(True), InvalidTypeError, ["SoftThreshold", "real number", "bool"]),
    (lambda: SoftThreshold(None), InvalidTypeError, ["SoftThreshold", "NoneType"]),
    (lambda: SoftThreshold(torch.tensor(-1.0)), InvalidValueError, ["finite entries > 0", "-1.0", "softplus"]),
    (lambda: SoftThreshold(torch.tensor([0.1, math.nan])), InvalidValueError, ["finite entries > 0"]),
    (lambda: SoftThreshold(torch.tensor([1, 2])), InvalidValueError, ["floating-point", "int64", ".float()"]),
    (lambda: SoftThreshold(torch.ones(2, 2)), InvalidValueError, ["(channels,)", "(2, 2)"]),
    (lambda: SoftThreshold(torch.ones(0)), InvalidValueError, ["(channels,)", "(0,)"]),
    (lambda: SoftThreshold(torch.ones(2, 2), validate=False), InvalidValueError, ["(channels,)", "(2, 2)"]),
    (lambda: SoftThreshold(torch.ones(4))(V), InvalidValueError, ["4 channels", "axis 1", "(4, 3)", "channel_dim"]),
    (lambda: SoftThreshold(torch.ones(3))(V[0]), InvalidValueError, ["3 channels", "(3,)", "channel_dim"]),
    (lambda: SoftThreshold(torch.ones(3), channel_dim=1.0), InvalidTypeError, ["channel_dim", "whole number"]),
    (lambda: GroupSoftThreshold(0.0), InvalidValueError, ["GroupSoftThreshold threshold", "> 0"]),
    (lambda: GroupSoftThreshold(0.1, dim=None), InvalidTypeError, ["GroupSoftThreshold dim", "whole number"]),
    (lambda: LeakyReLU(0.0), InvalidValueError, ["LeakyReLU slope", "(0, 1)", "ReLU()"]),
    (lambda: LeakyReLU(1.0), InvalidValueError, ["LeakyReLU slope", "Identity()"]),
    (lambda: LeakyReLU(-0.1), InvalidValueError, ["LeakyReLU slope", "-0.1"]),
    (lambda: LeakyReLU(math.nan), InvalidValueError, ["LeakyReLU slope", "nan"]),
    (lambda: ELU(2.0), NotProximalError, ["ELU alpha", "(0, 1]", "CELU"]),
    (lambda: ELU(0.0), InvalidValueError, ["ELU alpha", "> 0"]),
    (lambda: CELU(-1.0), InvalidValueError, ["CELU alpha", "> 0"]),
    (lambda: ISRU(0), InvalidValueError, ["ISRU alpha", "> 0"]),
    (lambda: Softplus(0.0), InvalidValueError, ["Softplus beta", "> 0"]),
    (lambda: Softplus(1.0, threshold=1.0), InvalidValueError, ["Softplus threshold", ">= 20", "jump"]),
    (lambda: Squareplus(-1.0), InvalidValueError, ["Squareplus c", "> 0"]),
    (lambda: Box(1.0, 0.0), InvalidValueError, ["lo < hi", "lo=1.0", "Swap"]),
    (lambda: Box(0.0, 0.0), InvalidValueError, ["lo < hi"]),
    (lambda: Box(1.0, 0.0, validate=False), InvalidValueError, ["lo < hi"]),
    (lambda: Box(math.nan, 1.0), InvalidValueError, ["Box lo", "nan"]),
    (lambda: Box(0.0, "1"), InvalidTypeError, ["Box hi", "real number", "str"]),
    (lambda: Box(torch.tensor(1.0), 0.5), InvalidValueError, ["lo < hi"]),
    (lambda: Box(torch.zeros(2), 1.0), InvalidValueError, ["Box lo", "0-d", "(2,)"]),
    (lambda: Hardtanh(1.0, -1.0), InvalidValueError, ["lo < hi"]),
    (lambda: L2Ball(0.0), InvalidValueError, ["L2Ball radius", "> 0"]),
    (lambda: L2Ball(1.0, dim="rows"), InvalidTypeError, ["L2Ball dim", "whole number", "str"]),
    (lambda: Softmax(None), InvalidTypeError, ["Softmax dim", "whole number", "NoneType"]),
    (lambda: Simplex(1.5), InvalidTypeError, ["Simplex dim", "float"]),
    (lambda: ReLU().prox(V, 0.0), InvalidValueError, ["prox step", "> 0"]),
    (lambda: ReLU().prox(V, -1.0), InvalidValueError, ["prox step", "-1.0"]),
    (lambda: Tanh().prox(V, math.nan), InvalidValueError, ["prox step", "nan"]),
    (lambda: Tanh().prox(V, math.inf), InvalidValueError, ["prox step", "inf"]),
    (lambda: ELU().prox(V, 0.0), InvalidValueError, ["prox step", "> 0"]),
    (lambda: SoftThreshold(0.1).prox(V, "1"), InvalidTypeError, ["prox step", "str"]),
    (lambda: Softmax().prox(V, -2), InvalidValueError, ["prox step", "-2"]),
    (lambda: Softmax().prox(V, torch.ones(3)), InvalidValueError, ["prox step", "size 1 along dim -1", "per group"]),
    (lambda: GroupSoftThreshold(0.1, dim=0).prox(V, torch.ones(4, 1)), InvalidValueError, ["size 1 along dim 0"]),
    (lambda: L2Ball().prox(V, 0), InvalidValueError, ["prox step"]),
    (lambda: Squareplus().prox(V, -0.5), InvalidValueError, ["prox step"]),
]


@pytest.mark.parametrize(("call", "error", "words"), CASES)
def test_bad_input_is_refused_with_help(call, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)
