"""Where conventional training fails: claims on made-up numbers, and a tiny sweep."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch

from torchlift.lab.reproduction import Experiment, Work
from torchlift.lab.reproduction.conventional_sweep import RATES, THRESHOLDS, ConventionalSweep, Key, claims
from torchlift.lab.reproduction.restoration import SPLITS, Outcome
from torchlift.lab.trajectory import Trajectory
from torchlift.report.records import Pictures, Table


def outcome(error: float, *, recognised: bool, silent: bool = False, steps: int = 100) -> Outcome:
    rows = [{"step": steps, "processor": 1.0, "training error": error, "training psnr": 20.0, "validation psnr": 19.0}]
    accuracy = dict.fromkeys(SPLITS, 0.9 if recognised else 0.1)
    return Outcome(Trajectory(rows), torch.zeros(1), accuracy, dict.fromkeys(SPLITS, recognised), silent)


def good() -> dict[Key, Outcome]:
    """As in the paper."""
    return {
        (threshold, rate): outcome(0.01 if rate == 5e-4 else 0.02, recognised=True)
        if threshold == 0.02
        else outcome(0.07, recognised=False, silent=True)
        for threshold, rate in product(THRESHOLDS, RATES)
    }


def said(found: dict[Key, Outcome], scale: str, steps: int = 100) -> list[str]:
    """With as many steps in the comparison of learning rates; scale "paper" takes all."""
    steps = 50_000 if scale == "paper" else steps
    ends = {rate: found[0.02, rate].trajectory.last["training error"] for rate in RATES}
    order = {rate: outcome(error, recognised=True, steps=steps) for rate, error in ends.items()}
    return [each.outcome for each in claims(found, order, scale)]


def test_claims_can_hold() -> None:
    assert said(good(), "paper") == ["held"] * 4
    assert said(good(), "small") == ["held", "held", "not decidable", "held"]
    assert said(good(), "small", steps=50_000) == ["held"] * 4


NO, OPEN = "did not hold", "not decidable"


@pytest.mark.parametrize(
    ("key", "changed", "index", "small", "paper"),
    [
        ((0.02, 1e-3), outcome(0.02, recognised=False), 0, OPEN, NO),
        ((0.04, 1e-3), outcome(0.02, recognised=True), 1, NO, NO),
        ((0.04, 1e-3), outcome(0.07, recognised=False), 1, OPEN, "held"),  # alive: more steps might help
        ((0.04, 1e-3), outcome(0.07, recognised=False), 3, NO, NO),
        ((0.02, 4e-4), outcome(0.005, recognised=True), 2, OPEN, NO),
        ((0.02, 4e-4), outcome(0.07, recognised=False, silent=True), 3, NO, NO),
    ],
)
def test_claims_can_fail(key: Key, changed: Outcome, index: int, small: str, paper: str) -> None:
    found = {**good(), key: changed}
    assert said(found, "small")[index] == small
    assert said(found, "paper")[index] == paper


def test_tiny_sweep(tiny: Callable[[Experiment], Work]) -> None:
    found = ConventionalSweep().run(tiny(ConventionalSweep()))
    figures = {figure.name: figure for figure in found.figures}
    table, pictures = figures["results"], figures["validation-images"]
    assert isinstance(table, Table) and isinstance(pictures, Pictures)
    assert [tuple(row[:2]) for row in table.rows] == list(product(THRESHOLDS, RATES))
    remarks = {row[0]: row[-1] for row in table.rows}
    assert remarks[0.02] == "" and remarks[0.04] == "output does not depend on the input"
    assert len(pictures.rows) == 2 + len(THRESHOLDS)
    assert {claim.outcome for claim in found.claims} == {"not decidable"}
