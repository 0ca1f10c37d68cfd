"""as_activation: what it accepts, and what it refuses by name."""

from __future__ import annotations

from inspect import signature

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchlift.core.errors import InvalidTypeError, InvalidValueError, NotProximalError
from torchlift.prox import (
    ACTIVATIONS,
    CELU,
    ELU,
    ActivationModule,
    Arctan,
    Box,
    Identity,
    LeakyReLU,
    ReLU,
    Sigmoid,
    Softmax,
    Softplus,
    Softsign,
    SoftThreshold,
    Squareplus,
    Tanh,
    as_activation,
)

MODULES = [
    (nn.ReLU(), ReLU),
    (nn.ReLU(inplace=True), ReLU),
    (nn.ReLU6(), Box),
    (nn.Softshrink(0.3), SoftThreshold),
    (nn.Tanh(), Tanh),
    (nn.Sigmoid(), Sigmoid),
    (nn.Softmax(dim=1), Softmax),
    (nn.Softmax2d(), Softmax),
    (nn.Identity(), Identity),
    (nn.LeakyReLU(0.2), LeakyReLU),
    (nn.Hardtanh(-2, 0.5), Box),
    (nn.ELU(0.5), ELU),
    (nn.CELU(3.0), CELU),
    (nn.Softplus(2.0), Softplus),
    (nn.Softplus(2.0, 35.0), Softplus),
    (nn.Softsign(), Softsign),
]


@pytest.mark.parametrize(("module", "cls"), MODULES, ids=[str(module) for module, _ in MODULES])
def test_modules_of_torch(module: nn.Module, cls: type) -> None:
    v = 12 * torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    activation = as_activation(module)
    assert type(activation) is cls
    assert torch.equal(activation(v), module(v.clone()))
    assert torch.equal(activation.to_module()(v), module(v.clone()))


FUNCTIONS = [torch.relu, F.relu, torch.tanh, torch.sigmoid, F.softsign, F.leaky_relu, F.elu, F.hardtanh]
FUNCTIONS += [torch.arctan, F.relu6, F.softplus, F.celu]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_torch(function) -> None:
    v = torch.linspace(-9, 9, 99)
    assert torch.equal(as_activation(function)(v), function(v))


def test_activations_and_their_modules_pass_through() -> None:
    activation = Squareplus(0.3)
    assert as_activation(activation) is activation
    assert as_activation(ActivationModule(activation)) is activation


NAMES = [
    ("relu", ReLU()),
    ("ReLU", ReLU()),
    (" Leaky_ReLU ", LeakyReLU()),
    ("leaky relu", LeakyReLU()),
    ("LeakyReLU", LeakyReLU()),
    ("arctan", Arctan()),
    ("softmax", Softmax()),
]


@pytest.mark.parametrize(("name", "wanted"), NAMES)
def test_names(name: str, wanted) -> None:
    assert as_activation(name) == wanted


def test_names_with_the_box_behind_them() -> None:
    for name, ends in (("relu6", (0, 6)), ("hardtanh", (-1, 1))):
        box = as_activation(name)
        assert isinstance(box, Box)
        assert (box.lo, box.hi) == ends


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_registered_name_is_known(name: str) -> None:
    kind = ACTIVATIONS[name]
    if any(parameter.default is parameter.empty for parameter in signature(kind).parameters.values()):
        with pytest.raises(InvalidValueError, match="needs no arguments") as caught:
            as_activation(name)
        assert f"{kind.__name__}(" in str(caught.value)
    else:
        assert type(as_activation(name)) is kind


class MyModule(nn.Module):
    pass


REFUSED = [
    (nn.GELU(), NotProximalError, ["nn.GELU", "not monotone", "Softplus"]),
    (nn.SiLU(), NotProximalError, ["nn.SiLU", "not monotone"]),
    (nn.Mish(), NotProximalError, ["nn.Mish", "not monotone"]),
    (nn.Hardswish(), NotProximalError, ["nn.Hardswish", "not monotone", "ReLU()"]),
    (nn.Hardshrink(), NotProximalError, ["nn.Hardshrink", "jumps", "SoftThreshold"]),
    (nn.RReLU(), NotProximalError, ["nn.RReLU", "random", "LeakyReLU"]),
    (nn.SELU(), NotProximalError, ["nn.SELU", "slope", "ELU()"]),
    (nn.Threshold(0.1, 20), NotProximalError, ["nn.Threshold", "jumps"]),
    (nn.PReLU(), NotProximalError, ["nn.PReLU", "learned", "LeakyReLU"]),
    (nn.GLU(), NotProximalError, ["nn.GLU", "gates"]),
    (nn.LogSoftmax(dim=1), NotProximalError, ["nn.LogSoftmax", "Jacobian", "Softmax()"]),
    (nn.Softmin(dim=1), NotProximalError, ["nn.Softmin", "decreasing"]),
    (nn.ELU(2.0), NotProximalError, ["ELU alpha", "CELU"]),
    (nn.Tanhshrink(), InvalidValueError, ["nn.Tanhshrink is proximal, but not built in", "one file"]),
    (nn.LogSigmoid(), InvalidValueError, ["nn.LogSigmoid is proximal, but not built in"]),
    (nn.Hardsigmoid(), InvalidValueError, ["nn.Hardsigmoid is proximal, but not built in"]),
    (nn.LeakyReLU(1.5), InvalidValueError, ["LeakyReLU slope", "(0, 1)"]),
    (nn.Softshrink(0.0), InvalidValueError, ["SoftThreshold threshold", "> 0"]),
    (nn.Softplus(1.0, 5.0), InvalidValueError, ["Softplus threshold", "20"]),
    (nn.Softmax(), InvalidValueError, ["nn.Softmax", "dim"]),
    (F.gelu, NotProximalError, ["gelu", "not monotone"]),
    (F.log_softmax, NotProximalError, ["log_softmax", "Jacobian"]),
    (torch.sign, NotProximalError, ["sign", "jumps", "Tanh()"]),
    (torch.heaviside, NotProximalError, ["heaviside", "jumps"]),
    (F.logsigmoid, InvalidValueError, ["logsigmoid is proximal, but not built in"]),
    (F.softmax, InvalidTypeError, ["activation", "softmax", "pass the object"]),
    ("gelu", NotProximalError, ["gelu", "not monotone"]),
    ("Swish", NotProximalError, ["Swish", "Softplus()"]),
    ("soft-threshold", InvalidValueError, ["arguments", "SoftThreshold(0.2)"]),
    ("SoftThreshold", InvalidValueError, ["arguments", "SoftThreshold(0.2)"]),
    ("box", InvalidValueError, ["arguments", "Box(0, 1)"]),
    ("rellu", InvalidValueError, ["'rellu'", "Did you mean 'relu'?"]),
    ("sigmiod", InvalidValueError, ["Did you mean 'sigmoid'?"]),
    ("", InvalidValueError, ["one of", "relu"]),
    (nn.Linear(2, 2), InvalidTypeError, ["activation module", "Linear"]),
    (MyModule(), InvalidTypeError, ["MyModule", "Subclass ProximalActivation"]),
    (nn.ReLU, InvalidTypeError, ["the class ReLU", "ReLU("]),
    (Tanh, InvalidTypeError, ["the class Tanh", "Tanh("]),
    (lambda v: v, InvalidTypeError, ["Subclass ProximalActivation"]),
    (None, InvalidTypeError, ["activation", "NoneType", "'relu'"]),
    (3.0, InvalidTypeError, ["activation", "float"]),
]


@pytest.mark.parametrize(("value", "error", "words"), REFUSED)
def test_refused_by_name_with_a_reason(value: object, error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        as_activation(value)
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)
