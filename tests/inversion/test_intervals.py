"""Error bars: exact where posteriors are Gaussian, and calibrated where they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.core.errors import TorchliftError
from torchlift.functions.priors import Box, Tikhonov, TotalVariation
from torchlift.inversion import Calibration, calibrate

NOISE = 0.2


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def affine(inputs: int = 6) -> tuple[tl.networks.Network, Tensor]:
    torch.manual_seed(0)
    layer = nn.Linear(inputs, 10).double()
    return tl.lift(nn.Sequential(layer)), layer.weight.detach()


def test_gaussian_posteriors_are_exact() -> None:
    """x ~ N(0, 1), weight ς²: the posterior covariance is ς²(WᵀW + ς²)⁻¹, and intervals hold their level."""
    net, W = affine()
    x = normal(400, 6)
    with torch.no_grad():
        y = net(x) + NOISE * normal(400, 10, seed=1)
    inv = tl.invert(net, y, Tikhonov(), NOISE**2, noise_level=NOISE, tolerance=1e-8)
    interval = inv.interval(0.9)
    covariance = NOISE**2 * torch.linalg.inv(W.T @ W + NOISE**2 * torch.eye(6))
    expected = covariance.diagonal().sqrt()
    torch.testing.assert_close(interval.deviation[0], expected, rtol=1e-4, atol=0)
    assert 0.88 < float(interval.coverage(x).mean()) < 0.92
    assert interval.factor == pytest.approx(1.6449, abs=1e-4)
    torch.testing.assert_close(interval.width, 2 * interval.factor * interval.deviation)


@pytest.mark.parametrize("activation", [nn.Identity(), nn.LeakyReLU(0.2), nn.Tanh()])
def test_one_lifted_layer_against_monte_carlo(activation: nn.Module) -> None:
    """Errors over draws of x and of the noise have the deviations that the error equation gives them.

    Laplace's approximation of the network's own objective has other ones: it does not know the noise of flat units.
    """
    torch.manual_seed(0)
    layer, noise = nn.Linear(5, 14).double(), 0.05
    nn.init.normal_(layer.weight, std=0.7)
    net = tl.lift(nn.Sequential(layer, activation))
    x = normal(1000, 5)
    with torch.no_grad():
        y = net(x) + noise * normal(1000, 14, seed=1)
    settings = {"algorithm": "sweep", "tolerance": 1e-7, "max_steps": 2000, "on_infeasible": "project"}
    inv = tl.invert(net, y, Tikhonov(), noise**2, noise_level=noise, **settings)
    bars = inv.interval(0.9)
    scores = (inv.x - x) / bars.deviation
    assert float(scores.square().mean().sqrt()) == pytest.approx(1, abs=0.05)
    assert 0.88 < float(bars.coverage(x).mean()) < 0.92
    assert inv.problem is not None and inv.problem.lifted
    network = replace(inv, problem=replace(inv.problem, lifted=False)).interval(0.9)
    if isinstance(activation, nn.Identity):
        torch.testing.assert_close(network.deviation, bars.deviation)
    else:
        assert float(network.coverage(x).mean()) < 0.85


def test_one_lifted_layer_by_probes_and_by_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = tl.lift(nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.LeakyReLU(0.3)).double(), (1, 8, 8))
    x = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    with torch.no_grad():
        y = net(x)
    inv = tl.invert(net, y, Tikhonov(), 0.2, algorithm="sweep", max_steps=100)
    exact = inv.interval(0.5, noise_level=0.1)
    monkeypatch.setattr("torchlift.inversion.intervals.EXACT_LAYER", 1)
    ratio = inv.interval(0.5, noise_level=0.1).deviation / exact.deviation
    assert float(ratio.min()) > 0.9 and float(ratio.max()) < 1.1


def test_lattices_of_probes_agree_with_one_probe_per_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = tl.lift(nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3)).double(), (1, 10, 10))
    x = torch.rand(2, 1, 10, 10, dtype=torch.float64)
    with torch.no_grad():
        y = net(x)
    inv = tl.invert(net, y, TotalVariation() + Box(0, 1), 1e-2, max_steps=40)
    exact = inv.interval(0.5, noise_level=0.1)
    monkeypatch.setattr("torchlift.inversion.intervals.EXACT", 1)
    probed = inv.interval(0.5, noise_level=0.1)
    ratio = probed.deviation / exact.deviation
    assert 0.8 < float(ratio.mean()) < 1.2 and float(ratio.std()) < 0.25
    assert float(exact.lower.min()) >= 0 and float(exact.upper.max()) <= 1
    flat = tl.invert(net, net(torch.zeros_like(x)).detach(), TotalVariation(), 1e-2, start=torch.zeros_like(x))
    assert bool(flat.interval(0.9, noise_level=0.1).deviation.isfinite().all())


def test_calibration_holds_on_unseen_images() -> None:
    """Deviations that are wrong by a factor are put right."""
    x = normal(1000, 20)
    errors, deviation = 0.3 * normal(1000, 20, seed=1), torch.full_like(x, 2.0)
    calibration = calibrate(deviation[:500], x[:500], (x + errors)[:500])
    for level in (0.5, 0.9):
        inside = errors[500:].abs() <= calibration.factor(level) * deviation[500:]
        assert float(inside.double().mean()) == pytest.approx(level, abs=0.03)
    assert Calibration(torch.tensor([1.0, 2.0, 3.0])).factor(0.5) == 2.0
    assert Calibration(torch.tensor([1.0, 2.0, 3.0])).factor(0.99) == 3.0


def test_bad_input() -> None:
    net, _ = affine()
    inv = tl.invert(net, normal(2, 10), Tikhonov(), 0.1, max_steps=3)
    with pytest.raises(TorchliftError, match=r"interval level: expected a number in \(0, 1\), got 1.5"):
        inv.interval(1.5)
    with pytest.raises(TorchliftError, match=r"interval noise_level: expected a number > 0"):
        inv.interval(0.9, noise_level=-1.0)
    with pytest.raises(TorchliftError, match=r"calibrate truth: expected 2 inputs"):
        calibrate(inv.x, inv.x, normal(3, 6))
