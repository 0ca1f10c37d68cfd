"""Bad input to networks and `lift` gets an error that names what was expected, what came, what to try."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from torchlift import networks, operators, prox
from torchlift.core.errors import InvalidTypeError, InvalidValueError, NotProximalError, NotRepresentableError
from torchlift.networks import (
    LISTA,
    MLP,
    Chain,
    Perceptron,
    PrimalDual,
    Residual,
    ResNet,
    RungeKutta,
    Shallow,
    Tableau,
)


def _lift(*modules: nn.Module, shape: object = None) -> Callable[[], object]:
    return lambda: Chain(nn.Sequential(*modules), shape)


def _tied() -> nn.Sequential:
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second)


_same = nn.Linear(3, 3)
H = operators.Dense(torch.eye(4))

CASES: list[tuple[Callable[[], object], type[Exception], list[str]]] = [
    # widths and activations
    (lambda: MLP(784), InvalidTypeError, ["[784, 256, 10]", "int"]),
    (lambda: MLP([784]), InvalidValueError, ["input and an output size", "[784]"]),
    (lambda: MLP([4, 0, 2]), InvalidValueError, ["widths[1]", ">= 1", "0"]),
    (lambda: MLP([4, 2.5, 2]), InvalidTypeError, ["widths[1]", "whole number", "float"]),
    (lambda: MLP([4, True, 2]), InvalidTypeError, ["widths[1]", "bool"]),
    (lambda: MLP("784"), InvalidTypeError, ["str"]),
    (lambda: MLP([4, 3, 3, 2], [prox.ReLU()]), InvalidValueError, ["2: one per hidden layer", "1"]),
    (lambda: MLP([4, 3, 2], nn.GELU()), NotProximalError, ["GELU"]),
    (lambda: MLP([4, 3, 2], nn.SiLU()), NotProximalError, ["SiLU"]),
    (lambda: MLP([4, 3, 2], "rellu"), InvalidValueError, ["rellu", "relu"]),
    (lambda: MLP([4, 3, 2], 3.0), InvalidTypeError, ["float"]),
    (lambda: Perceptron(4, 1, "heaviside"), NotProximalError, ["eaviside"]),
    (lambda: Perceptron(0, 1), InvalidValueError, ["widths[0]", "0"]),
    (lambda: Shallow(3, []), InvalidValueError, ["at least one block"]),
    (lambda: Shallow(3, [2, -1]), InvalidValueError, ["hidden[1]", "-1"]),
    (lambda: Shallow(3, 4, 0), InvalidValueError, ["out_features", "0"]),
    (lambda: Shallow(3, [1, 1], 1, [prox.ReLU()] * 3), InvalidValueError, ["2: one per", "3"]),
    # residual networks
    (lambda: ResNet(4, [], 2), InvalidValueError, ["at least one width"]),
    (lambda: ResNet(4, [3], 2, steps=0.0), InvalidValueError, ["steps", "> 0"]),
    (lambda: ResNet(4, [3], 2, steps=[0.1, 0.2]), InvalidValueError, ["one step, or 1", "2"]),
    (lambda: ResNet(4, [3], 2, steps=[float("nan")]), InvalidValueError, ["steps[0]", "nan"]),
    (lambda: ResNet(4, [3], 2, tableau="rk5"), InvalidValueError, ["rk4", "rk5"]),
    (lambda: ResNet(4, [3], 2, tableau=4), InvalidTypeError, ["Tableau", "int"]),
    (lambda: Tableau(((0.5,),), (1.0,)), InvalidValueError, ["explicit", "[1]"]),
    (lambda: Tableau(((), (1.0,)), (0.5, 0.6)), InvalidValueError, ["sum to 1", "1.1"]),
    (lambda: Residual(), InvalidValueError, ["at least one module"]),
    (lambda: Residual(torch.relu), InvalidTypeError, ["nn.Module"]),
    (lambda: Residual(nn.Linear(3, 3), step=float("inf")), InvalidValueError, ["finite", "inf"]),
    (lambda: Residual(nn.Linear(3, 2))(torch.zeros(1, 3)), InvalidValueError, ["(1, 3)", "(1, 2)"]),
    # unrolled networks
    (lambda: LISTA(torch.eye(3, dtype=torch.int64), torch.eye(3), 2), InvalidValueError, ["floating-point", "int64"]),
    (lambda: LISTA("blur", torch.eye(3), 2), InvalidTypeError, ["LinearOperator or a matrix", "str"]),
    (lambda: LISTA(H, torch.eye(3), 2), InvalidValueError, ["output shape (4,)", "(3,)"]),
    (lambda: LISTA(H, torch.zeros(4), 2), InvalidValueError, ["a matrix", "(4,)"]),
    (lambda: LISTA(H, torch.eye(4), 0), InvalidValueError, ["iterations", ">= 1", "0"]),
    (lambda: LISTA(H, torch.eye(4), 2, threshold=-0.1), InvalidValueError, ["threshold", "> 0", "-0.1"]),
    (lambda: LISTA(H, torch.eye(4), 2, step=0.0), InvalidValueError, ["step", "> 0"]),
    (lambda: LISTA(H, torch.eye(4), 2, form="fista"), InvalidValueError, ["'ista' or 'coupled'", "fista"]),
    (lambda: LISTA(H, torch.eye(4), 2, learnable=["thresold"]), InvalidValueError, ["threshold", "thresold"]),
    (lambda: LISTA(H, torch.eye(4), 2, form="coupled").convergence(), InvalidValueError, ["form 'ista'"]),
    (lambda: LISTA(operators.Mask(shape=(4,)), torch.eye(4), 2), InvalidValueError, ["context", "mask"]),
    (lambda: PrimalDual(H, torch.eye(3), 2), InvalidValueError, ["input shape (4,)", "(3,)"]),
    (lambda: PrimalDual(H, torch.eye(4), 2, constraint=nn.Mish()), NotProximalError, ["Mish"]),
    (lambda: PrimalDual(H, torch.eye(4), 2, dual_step=-1.0), InvalidValueError, ["dual_step", "-1"]),
    (lambda: PrimalDual(H, torch.eye(4), 2, learnable="step"), InvalidValueError, ["learnable", "step"]),
    (lambda: PrimalDual(H, torch.eye(4), 2.5), InvalidTypeError, ["iterations", "float"]),
    # chains: positions, reasons, hints
    (lambda: Chain(nn.Linear(3, 2)), InvalidTypeError, ["nn.Sequential", "Linear"]),
    (_lift(), InvalidValueError, ["at least one module"]),
    (_lift(nn.Conv2d(1, 2, 3)), InvalidValueError, ["input_shape", "Conv2d"]),
    (_lift(nn.ReLU()), InvalidValueError, ["input_shape", "ReLU"]),
    (_lift(nn.Linear(3, 2), nn.GELU()), NotProximalError, ["module 1", "GELU"]),
    (_lift(nn.Linear(3, 2), nn.Linear(3, 2)), NotRepresentableError, ["module 1", "3 features", "2"]),
    (_lift(nn.Conv2d(1, 2, 3), nn.Linear(18, 2), shape=(1, 5, 5)), NotRepresentableError, ["module 1", "Flatten"]),
    (_lift(nn.Conv2d(2, 2, 3), shape=(1, 5, 5)), NotRepresentableError, ["module 0", "2 channels", "(1, 5, 5)"]),
    (_lift(nn.Conv2d(1, 2, 9), shape=(1, 5, 5)), InvalidValueError, ["module 0", "Conv2d"]),
    (_lift(nn.Conv2d(1, 2, 3, padding_mode="circular"), shape=(1, 5, 5)), NotRepresentableError, ["circular"]),
    (_lift(nn.Conv2d(1, 1, 3), nn.MaxPool2d(2), shape=(1, 8, 8)), NotRepresentableError, ["module 1", "AvgPool2d"]),
    (_lift(nn.Linear(3, 3), nn.LayerNorm(3)), NotRepresentableError, ["module 1", "LayerNorm"]),
    (_lift(nn.Linear(3, 3), nn.Sequential(nn.Bilinear(3, 3, 3))), NotRepresentableError, ["Bilinear"]),
    (_lift(nn.Linear(3, 3), nn.BatchNorm1d(3)), NotRepresentableError, ["module 1", "eval"]),
    (_lift(nn.Linear(3, 3), nn.Dropout(0.5)), NotRepresentableError, ["module 1", "eval"]),
    (_lift(nn.AvgPool2d(2, ceil_mode=True), shape=(1, 5, 5)), NotRepresentableError, ["ceil_mode"]),
    (_lift(nn.Flatten(0), shape=(1, 5, 5)), NotRepresentableError, ["Flatten(1, -1)"]),
    (_lift(nn.Linear(3, 6), nn.Unflatten(1, (4, 2))), InvalidValueError, ["module 1"]),
    (_lift(Residual(nn.Linear(3, 2), nn.ReLU())), NotRepresentableError, ["module 0", "(3,)", "(2,)"]),
    (_lift(RungeKutta(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 3))), NotRepresentableError, ["0.outer", "bias=False"]),
    (_lift(RungeKutta(nn.ReLU(), nn.ReLU(), nn.Linear(3, 3)), shape=3), NotRepresentableError, ["0.inner", "linear"]),
    (lambda: Chain(_tied()), NotRepresentableError, ["same tensor", "0.weight"]),
    (_lift(_same, nn.ReLU(), _same), NotRepresentableError, ["two of W, V and K"]),
    (_lift(nn.Linear(3, 3), nn.Linear(3, 2).double()), InvalidValueError, ["one dtype"]),
    (_lift(nn.Linear(3, 3), shape=(0,)), InvalidValueError, ["input_shape[0]", "0"]),
    (_lift(nn.Linear(3, 3), shape=(4,)), NotRepresentableError, ["module 0", "3 features", "4"]),
    (_lift(nn.LeakyReLU(-0.1), shape=3), InvalidValueError, ["module 0", "LeakyReLU"]),
]


@pytest.mark.parametrize(("build", "error", "words"), CASES, ids=range(len(CASES)))
def test_bad_construction_is_refused(build: Callable[[], object], error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        build()
    assert all(word in str(caught.value) for word in words), caught.value


NETWORK = MLP([3, 4, 2])
MASKED = LISTA(operators.Mask(shape=(1, 4, 4)), torch.eye(16), 1, context=torch.ones(1, 1, 4, 4))

CALLS: list[tuple[Callable[[], object], type[Exception], list[str]]] = [
    (lambda: NETWORK(torch.zeros(5, 4)), InvalidValueError, ["MLP input", "(batch, 3)", "(5, 4)"]),
    (lambda: NETWORK(torch.zeros(3)), InvalidValueError, ["(batch, 3)", "x[None]"]),
    (lambda: NETWORK(torch.zeros(0, 3)), InvalidValueError, ["at least one sample", "empty"]),
    (lambda: NETWORK(torch.zeros(5, 3, dtype=torch.float64)), InvalidValueError, ["float32", "float64"]),
    (lambda: NETWORK(torch.zeros(5, 3, dtype=torch.int64)), InvalidValueError, ["floating-point", "int64"]),
    (lambda: NETWORK([[1.0, 2.0, 3.0]]), InvalidTypeError, ["torch.Tensor", "list"]),
    (lambda: NETWORK(torch.zeros(5, 3, device="meta")), InvalidValueError, ["device cpu", "meta"]),
    (lambda: MASKED(torch.zeros(2, 1, 4, 4)), InvalidValueError, ["context", "mask"]),
    (lambda: MASKED(torch.zeros(2, 1, 4, 4), {"masks": torch.ones(2, 1, 4, 4)}), InvalidValueError, ["mask", "masks"]),
    (lambda: MASKED(torch.zeros(2, 1, 4, 4), torch.ones(3, 1, 4, 4)), InvalidValueError, ["2 samples", "3"]),
    (
        lambda: MASKED(torch.zeros(2, 1, 4, 4), torch.ones(2, 1, 4, 5)),
        InvalidValueError,
        ["(batch, 1, 4, 4)", "(2, 1, 4, 5)"],
    ),
    (lambda: MASKED.to_sequential(torch.ones(1, 1, 4, 4)), InvalidValueError, ["two or more", "1"]),
]


@pytest.mark.parametrize(("call", "error", "words"), CALLS, ids=range(len(CALLS)))
def test_bad_calls_are_refused(call: Callable[[], object], error: type[Exception], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value


def test_module_used_twice_in_one_role_is_one_layer() -> None:
    shared = nn.Linear(3, 3)
    model = nn.Sequential(shared, nn.ReLU(), shared, nn.Tanh(), nn.Linear(3, 1))
    network = networks.lift(model)
    y = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in model.parameters())
    assert torch.equal(network(y), model(y))
    plain = network.to_sequential()
    assert plain[0] is plain[2]
    assert torch.equal(plain(y), model(y))


def test_frozen_layers_stay_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    model[0].requires_grad_(False)
    network = networks.lift(model)
    trainable = sum(p.numel() for p in network.parameters() if p.requires_grad)
    assert trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
