"""One layer: the exact solution with its certificate, and the source's error estimate."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.core.errors import TorchliftError
from torchlift.functions.priors import L1, Box, Prior, Tikhonov, TotalVariation
from torchlift.inversion import Exact, error_bound
from torchlift.inversion.exact import LayerDistance
from torchlift.liftings import Bregman
from torchlift.operators import Dense
from torchlift.prox import ProximalActivation

ACTIVATIONS = {"relu": tl.ReLU(), "soft-threshold": tl.SoftThreshold(0.2), "tanh": tl.Tanh()}
every = pytest.mark.parametrize("name", ACTIVATIONS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def perceptron(name: str, inputs: int = 8, outputs: int = 14) -> tl.networks.Network:
    generator = torch.Generator().manual_seed(0)
    return tl.networks.Perceptron(inputs, outputs, ACTIVATIONS[name], generator=generator, dtype=torch.float64)


def noisy_outputs(net: tl.networks.Network, activation: ProximalActivation, count: int = 4) -> Tensor:
    with torch.no_grad():
        (v,) = net.states(normal(count, 8, seed=3)).v
        return activation(v + 0.1 * normal(*v.shape, seed=4))  # noise before σ stays in its range


PRIORS: dict[str, Prior] = {
    "l1": L1(),
    "tikhonov": Tikhonov(),
    "smooth": Tikhonov(Dense(torch.eye(8, dtype=torch.float64).diff(dim=0))),
    "l1 in a box": L1() + Box(-0.4, 0.4),
}


@every
@pytest.mark.parametrize("prior", PRIORS)
def test_sweeps_find_the_certified_solution(name: str, prior: str) -> None:
    net = perceptron(name)
    y = noisy_outputs(net, ACTIVATIONS[name])
    exact = tl.invert(net, y, PRIORS[prior], 0.05, algorithm="exact", tolerance=1e-8)
    assert exact.converged and exact.duality_gap is not None
    assert bool((exact.duality_gap <= 1e-8).all()) and bool((exact.duality_gap >= -1e-12).all())
    swept = tl.invert(net, y, PRIORS[prior], 0.05, algorithm="sweep", tolerance=1e-9, max_steps=3000)
    torch.testing.assert_close(swept.objective, exact.objective, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(swept.x, exact.x, rtol=0, atol=2e-3)
    torch.testing.assert_close(exact.objective, exact.gaps[:, 0] + 0.05 * PRIORS[prior].value(exact.x))


def test_exact_with_total_variation_anchor_and_weights() -> None:
    torch.manual_seed(0)
    net = tl.lift(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Softshrink(0.1)).double(), (1, 6, 6))
    x = normal(2, 1, 6, 6)
    with torch.no_grad():
        y = net(x)
    weights = torch.tensor([0.01, 0.1], dtype=torch.float64)
    options = {"start": 0.5 * x, "anchor": 0.2, "max_steps": 30_000}
    exact = tl.invert(net, y, TotalVariation(), weights, algorithm="exact", **options)
    swept = tl.invert(net, y, TotalVariation(), weights, algorithm="sweep", tolerance=1e-9, **options)
    torch.testing.assert_close(swept.objective, exact.objective, rtol=1e-5, atol=1e-7)


@every
def test_layer_distance(name: str) -> None:
    """Its prox minimises, and Fenchel–Young holds with equality at its own gradient."""
    activation = ACTIVATIONS[name]
    y, bias, mu = activation(normal(3, 5)), normal(5, seed=1), 1.7
    distance = LayerDistance(activation, y, bias, mu)
    w = normal(3, 5, seed=2)
    p = distance.prox(w, 0.6)
    torch.testing.assert_close(p + 0.6 * mu * (activation(p + bias) - y), w)
    slope = mu * (activation(w + bias) - y)
    torch.testing.assert_close(distance.value(w) + distance.conjugate(slope), (w * slope).sum(1))


def test_small_weights_keep_their_certificate() -> None:
    """Duals of size 1e-4 next to products of size 1: rounding must not make the dual objective infinite."""
    net = perceptron("soft-threshold")
    y = noisy_outputs(net, ACTIVATIONS["soft-threshold"])
    inv = tl.invert(net, y, L1(), 1e-4, algorithm="exact", max_steps=200)
    assert inv.duality_gap is not None and bool(inv.duality_gap.isfinite().all())
    assert bool((inv.duality_gap >= -1e-12).all())


def test_exact_refuses_what_is_not_convex() -> None:
    deep = tl.lift(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)).double())
    with pytest.raises(TorchliftError, match=r"Exact: expected a network of one layer, got 2 layers.*'sweep'"):
        tl.invert(deep, normal(1, 2), algorithm="exact")
    plugged = tl.priors.PlugAndPlay(lambda x, _: x)
    with pytest.raises(TorchliftError, match=r"Exact: expected priors that are written as functions"):
        tl.invert(perceptron("tanh"), torch.zeros(1, 14, dtype=torch.float64), plugged, algorithm=Exact())
    for field in ("tolerance", "bound"):
        with pytest.raises(TorchliftError, match=rf"Exact {field}: expected a number > 0"):
            Exact(**{field: 0.0})


def minimiser(activation: ProximalActivation, W: Tensor, b: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """argmin B(y, Wx + b) + ρ/2 ‖x‖² of many cases, by accelerated gradients of a strongly convex function."""
    square = float(torch.linalg.matrix_norm(W, 2)) ** 2
    L, m = square + weight, weight
    beta = ((L.sqrt() - m.sqrt()) / (L.sqrt() + m.sqrt()))[:, None]
    x = extra = torch.zeros(len(y), W.shape[1], dtype=torch.float64)
    for _ in range(600):
        gradient = (activation(extra @ W.T + b) - y) @ W + weight[:, None] * extra
        new = extra - gradient / L[:, None]
        extra, x = new + beta * (new - x), new
    return x


@every
@pytest.mark.parametrize("seed", range(2))
def test_no_random_case_violates_the_error_bound(name: str, seed: int) -> None:
    """R = ½‖x‖², whose source condition is x† = Wᵀv†, so that ρ·D^symm = ρ‖x_ρ − x†‖²: 2 × 5000 cases each."""
    activation, cases = ACTIVATIONS[name], 1000
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    W, b, source = draw(6, 4), 0.3 * draw(6), 0.3 * draw(cases, 6)
    if name == "relu":  # half of the sources vanish where a neuron is off, as the bound demands
        pre = (source @ W) @ W.T + b
        source[::2] = torch.where(pre[::2] > 0, source[::2], 0.0)
    truth = source @ W
    v = truth @ W.T + b
    noise = torch.logspace(-4, 0, cases, dtype=torch.float64)[:, None] * draw(cases, 6)
    y = activation(v + noise)
    delta = Bregman().value(activation, y, v, 1.0).sum(1)
    finite = 0
    for weight in (0.01, 0.03, 0.1, 0.3, 1.0):
        x = minimiser(activation, W, b, y, torch.full((cases,), weight, dtype=torch.float64))
        distance = (x - truth).square().sum(1)
        for c in (None, 1.0, 0.25):
            bound = error_bound(activation, y, source, weight, delta, c)
            assert bool((weight * distance <= bound.value * (1 + 1e-9) + 1e-10).all())
            finite += int((~bound.vacuous).sum())
    assert finite > 1000


def test_the_bound_for_relu_is_vacuous_unless_sources_vanish_on_inactive_neurons() -> None:
    y = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    source = torch.tensor([[0.5, 0.1], [0.5, 0.0]], dtype=torch.float64)
    bound = error_bound(tl.ReLU(), y, source, 0.1, 0.01)
    assert bound.vacuous.tolist() == [True, False]
    assert "at most" in bound.sentence and "vacuous for 1 of 2" in bound.sentence
    assert float(bound.burbea_rao[1]) == 0
    alone = error_bound(tl.ReLU(), y[:1], source[:1], 0.1, 0.01)
    assert "vacuous: its Burbea-Rao term is infinite" in repr(alone)


def test_the_terms_of_the_bound() -> None:
    """By hand, for soft-thresholding at λ: J is λ(½|y + s| + ½|y − s| − |y|) with s = ρv/c."""
    y, v, weight, c, threshold = 0.3, 2.0, 0.5, 0.5, 0.2
    s = weight * v / c
    spread = 2 * c * threshold * (0.5 * abs(y + s) + 0.5 * abs(y - s) - abs(y))
    arguments = (torch.tensor([[y]], dtype=torch.float64), torch.tensor([[v]], dtype=torch.float64))
    bound = error_bound(tl.SoftThreshold(threshold), *arguments, weight, 0.04, c)
    expected = [(1 + c) * 0.04, weight**2 / c * v**2, spread]
    assert [float(t) for t in (bound.noise, bound.source, bound.burbea_rao)] == pytest.approx(expected)
    assert float(bound.value) == pytest.approx(sum(expected))
    assert float(bound.distance) == pytest.approx(sum(expected) / weight)
    best = error_bound(tl.SoftThreshold(threshold), *arguments, weight, 0.04)
    assert float(best.value) <= float(bound.value) and 0 < float(best.c) <= 1
    affine = error_bound(tl.Identity(), *arguments, weight, 0.04, 1.0)
    assert float(affine.value) == pytest.approx(2 * 0.04 + weight**2 * v**2)


def test_the_bound_shrinks_with_the_noise() -> None:
    """ρ ~ δ makes the distance O(δ) where the Burbea–Rao term vanishes."""
    y, source = torch.full((1, 3), 2.0, dtype=torch.float64), normal(1, 3)
    distances = [float(error_bound(tl.ReLU(), y, source, d, d**2).distance) for d in (1e-1, 1e-2, 1e-3)]
    assert distances[0] / distances[1] == pytest.approx(10, rel=1e-6)
    assert math.isclose(distances[1] / distances[2], 10, rel_tol=1e-6)


ONES = torch.ones(2, 3)
BAD = {
    "activation": ((torch.relu, ONES, ONES, 1.0, 0.0), r"error_bound activation: expected a proximal activation"),
    "shapes": ((tl.ReLU(), ONES, torch.ones(2, 2), 1.0, 0.0), r"the shape \(2, 3\) of y"),
    "weight": ((tl.ReLU(), ONES, ONES, 0.0, 0.0), r"error_bound weight: expected a number > 0"),
    "discrepancy": ((tl.ReLU(), ONES, ONES, 1.0, -1.0), r"error_bound discrepancy: expected numbers >= 0"),
    "c": ((tl.ReLU(), ONES, ONES, 1.0, 0.0, 2.0), r"error_bound c: expected a number in \(0, 1\], got 2.0"),
    "range": ((tl.ReLU(), -ONES, ONES, 1.0, 0.0), r"error_bound y: expected values in the range of ReLU"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str) -> None:
    arguments, text = BAD[case]
    with pytest.raises(TorchliftError, match=text):
        error_bound(*arguments)
