"""The default algorithm: never worse than its start, out of flat places, for any network and loss."""

from __future__ import annotations

import signal
import threading

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.core.errors import TorchliftError
from torchlift.functions.priors import L1, Box, Tikhonov, TotalVariation
from torchlift.inversion import Automatic
from torchlift.inversion.automatic import GREY_NOISE, several_starts
from torchlift.networks import Network


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def network(*parts: nn.Module, shape: tuple[int, ...]) -> Network:
    return tl.lift(nn.Sequential(*parts).double().eval(), shape)


def pooled() -> Network:
    torch.manual_seed(0)
    return network(
        *(nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.GELU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(384, 96)),
        shape=(1, 8, 8),
    )


def test_the_objective_is_that_of_the_network() -> None:
    net, x = pooled(), torch.rand(3, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        y = net(x)
    guess = x + 0.1 * normal(3, 1, 8, 8)
    prior = TotalVariation() + Box(0, 1)
    inv = tl.invert(net, y, prior, 1e-3, start=guess, anchor=0.1)
    with torch.no_grad():
        fit = 0.5 * (net(inv.x) - y).square().sum(1)
    anchored = 0.05 * (inv.x - guess).square().flatten(1).sum(1)
    torch.testing.assert_close(inv.objective, fit + 1e-3 * TotalVariation().value(inv.x) + anchored)
    assert bool((inv.objective < inv.start_objective).all())
    assert float(inv.x.min()) >= 0 and float(inv.x.max()) <= 1


@pytest.mark.parametrize("seed", [0, 3, 5])
def test_zero_is_not_the_only_start_of_a_normalised_network(seed: int) -> None:
    """Where tokens are normalised first, gradients at zero point nowhere: half of such networks stayed there."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True, norm_first=True).eval()
    x = torch.rand(4, 6, 16)
    with torch.no_grad():
        y = layer(x)
        inv = tl.invert(layer, y)
        missed = (layer(inv.x) - y).flatten(1).norm(dim=1) / y.flatten(1).norm(dim=1)
    assert float(missed.max()) < 0.1


def test_constant_images_are_no_starts_but_black() -> None:
    """In a constant image all entries of a pooling window tie, and one of them gets the whole gradient."""
    net = network(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), shape=(1, 16, 16))
    problem = tl.invert(net, normal(3, 2, 7, 7), max_steps=1, progress=False).problem
    assert problem is not None
    black, *grey = several_starts(problem, 100, 0)
    assert float(black.abs().max()) == 0 and len(grey) == 2
    for start, size in zip(grey, GREY_NOISE, strict=True):
        assert float(start.mean()) == pytest.approx(0.5, abs=0.05)
        assert float(start[0].std()) == pytest.approx(size, rel=0.2)
    assert len(several_starts(problem, problem.batch, 0)) == 1


@pytest.mark.parametrize("start", ["truth", "noise", "far"])
def test_never_worse_than_the_start(start: str) -> None:
    net, x = pooled(), torch.rand(4, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        y = net(x)
    guess = {"truth": x, "noise": normal(4, 1, 8, 8), "far": 100 * normal(4, 1, 8, 8)}[start]
    for steps in (1, 7, None):
        inv = tl.invert(net, y, L1(), 1e-3, start=guess, max_steps=steps)
        assert bool((inv.objective <= inv.start_objective * (1 + 1e-12)).all())


def test_sweeps_leave_places_where_gradients_vanish() -> None:
    """Soft-thresholding is flat at 0: back-propagation from there finds nothing, sweeps do."""
    torch.manual_seed(0)
    net = network(nn.Linear(20, 40), nn.Softshrink(0.3), shape=(20,))
    x = normal(3, 20)
    with torch.no_grad():
        y = net(x)
    zero = torch.zeros_like(x)
    stuck = tl.invert(net, y, Tikhonov(), 1e-4, algorithm="quasi-newton", start=zero)
    assert stuck.counts == {"stalled": 3}
    inv = tl.invert(net, y, Tikhonov(), 1e-4, start=zero)
    assert bool((inv.residual < 0.1 * stuck.residual).all())
    without = tl.invert(net, y, Tikhonov(), 1e-4, start=zero, algorithm=Automatic(sweeps=0))
    torch.testing.assert_close(without.residual, stuck.residual)


def test_losses() -> None:
    """Huber's loss does not mind outliers."""
    torch.manual_seed(0)
    net = network(nn.Linear(6, 40), nn.LeakyReLU(0.3), nn.Linear(40, 60), shape=(6,))
    x = normal(3, 6)
    with torch.no_grad():
        y = net(x)
    y[:, ::7] += 3
    huber = tl.losses.Huber(0.05)
    robust, squared = (tl.invert(net, y, Tikhonov(), 1e-6, loss=loss).x for loss in (huber, tl.losses.SquaredError()))
    assert float((robust - x).norm(dim=1).max()) < 0.25 * float((squared - x).norm(dim=1).min())
    with pytest.raises(TorchliftError, match=r"invert loss with Sweep: expected the squared error, got Huber"):
        tl.invert(net, y, loss=huber, algorithm="sweep")
    with pytest.raises(TorchliftError, match=r"invert loss: expected a loss"):
        tl.invert(net, y, loss=abs)  # pyright: ignore[reportArgumentType]


def test_weighted_squared_errors() -> None:
    torch.manual_seed(0)
    net = network(nn.Linear(3, 4), shape=(3,))
    y, weights = normal(2, 4), torch.tensor([1.0, 4.0, 0.0, 2.0], dtype=torch.float64)
    loss = tl.losses.WeightedSquaredError(weights)
    inv = tl.invert(net, y, Tikhonov(), 0.1, algorithm="accelerated", loss=loss, tolerance=1e-8)
    (layer,) = net.to_sequential()
    linear, bias, W = layer.weight.detach(), layer.bias.detach(), torch.diag(weights)
    expected = torch.linalg.solve(linear.T @ W @ linear + 0.1 * torch.eye(3), linear.T @ W @ (y - bias).T).T
    torch.testing.assert_close(inv.x, expected, rtol=0, atol=1e-4)


def test_poisson_counts() -> None:
    """The likelihood of counts is finite, and decreases, where the network's outputs are positive."""
    torch.manual_seed(0)
    net = network(nn.Linear(5, 40), nn.Sigmoid(), nn.Linear(40, 30), nn.Softplus(), shape=(5,))
    x = normal(4, 5)
    with torch.no_grad():
        y = torch.poisson(50 * net(x), generator=torch.Generator().manual_seed(0)) / 50
    inv = tl.invert(net, y, Tikhonov(), 1e-4, loss=tl.losses.KullbackLeibler())
    assert bool((inv.objective < inv.start_objective).all()) and bool(inv.objective.isfinite().all())


def test_features_of_two_layers_at_once() -> None:
    """Each alone leaves something open; together they determine the input."""
    torch.manual_seed(0)
    nets = [network(nn.Linear(12, 8), shape=(12,)), network(nn.Linear(12, 9), nn.Tanh(), shape=(12,))]
    x = 0.5 * normal(3, 12)
    with torch.no_grad():
        y = [net(x) for net in nets]
    inv = tl.invert(nets, y, Tikhonov(), 1e-8)
    assert float((inv.x - x).abs().max()) < 1e-2 and inv.gaps.shape == (3, 0)
    alone = tl.invert(nets[0], y[0], Tikhonov(), 1e-8)
    assert float((alone.x - x).abs().max()) > 0.1
    for bad, text in (
        ((nets, y[0]), "2 tensors, one per network"),
        (([], y), "an nn.Module or several, got"),
        (([nets[0], network(nn.Linear(3, 3), shape=(3,))], y), "networks with the same input"),
        ((nets, [y[0], y[1][:2]]), "the same number of images"),
    ):
        with pytest.raises(TorchliftError, match=text):
            tl.invert(*bad)
    with pytest.raises(TorchliftError, match="expected one network, got several"):
        tl.invert(nets, y, algorithm="sweep")


def test_ctrl_c_returns_what_there_is() -> None:
    net, y = pooled(), normal(6, 96)
    timer = threading.Timer(0.5, signal.raise_signal, (signal.SIGINT,))
    timer.start()
    try:
        inv = tl.invert(net, y, TotalVariation(), 1e-4, max_steps=10**6, algorithm="nested-adam", tolerance=0.0)
    finally:
        timer.cancel()
    assert inv.counts == {"stopped": 6} and bool(inv.objective.isfinite().all()) and int(inv.steps.max()) > 0


def test_progress_is_a_switch_or_a_function() -> None:
    net, y = pooled(), normal(1, 96)
    for progress in (True, False):
        assert tl.invert(net, y, progress=progress, max_steps=3).x.shape == (1, 1, 8, 8)
    with pytest.raises(TorchliftError, match="invert progress: expected True, False or a function"):
        tl.invert(net, y, progress=3)  # pyright: ignore[reportArgumentType]
