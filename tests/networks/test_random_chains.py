"""Random chains of modules: lifted, evaluated, differentiated and turned back, they stay the same network."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from torchlift import lift, sweeping
from torchlift.functions.losses import SquaredError
from torchlift.liftings import Bregman
from torchlift.networks import Residual, RungeKutta
from torchlift.objective import Objective

ACTIVATIONS = st.sampled_from(
    [
        nn.ReLU(),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.Softshrink(0.3),
        nn.LeakyReLU(0.2),
        nn.Hardtanh(-0.5, 0.7),
        nn.ELU(0.8),
        nn.Softplus(),
        nn.Softsign(),
        nn.Identity(),
    ]
)
WIDTHS = st.integers(1, 5)


@st.composite
def dense_chains(draw: st.DrawFn) -> nn.Sequential:
    """Linear modules with and without bias, activations anywhere, residual blocks, nesting."""
    width = draw(WIDTHS)
    modules: list[nn.Module] = [nn.Linear(width, width := draw(WIDTHS), bias=draw(st.booleans()))]
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["linear", "activation", "residual", "runge-kutta", "nested", "norm"]))
        inner, activation, bias = draw(WIDTHS), draw(ACTIVATIONS), draw(st.booleans())
        if kind == "linear":
            modules.append(nn.Linear(width, inner, bias=bias))
            width = inner
        elif kind == "activation":
            modules.append(activation)
        elif kind == "residual":
            branch = [nn.Linear(width, inner), activation, nn.Linear(inner, width, bias=bias)]
            modules.append(Residual(*branch, step=draw(st.sampled_from([1.0, 0.3]))))
        elif kind == "runge-kutta":
            outer = nn.Linear(inner, width, bias=False)
            proximal = nn.Tanh() if isinstance(activation, nn.Identity) else activation
            method = draw(st.sampled_from(["euler", "heun", "kutta3"]))
            modules.append(RungeKutta(nn.Linear(width, inner, bias=bias), proximal, outer, 0.4, method))
        elif kind == "nested":
            modules.append(nn.Sequential(nn.Linear(width, inner), activation))
            width = inner
        else:
            modules.append(nn.BatchNorm1d(width))
    return nn.Sequential(*modules).double().eval()


@st.composite
def convolutional_chains(draw: st.DrawFn) -> tuple[nn.Sequential, tuple[int, int, int]]:
    """Convolutions, their transposes and pooling on small images."""
    channels, height, width = draw(st.integers(1, 2)), draw(st.integers(5, 7)), draw(st.integers(5, 7))
    shape = (channels, height, width)
    modules: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 3))):
        out = draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["convolution", "transposed", "pool"]))
        if kind == "convolution":
            modules.append(nn.Conv2d(channels, out, 3, draw(st.integers(1, 2)), padding=1, bias=draw(st.booleans())))
            channels = out
        elif kind == "transposed":
            modules.append(nn.ConvTranspose2d(channels, out, 2, draw(st.integers(1, 2))))
            channels = out
        else:
            modules.append(nn.AvgPool2d(2, 1))
        modules.append(draw(ACTIVATIONS))
    if draw(st.booleans()):
        modules.append(nn.Flatten())
    return nn.Sequential(*modules).double(), shape


def _randomise(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                assert module.running_mean is not None and module.running_var is not None
                module.running_mean.normal_(generator=generator)
                module.running_var.uniform_(0.5, 2.0, generator=generator)


def _check(model: nn.Sequential, shape: tuple[int, ...]) -> None:
    _randomise(model)
    network = lift(model, shape)
    y = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = model(y)
    torch.testing.assert_close(network(y), expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(network.to_sequential()(y), expected, rtol=0, atol=1e-11)
    assert all(bool(torch.isfinite(z).all()) for z in network.states(y).z)
    _check_engines(Objective(network, Bregman(0.7)), Objective(network, Bregman(0.7), engine="general"), y)
    _check_sweep(network, model, y)


def _check_engines(chosen: Objective, general: Objective, y: torch.Tensor) -> None:
    x = torch.zeros(3, *chosen.network.out_shape, dtype=torch.float64)
    z, other = chosen.initialise(y), general.initialise(y)
    activations = chosen.network.operators().activations
    with torch.no_grad():
        for ours, theirs, activation in zip(z, other, activations, strict=True):
            ours.copy_(activation(ours + 0.1))
            theirs.copy_(ours)
    one, two = chosen.gradients(y, x, z), general.gradients(y, x, other)
    for a, b in zip(one.z, two.z, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    for name, grad in two.parameters.items():
        torch.testing.assert_close(one.parameters.get(name, torch.zeros_like(grad)), grad, rtol=0, atol=1e-11)


def _check_sweep(network: nn.Module, model: nn.Module, y: torch.Tensor) -> None:
    """A sweep runs on every chain, its loss is that of the forward pass, and it is the sweep of the modules."""
    signals = []
    for each in (network, model):
        inputs = y.clone().requires_grad_()
        with sweeping():
            output = each(inputs)
            loss = SquaredError().mean(output, torch.zeros_like(output))
            loss.backward()
        torch.testing.assert_close(loss.detach(), 0.5 * network(y).detach().square().sum() / len(y))
        assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in each.parameters())
        signals.append(inputs.grad)
    torch.testing.assert_close(signals[0], signals[1], rtol=1e-9, atol=1e-9)


@settings(max_examples=60)
@given(model=dense_chains())
def test_dense_chains(model: nn.Sequential) -> None:
    first = model[0]
    assert isinstance(first, nn.Linear)
    _check(model, (first.in_features,))


@settings(max_examples=40)
@given(drawn=convolutional_chains())
def test_convolutional_chains(drawn: tuple[nn.Sequential, tuple[int, int, int]]) -> None:
    _check(*drawn)
