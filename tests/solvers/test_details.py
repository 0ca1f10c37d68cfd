"""Corners of formulas and numbers of states, each written out: what small faults would change unseen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from torchlift.core.problem import CompositeProblem
from torchlift.core.tensors import Point
from torchlift.regularisers import L1
from torchlift.solvers import (
    FISTA,
    Anchored,
    GramStep,
    ImplicitStochasticGradient,
    LinearisedBCD,
    Nesterov,
    ProximalAdam,
    ridge_least_squares,
)
from torchlift.solvers.examples import Regression, lasso, normal
from torchlift.solvers.momentum import MomentumState
from torchlift.solvers.state import state_points, state_to_parts


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# States


@pytest.mark.parametrize("solver", [FISTA(), ProximalAdam(0.1)], ids=["fista", "adam"])
def test_the_points_of_a_state_are_found_by_the_paths_of_their_tensors(solver: FISTA) -> None:
    state = solver.init(lasso(), Point({"x": normal((8,), 0)}))
    state = solver.step(lasso(), state)
    points, tensors = state_points(state), state_to_parts(state)[0]
    assert points["point"] is state.point and points["momentum.previous"] is state.momentum.previous
    assert set(points) == {"point", "momentum.previous", "scaling.first", "scaling.second"}
    found = {f"{path}.{block}.{i}": t for path, p in points.items() for block in p for i, t in enumerate(p[block])}
    assert found.keys() == tensors.keys() and all(found[path] is tensors[path] for path in found)


def test_an_implicit_state_tells_its_tau() -> None:
    solver = ImplicitStochasticGradient(0.25)
    state = solver.init(Regression(), Point({"x": normal((5,), 0)}))
    assert state.step_sizes == {"x": 0.25} and solver.step(Regression(), state).step_sizes == {"x": 0.25}


# Blocks


def test_every_other_block_of_six() -> None:
    names = tuple("abcdef")
    six = CompositeProblem(lambda *x: sum((each**2).sum() for each in x), bound=2.0, blocks=names)  # type: ignore[arg-type]
    assert LinearisedBCD(sweep="odd-even")._groups(six) == [("a",), ("b", "d", "f"), ("c", "e")]
    assert LinearisedBCD(sweep="backward")._groups(six) == [(name,) for name in "afedcb"]


def test_an_anchor_leaves_the_nonsmooth_part_alone() -> None:
    problem, x = lasso(), Point({"x": normal((8,), 1)})
    anchored = Anchored(problem, Point({"x": normal((8,), 2)}), 0.7)
    assert torch.equal(anchored.prox(x, {"x": 0.5})["x"][0], L1(0.3).prox(x["x"][0], 0.5))
    assert anchored.nonsmooth_value(x) == problem.nonsmooth_value(x) > 0
    assert anchored.value(x) == pytest.approx(anchored.smooth_value(x) + problem.nonsmooth_value(x))
    assert not anchored.smooth("x") and anchored.proximable("x") and anchored.elementwise("x")


# Momentum and step sizes


def test_momentum_that_points_nowhere_is_kept() -> None:
    """A restart asks for ⟨y − x⁺, x⁺ − x⟩ > 0; held by a constraint, x⁺ = x gives 0."""
    x, ahead = Point({"x": vector(1.0, 0.0)}), Point({"x": vector(1.0, -1.0)})
    state = Nesterov().update(MomentumState(Point({"x": vector(1.0, 1.0)}), 2.0), x, ahead, x)
    assert state.restarts == 0 and state.t == pytest.approx((1 + 17**0.5) / 2) and state.previous is x


def test_a_batch_of_zeros_does_not_spoil_the_metric_for_the_next() -> None:
    """Its ridge is as good as none, so the next batch is fitted exactly."""
    rule = GramStep(step=1.0, momentum=0.0, limit=None, refresh=10)
    w, x, residual = normal((3, 6), 0), 10 * normal((4, 6), 1), normal((4, 3), 2)
    first = rule.update(rule.init(w), w, None, torch.zeros_like(x), residual)
    assert first.ok and not first.weight.any()
    second = rule.update(first.state, w, None, x, residual)
    assert second.ok and second.raised == 0
    torch.testing.assert_close(x @ second.weight.T, -residual)


# Least squares


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_the_smaller_gram_matrix_is_factorised(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, factorise = [], torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda a: sizes.append(tuple(a.shape)) or factorise(a))
    ridge_least_squares(normal(shape, 0), normal(shape[:1], 1), 0.1)
    assert sizes == [(4, 4)]


@pytest.mark.parametrize("transposed", [False, True])
def test_a_ridge_as_small_as_the_square_of_a_singular_value(transposed: bool) -> None:
    """Too small for a Cholesky factor, yet σ/(σ² + ε) is half of 1/σ for ε = σ²."""
    x = torch.diag(vector(1.0, 1e-7))
    x = torch.cat([x, torch.zeros(1, 2, dtype=torch.float64)])
    y = vector(3.0, 2.0, 5.0)
    got = ridge_least_squares(x.T, y[:2], 1e-14) if transposed else ridge_least_squares(x, y, 1e-14)
    torch.testing.assert_close(got[:2], vector(3.0, 2.0 / 2e-7), rtol=1e-6, atol=0)
