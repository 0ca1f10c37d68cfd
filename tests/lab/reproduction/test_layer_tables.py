"""The tables of run times: all ways compute the same, and the claims follow the numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchlift.lab.benchmarks.layers import Evaluations
from torchlift.lab.reproduction import Experiment, Work
from torchlift.lab.reproduction.layer_tables import (
    TableBackward,
    TableForward,
    agreement,
    factor,
    more_than_forward,
    pays,
)
from torchlift.report.records import Curves, Table


def row(layers: int, quick: float, slow: float, difference: float = 0.0, **times: float) -> dict[str, Any]:
    both = {"vectorised": quick, "sequential": slow} | times
    return {"width": 4, "batch": 1, "layers": layers, "difference": difference, "times": both}


@pytest.mark.parametrize("experiment", [TableForward(), TableBackward()], ids=lambda experiment: experiment.name)
def test_a_tiny_run_measures_every_cell(experiment: Any, tiny: Callable[[Experiment], Work]) -> None:
    found = experiment.run(tiny(experiment))
    table, sizes, curves = found.figures
    assert isinstance(table, Table) and isinstance(sizes, Table) and isinstance(curves, Curves)
    assert [line[0] for line in table.rows] == [1, 4]
    assert table.rows[1][-3:-1] == list(experiment.published[4])
    assert all(isinstance(cell, float) and cell > 0 for line in sizes.rows for cell in line[1:])
    assert {series.group for series in curves.series} == {"width 8, batch 1", "width 16, batch 4", "paper"}
    timing = [claim.outcome for claim in found.claims[2:]]
    assert set(timing) == {"not decidable"}
    assert found.claims[1].outcome == "held"


@pytest.mark.parametrize("layers", [1, 3])
def test_all_ways_to_the_gradients_agree(layers: int) -> None:
    both = Evaluations(6, 5, layers, seed=1)
    found = both.objective.gradients(both.y, both.x, both.z)
    states, W, K, b, d = both.autograd()
    looped = both.loop.autograd()
    torch.testing.assert_close(torch.stack(list(found.z)), states)
    torch.testing.assert_close(torch.stack(looped[:layers]), states)
    torch.testing.assert_close(found.parameters["hidden.0.linear.weight"], W)
    torch.testing.assert_close(found.parameters["hidden.0.bias"].reshape(b.shape), b)
    torch.testing.assert_close(found.parameters["output.0.linear.weight"].reshape(K.shape), K)
    torch.testing.assert_close(found.parameters["output.0.bias"].reshape(d.shape), d)
    assert both.forward_difference() < 6
    assert both.backward_difference() < 6


def test_a_wrong_gradient_is_seen() -> None:
    both = Evaluations(6, 5, 3, seed=1)
    both.loop.W[1] = both.loop.W[1] + 1e-3
    assert both.forward_difference() > 100
    assert both.backward_difference() > 100


def test_one_different_bit_is_not_equality() -> None:
    exact, close = agreement([row(1, 1, 1), row(2, 1, 1, difference=0.5)])
    assert (exact.outcome, close.outcome) == ("did not hold", "held")
    assert "equal in 1 of 2 cells; largest difference 0.5 ulp" in exact.measured
    exact, close = agreement([row(1, 1, 1)])
    assert (exact.outcome, close.outcome) == ("held", "held")
    assert agreement([row(1, 1, 1, difference=5.0)])[1].outcome == "did not hold"


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ([row(1, 1, 1), row(128, 1, 3)], "held"),
        ([row(1, 1, 1), row(128, 1, 1.05)], "did not hold"),
        ([row(1, 1, 4), row(128, 1, 3)], "did not hold"),
    ],
)
def test_deep_networks_must_gain_and_gain_more(rows: list[dict[str, Any]], outcome: str) -> None:
    assert pays(rows).outcome == outcome


def test_the_published_factor_is_met_from_half_of_it_on() -> None:
    published = {128: (1.0, 50.0)}
    assert factor([row(128, 1, 25)], published).outcome == "held"
    assert factor([row(128, 1, 24)], published).outcome == "did not hold"
    assert factor([row(64, 1, 60)], published).outcome == "not decidable"
    tape = {"vectorised, autograd": 1.0, "sequential, autograd": 30.0}
    assert factor([row(128, 1, 2, **tape)], published).outcome == "held"


@pytest.mark.parametrize(
    ("closed", "tape", "outcome"), [(3.0, 4.0, "held"), (1.0, 4.0, "did not hold"), (3.0, 1.0, "did not hold")]
)
def test_the_backward_pass_must_gain_more_in_both_ways(closed: float, tape: float, outcome: str) -> None:
    forward = {"forward, vectorised": 1.0, "forward, sequential": 2.0}
    cell = row(8, 1, closed, **forward, **{"vectorised, autograd": 1.0, "sequential, autograd": tape})
    assert more_than_forward(cell).outcome == outcome
