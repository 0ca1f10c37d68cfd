"""Exponents are found where they are known, and the claims follow the numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchlift.lab.reproduction import Experiment, Work
from torchlift.lab.reproduction.confidence import Interval
from torchlift.lab.reproduction.scaling import (
    FREE,
    METHODS,
    SWEEP,
    TAPE,
    Scaling,
    against_tape,
    cost,
    exponents,
    power,
    powers,
    steps,
)
from torchlift.report.records import Table


def test_a_tiny_run_fills_its_tables(tiny: Callable[[Experiment], Work]) -> None:
    found = Scaling().run(tiny(Scaling()))
    tables = {figure.name: figure for figure in found.figures if isinstance(figure, Table)}
    assert set(tables) == {"exponents", "step-layers", "step-width", "step-samples"}
    assert len(tables["exponents"].rows) == 3 * len(METHODS)
    assert {claim.outcome for claim in found.claims} == {"not decidable"}


def test_every_method_makes_steps() -> None:
    for call in steps(2, 5, 7, seed=0).values():
        call()
        call()


@pytest.mark.parametrize("exponent", [-0.5, 1.0, 2.5])
def test_a_power_without_noise_is_found_exactly(exponent: float) -> None:
    x = [1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0]
    fit = power(x, [3.0 * each**exponent for each in x])
    assert (fit.mean, fit.low, fit.high) == pytest.approx((exponent,) * 3, abs=1e-7)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = torch.Generator().manual_seed(0)
    x = [2.0**k for k in range(4) for _ in range(3)]
    held = 0
    for _ in range(400):
        noise = (0.05 * torch.randn(len(x), generator=generator)).exp().tolist()
        fit = power(x, [each**1.5 * factor for each, factor in zip(x, noise, strict=True)])
        held += fit.low <= 1.5 <= fit.high
    assert 0.92 <= held / 400 <= 0.98


def test_few_points_have_no_interval() -> None:
    assert math.isinf(power([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]).high)


def test_only_the_largest_sizes_are_fitted() -> None:
    """Where starting operations takes all the time, the curve is flat."""
    times = {at: dict.fromkeys(METHODS, [max(1.0, at / 8)] * 3) for at in (1, 2, 4, 8, 16, 32, 64)}
    assert exponents(times)[SWEEP].mean == pytest.approx(1.0)


def _fits(sweep: Interval, tape: Interval) -> Any:
    return {"layers": {TAPE: tape, SWEEP: sweep, FREE: tape}}


ONE = Interval(1.0, 0.95, 1.05)


@pytest.mark.parametrize(
    ("sweep", "outcome"), [(Interval(1.2, 1.05, 1.35), "held"), (Interval(1.2, 1.15, 1.25), "did not hold")]
)
def test_a_significantly_larger_power_does_not_hold(sweep: Interval, outcome: str) -> None:
    assert powers(_fits(sweep, ONE)).outcome == outcome


@pytest.mark.parametrize(
    ("sweep", "outcome"), [(Interval(1.1, 1.04, 1.16), "held"), (Interval(1.1, 1.06, 1.14), "did not hold")]
)
def test_intervals_that_meet_are_no_difference(sweep: Interval, outcome: str) -> None:
    claim = against_tape(_fits(sweep, ONE))
    assert claim.outcome == outcome
    assert ("backward sweep in layers" in claim.measured) == (outcome == "did not hold")


@pytest.mark.parametrize(("sweep", "outcome"), [(1.1, "held"), (1.2, "did not hold")])
def test_the_cost_is_that_of_the_largest_size(sweep: float, outcome: str) -> None:
    small, large = ({TAPE: [1.0] * 3, SWEEP: [value] * 3, FREE: [9.0] * 3} for value in (5.0, sweep))
    assert cost({"width": {1: small, 2: large}}).outcome == outcome
