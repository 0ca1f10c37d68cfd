"""A curve of grey levels that corrects a decoder."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.functions.priors import Box, TotalVariation
from torchlift.inversion.curve import PIECES, Curve, fit_curve
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.sure import Probe

NOISE = 0.01


def problem(
    distort: Curve | None, count: int = 24, seed: int = 0, noise: float = NOISE
) -> tuple[InversionProblem, Probe, Tensor]:
    """64 pixels in [0, 1], 160 linear outputs, and the least-squares decoder, whose grey levels a curve may spoil: the
    pair of y and y + εb, its probe and the true images."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(0)
    linear = nn.Linear(64, 160).double().requires_grad_(False)
    module = nn.Sequential(nn.Flatten(), linear)
    x = torch.rand(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    y = module(x) + noise * torch.randn(count, 160, generator=generator, dtype=torch.float64)
    probe = Probe.of(y, noise, seed=1000 + seed)
    both = torch.cat([y, probe.moved])
    inverse = torch.linalg.pinv(linear.weight)
    guess = ((both - linear.bias) @ inverse.T).view(-1, 1, 8, 8)
    if distort is not None:
        guess = guess + sum(c * hat for c, hat in zip(distort.changes, distort.hats(guess), strict=True))
    inv = tl.invert(module, both, Box(0, 1), 0.0, start=guess, max_steps=1, progress=False)
    assert inv.problem is not None
    return inv.problem, probe, x


def dull(size: float = 0.2) -> Curve:
    """Dark pixels brighter, bright pixels darker: an affine map, which keeps all pixels inside the bounds."""
    return Curve(0.0, 1.0, torch.linspace(size, -size, PIECES + 1, dtype=torch.float64))


def test_a_curve_is_piecewise_linear() -> None:
    curve = Curve(-1.0, 2.0, torch.randn(PIECES + 1, dtype=torch.float64))
    knots = torch.linspace(-1, 2, PIECES + 1, dtype=torch.float64)
    torch.testing.assert_close(torch.stack(curve.hats(knots)), torch.eye(PIECES + 1, dtype=torch.float64))
    x = torch.linspace(-2, 3, 101, dtype=torch.float64)
    hats = torch.stack(curve.hats(x))
    torch.testing.assert_close(hats.sum(0), torch.ones_like(x))
    torch.testing.assert_close(knots @ hats, x.clamp(-1, 2))  # straight lines are among them, constant beyond the ends


def test_sure_undoes_what_spoils_the_grey_levels() -> None:
    pair, probe, x = problem(dull())
    curve = fit_curve(pair, probe)
    assert curve is not None
    before, after = pair.guess[: len(x)], curve(pair)[: len(x)]
    ideal, _, _ = problem(None)
    best = (ideal.guess[: len(x)].clamp(0, 1) - x).square().mean()
    assert (before - x).square().mean() > 3 * best
    assert (after - x).square().mean() < 1.1 * best


def test_right_grey_levels_are_left_alone() -> None:
    pair, probe, _ = problem(None)
    assert fit_curve(pair, probe) is None


def test_one_image_does_not_pay_for_a_curve() -> None:
    """Six numbers fitted to 160 outputs take noise along; what that takes off the estimate is charged."""
    assert all(fit_curve(*problem(None, count=1, seed=seed)[:2]) is None for seed in range(20))


@pytest.mark.parametrize(("count", "noise"), [(1, 0.01), (1, 0.1), (1, 0.3), (4, 0.1), (4, 0.3)])
def test_few_images_do_not_lose_by_a_curve(count: int, noise: float) -> None:
    before, after = [], []
    for seed in range(30):
        pair, probe, x = problem(dull(0.05), count, seed, noise)
        curve = fit_curve(pair, probe)
        start = pair.guess.clamp(0, 1)
        before.append((start[:count] - x).square().mean())
        after.append(((start if curve is None else curve(pair))[:count] - x).square().mean())
    assert torch.stack(after).mean() < 1.05 * torch.stack(before).mean()


def test_pixels_at_a_bound_stay_there() -> None:
    pair, probe, _ = problem(dull())
    guess = pair.guess.clone()
    guess[:, :, :2], guess[:, :, 2:4] = -0.1, 1.0
    spoilt = replace(pair, guess=guess)
    curve = fit_curve(spoilt, probe)
    assert curve is not None
    moved = curve(spoilt)
    assert bool((moved[:, :, :2] == 0).all()) and bool((moved[:, :, 2:4] == 1).all())
    assert bool((moved[:, :, 4:] != guess[:, :, 4:]).any()) and 0 <= float(moved.min()) <= float(moved.max()) <= 1


@pytest.mark.parametrize("fitted", [False, True])
def test_the_estimate_is_unbiased(fitted: bool) -> None:
    """The mean over draws of the estimate is that of the error, for a linear estimator and after a curve."""
    estimates, errors = [], []
    for seed in range(40):
        pair, probe, x = problem(dull() if fitted else None, seed=seed)
        curve = fit_curve(pair, probe) if fitted else None
        assert (curve is not None) == fitted
        output = pair.forward(pair.guess if curve is None else curve(pair))
        estimates.append(probe.risk(*output.chunk(2)).mean())
        errors.append((output[: len(x)] - pair.forward(x)).square().sum(1).mean())
    gap = torch.stack(estimates) - torch.stack(errors)
    assert abs(float(gap.mean())) < 3 * float(gap.std()) / len(gap) ** 0.5
    assert float(gap.std()) < 0.2 * float(torch.stack(errors).mean())  # so that the bound says something


def test_every_parameter_of_the_curve_costs_twice_the_variance() -> None:
    """For a guess that does not depend on the data the curve is a linear regression: the estimate after the fit is
    too small by 2ς² for each of its parameters, which is what `fit_curve` adds before it compares."""
    gaps = []
    for seed in range(200):
        pair, probe, x = problem(None, count=1, seed=seed)
        pair = replace(pair, guess=(0.2 + 0.6 * x).repeat(2, 1, 1, 1))
        curve = fit_curve(pair, probe)
        assert curve is not None
        output = pair.forward(curve(pair))
        gaps.append(probe.risk(*output.chunk(2))[0] - (output[:1] - pair.forward(x)).square().sum())
    gap = torch.stack(gaps) / NOISE**2
    error = float(gap.std()) / len(gap) ** 0.5
    assert abs(float(gap.mean()) + 2 * (PIECES + 1)) < 3 * error
    assert error < 0.2 * 2 * (PIECES + 1)


def test_constant_and_broken_outputs_have_no_curve() -> None:
    pair, probe, _ = problem(None)
    same = replace(pair, guess=torch.full_like(pair.guess, 0.5))
    assert fit_curve(same, probe) is None
    broken = replace(pair, network=lambda x, _: x.flatten(1)[:, :1] * torch.nan + probe.y[:1])
    assert fit_curve(broken, probe) is None


def test_the_inversion_is_anchored_at_the_corrected_output() -> None:
    pair, _, x = problem(None)
    torch.manual_seed(0)
    linear = nn.Linear(64, 160).double().requires_grad_(False)
    module = nn.Sequential(nn.Flatten(), linear)
    y = pair.output[: len(x)]

    def decoder(codes: Tensor) -> Tensor:
        rough = (codes - linear.bias) @ torch.linalg.pinv(linear.weight).T
        return 0.2 + 0.6 * rough.view(-1, 1, 8, 8)

    prior = TotalVariation() + Box(0, 1)
    inv = tl.invert(module, y, prior, noise_level=NOISE, start=decoder, progress=False)
    assert inv.problem is not None and inv.weight_trace is not None
    assert "corrected the decoder's grey levels" in inv.weight_trace.note
    assert (inv.problem.guess - x).square().mean() < 0.05 * (decoder(y) - x).square().mean()
    assert (inv.x - x).square().mean() < 1.05 * (inv.problem.guess - x).square().mean()
