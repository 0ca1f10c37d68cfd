"""Experiment error-estimate: random cases, their minimisers, and its claims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.functions.priors import Tikhonov
from torchlift.lab.reproduction import Experiment, Work
from torchlift.lab.reproduction import error_estimate as module
from torchlift.lab.reproduction.error_estimate import ACTIVATIONS, NOISE, SOURCES, Case, ErrorEstimate, Study
from torchlift.liftings import Bregman
from torchlift.operators import Dense

every = pytest.mark.parametrize("name", ACTIVATIONS)


def case(name: str, active: bool = True, count: int = 3) -> tuple[Case, Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = module.draw(ACTIVATIONS[name], active, count, generator)
    return found, torch.randn(count, module.OUTPUTS, dtype=torch.float64, generator=generator)


@every
@pytest.mark.parametrize("active", [True, False])
def test_cases_are_what_the_estimate_asks_for(name: str, active: bool) -> None:
    found, _ = case(name, active, 20)
    state = found.activation(found.outputs(found.truth))
    on = state != 0
    assert 0.3 < float(on.double().mean()) < 0.7
    assert float(state[on].abs().min()) > 0.2
    assert bool((found.source[~on] == 0).all()) is active
    torch.testing.assert_close(found.truth[0], found.W[0].T @ found.source[0])


@every
@pytest.mark.parametrize("delta", [NOISE[0], NOISE[-1]])
def test_noise_has_its_level_and_stays_in_the_range(name: str, delta: float) -> None:
    found, direction = case(name)
    y = module.noisy(found, delta, direction)
    distance = Bregman().value(found.activation, y, found.outputs(found.truth), 1.0).sum(1)
    torch.testing.assert_close(distance, torch.full_like(distance, delta**2), rtol=1e-4, atol=0)
    assert bool(found.activation.psi(y).isfinite().all())


@every
@pytest.mark.parametrize("weight", [1.0, 1e-3, 1e-6])
def test_the_minimiser_is_stationary(name: str, weight: float) -> None:
    found, direction = case(name)
    y = module.noisy(found, 0.1, direction)
    x = module.minimiser(found, y, torch.full((3,), weight, dtype=torch.float64))
    residual = found.activation(found.outputs(x)) - y
    torch.testing.assert_close(torch.einsum("bmn,bm->bn", found.W, residual), -weight * x, rtol=0, atol=1e-12)


@every
def test_the_minimiser_is_the_librarys_inverse(name: str) -> None:
    found, direction = case(name, count=1)
    y = module.noisy(found, 0.1, direction)
    linear = nn.Linear(module.INPUTS, module.OUTPUTS, dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(found.W[0])
        linear.bias.copy_(found.b[0])
    net = tl.lift(nn.Sequential(linear, found.activation.to_module()))
    prior = Tikhonov(Dense(torch.eye(module.INPUTS, dtype=torch.float64)))
    swept = tl.invert(net, y, prior, 0.1, algorithm="sweep", tolerance=1e-10, max_steps=2000)
    x = module.minimiser(found, y, torch.tensor([0.1], dtype=torch.float64))
    torch.testing.assert_close(swept.x, x, rtol=0, atol=1e-6)


def study(activation: str, source: str, power: float, factor: float = 2.0) -> Study:
    """Ten cases whose distances are δ^power, and bounds that are `factor` times as large."""
    noise = torch.tensor(NOISE, dtype=torch.float64)
    distance = noise**power * torch.linspace(1, 2, 10, dtype=torch.float64)[:, None]
    return Study(activation, source, distance, factor * distance)


def outcomes(studies: list[Study]) -> list[str]:
    return [claim.outcome for claim in module.judge(studies)]


def test_exponents() -> None:
    torch.testing.assert_close(
        module.exponents(study("ReLU", SOURCES[0], 1.3).distance), torch.full((10,), 1.3, dtype=torch.float64)
    )


def test_claims_can_go_either_way() -> None:
    good = [study(name, source, 1.2) for name in ACTIVATIONS for source in SOURCES]
    assert outcomes(good) == ["held"] * 4
    slow = [study(name, source, 0.5) for name in ACTIVATIONS for source in SOURCES]
    assert outcomes(slow) == ["held", "did not hold", "did not hold", "did not hold"]
    broken = [study(name, source, 1.2, factor=0.9) for name in ACTIVATIONS for source in SOURCES]
    assert outcomes(broken)[0] == "did not hold"
    assert "360 violations among 360" in module.judge(broken)[0].measured


def test_infinite_bounds_are_not_counted_as_kept() -> None:
    studies = [study(name, source, 1.2) for name in ACTIVATIONS for source in SOURCES]
    studies[1] = replace(studies[1], bound=torch.full_like(studies[1].bound, torch.inf))
    assert studies[1].violations == 0 and studies[1].vacuous == 90
    assert "among 270 finite bounds" in module.judge(studies)[0].measured


def test_tiny(tiny: Callable[[Experiment], Work]) -> None:
    result = ErrorEstimate().run(tiny(ErrorEstimate()))
    assert result.claims[0].measured.startswith("0 violations among 108 finite bounds")  # ReLU's 36 are infinite
    assert all(claim.outcome == "not decidable" for claim in result.claims)
    rates, table = result.figures
    assert len(rates.series) == 7  # four distances, three bounds
    exponents = [row[6] for row in table.rows]
    assert exponents[0] > 1 > exponents[1] and exponents[2] > 1 > exponents[3]
