"""Rules that choose the weight, on problems where the right one is known or can be found by trying."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.core.errors import TorchliftError
from torchlift.functions.priors import Tikhonov
from torchlift.inversion import RULES, Discrepancy, LCurve, Sure, WeightRule
from torchlift.inversion.weights import _curvature, _vertex

NOISE = 0.3


def problem(count: int = 40) -> tuple[tl.networks.Network, Tensor, Tensor]:
    """A blurring affine network, inputs of known size, and noisy outputs: ridge regression, best weight NOISE²/1."""
    torch.manual_seed(1)
    net = tl.lift(nn.Sequential(nn.Linear(12, 20)).double())
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 12, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        net.get_parameter("output.0.linear.weight").mul_(torch.logspace(0.5, -1.0, 12))
        y = net(x)
    return net, x, y + NOISE * torch.randn(y.shape, dtype=torch.float64, generator=generator)


def output_error(net: tl.networks.Network, x: Tensor, y: Tensor, weight: float) -> float:
    with torch.no_grad():
        found = tl.invert(net, y, Tikhonov(), weight, max_steps=300, tolerance=1e-7).x
        return float((net(found) - net(x)).square().sum(1).mean())


def test_sure_finds_the_weight_of_least_error() -> None:
    """Its estimate of the error in the output is right, and so is its choice, up to the noise of the estimate."""
    net, x, y = problem()
    inv = tl.invert(net, y, Tikhonov(), "sure", noise_level=NOISE)
    trace = inv.weight_trace
    assert trace is not None and trace.rule == "sure" and 3 <= len(trace.rows()) <= 10
    for row in trace.rows():
        if not 0.003 < row["weight"] < 0.11:
            continue
        assert row["SURE"] == pytest.approx(output_error(net, x, y, row["weight"]), rel=0.35)
    best = min(output_error(net, x, y, weight) for weight in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0))
    assert output_error(net, x, y, float(inv.weight[0])) < 1.1 * best
    assert bool((inv.weight == inv.weight[0]).all())


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_sure_follows_the_scale_of_the_data(scale: float) -> None:
    """Outputs and noise in other units need the squared factor as weight; nothing has to be told for it."""
    net, _, y = problem(12)
    plain = tl.invert(net, y, Tikhonov(), noise_level=NOISE, max_steps=60)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(scale)
    scaled = tl.invert(net, scale * y, Tikhonov(), noise_level=scale * NOISE, max_steps=60)
    assert float(scaled.weight[0]) == pytest.approx(scale**2 * float(plain.weight[0]), rel=0.2)


@pytest.mark.parametrize("per_image", [False, True])
def test_discrepancy_explains_the_noise(per_image: bool) -> None:
    net, _, y = problem(6)
    rule = Discrepancy(per_image=per_image, low=1e-4, high=1e3, count=16, steps=200)
    inv = tl.invert(net, y, Tikhonov(), rule, noise_level=NOISE, tolerance=1e-7)
    target = NOISE * math.sqrt(20)
    if per_image:
        torch.testing.assert_close(inv.residual, torch.full_like(inv.residual, target), rtol=0.02, atol=0)
        assert len(set(inv.weight.tolist())) == 6
    else:
        assert float(inv.residual.square().mean().sqrt()) == pytest.approx(target, rel=0.02)
    trace = inv.weight_trace
    assert trace is not None and not trace.note
    assert trace.weights.shape == trace.values.shape == (16, 6 if per_image else 1)


def test_an_unreachable_discrepancy_is_said() -> None:
    net, _, y = problem(3)
    inv = tl.invert(net, y, Tikhonov(), Discrepancy(high=1e-3, count=4), noise_level=100.0)
    assert "The discrepancy of 3 of them was out of reach" in inv.message
    assert float(inv.weight.max()) <= 1e-3


def test_lcurve_needs_no_noise_level_and_is_reasonable() -> None:
    net, x, y = problem()
    inv = tl.invert(net, y, Tikhonov(), LCurve(low=1e-3, high=1e2))
    chosen = output_error(net, x, y, float(inv.weight[0]))
    assert chosen < 0.5 * max(output_error(net, x, y, 1e-6), output_error(net, x, y, 1e2))
    each = tl.invert(net, y[:3], Tikhonov(), LCurve(per_image=True))
    assert each.weight_trace is not None and each.weight_trace.values.shape == (13, 3)


def test_a_rule_gives_what_its_weight_gives() -> None:
    net, _, y = problem(4)
    ruled = tl.invert(net, y, Tikhonov(), "lcurve", max_steps=50)
    torch.testing.assert_close(ruled.x, tl.invert(net, y, Tikhonov(), ruled.weight, max_steps=50).x)
    split = tl.invert(net, y, Tikhonov(), "lcurve", max_steps=50, batch_limit=3)
    torch.testing.assert_close(split.weight, ruled.weight)


def test_sure_probes_stay_in_the_range_of_the_last_activation() -> None:
    torch.manual_seed(0)
    net = tl.lift(nn.Sequential(nn.Linear(4, 6), nn.ReLU()).double())
    y = torch.rand(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y[:, 0] = 0
    inv = tl.invert(net, y, Tikhonov(), Sure(per_image=True, steps=20), noise_level=0.1)
    assert bool(inv.objective.isfinite().all()) and inv.weight.shape == (3,)


def decoder_of(net: tl.networks.Network, damping: float) -> Callable[[Tensor], Tensor]:
    """The ridge estimate with some weight, as a decoder."""
    (layer,) = net.to_sequential()
    W, b = layer.weight.detach(), layer.bias.detach()
    inverse = torch.linalg.solve(W.T @ W + damping * torch.eye(12, dtype=torch.float64), W.T)
    return lambda y: (y - b) @ inverse.T


def test_weight_and_anchor_together() -> None:
    """With a good decoder SURE holds on to it; with a noisy one it does not. Never worse than the decoder."""
    net, x, y = problem(40)

    def error(found: Tensor) -> float:
        with torch.no_grad():
            return float((net(found) - net(x)).square().sum(1).mean())

    anchors = []
    for damping in (NOISE**2, 1e-9):
        decoder = decoder_of(net, damping)
        inv = tl.invert(net, y, Tikhonov(), noise_level=NOISE, start=decoder)
        assert inv.problem is not None and inv.weight_trace is not None and "SURE" in inv.message
        anchors.append(inv.problem.anchor)
        assert error(inv.x) <= 1.02 * error(decoder(y))
    assert anchors[1] < anchors[0]
    best = min(error(tl.invert(net, y, Tikhonov(), weight).x) for weight in (0.01, 0.03, 0.09, 0.3, 1.0))
    assert error(inv.x) < 1.2 * best


def test_without_a_prior_the_anchor_is_chosen() -> None:
    """A decoder and a noise level are enough: fitting the noise would be far worse than the decoder."""
    net, x, y = problem(40)
    decoder = decoder_of(net, NOISE**2)
    inv = tl.invert(net, y, noise_level=NOISE, start=decoder)
    assert inv.problem is not None and inv.problem.anchor > 0 and "SURE" in inv.message
    fitted = tl.invert(net, y, start=decoder)
    errors = [float((net(each) - net(x)).square().sum().detach()) for each in (inv.x, decoder(y), fitted.x)]
    assert errors[0] <= 1.02 * errors[1] and errors[0] < errors[2]


def test_a_noise_level_alone_chooses_the_weight() -> None:
    net, _, y = problem(6)
    inv = tl.invert(net, y, Tikhonov(), noise_level=NOISE)
    assert inv.weight_trace is not None and inv.weight_trace.rule == "sure"
    assert tl.invert(net, y, Tikhonov()).weight.tolist() == pytest.approx([0.02] * 6)


def test_vertex_and_curvature() -> None:
    at = torch.linspace(-2, 2, 9, dtype=torch.float64)
    values = torch.stack([(at - 0.3).square(), at, -at], 1)
    uneven = torch.tensor([[-2.0], [0.2], [0.9], [4.0]], dtype=torch.float64)
    torch.testing.assert_close(_vertex(uneven, (uneven - 0.3).square()), torch.tensor([0.3], dtype=torch.float64))
    torch.testing.assert_close(
        _vertex(at[:, None].expand_as(values), values), torch.tensor([0.3, -2.0, 2.0], dtype=torch.float64)
    )
    angle = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    bend = _curvature(2 * angle.cos(), 2 * angle.sin())[1:-1]
    torch.testing.assert_close(bend, torch.full_like(bend, 0.5), rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", RULES)
def test_settings_are_checked(name: str) -> None:
    rule: type[WeightRule] = RULES[name]
    with pytest.raises(TorchliftError, match=r"expected 0 < low < high, got low=1.0, high=0.5"):
        rule(low=1.0, high=0.5)
    with pytest.raises(TorchliftError, match=r"steps: expected a whole number >= 1"):
        rule(steps=0)
    with pytest.raises(TorchliftError, match=r"count: expected a whole number >= "):
        rule(count=0)
