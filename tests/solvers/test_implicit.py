"""Implicit stochastic gradient on a convex problem: stable for steps over orders of magnitude."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchlift.core.problem import CompositeProblem, Problem
from torchlift.core.tensors import Point
from torchlift.solvers import (
    FISTA,
    Anchored,
    Diminishing,
    ImplicitStochasticGradient,
    Result,
    StochasticProblem,
    Stopping,
    ridge_least_squares,
    solve,
)


def _randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class BatchLeastSquares(CompositeProblem):
    """½‖A x − b‖²/n on a batch, with its exact minimiser near an anchor."""

    def __init__(self, A: Tensor, b: Tensor) -> None:
        self.A, self.b = A, b
        super().__init__(
            lambda x: 0.5 * (A @ x - b).square().mean(),
            lambda x: A.T @ (A @ x - b) / len(b),
            bound=float(torch.linalg.matrix_norm(A, 2)) ** 2 / len(b),
        )

    def minimise(
        self, point: Point, block: str, tolerance: float, anchor: Point | None = None, strength: float = 0.0
    ) -> Point:
        near = torch.zeros_like(point["x"][0]) if anchor is None else anchor["x"][0]
        moved = ridge_least_squares(self.A, self.b - self.A @ near, strength * len(self.b))
        return Point({"x": near + moved})


class LeastSquares(StochasticProblem):
    """Badly scaled features (condition number about 10⁴), some noise."""

    def __init__(self) -> None:
        self.A = _randn(0, 400, 5) * torch.tensor([10.0, 3.0, 1.0, 0.3, 0.1], dtype=torch.float64)
        self.truth = torch.ones(5, dtype=torch.float64)
        self.b = self.A @ self.truth + 0.01 * _randn(1, 400)
        self.best = torch.linalg.lstsq(self.A, self.b).solution

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("x",)

    def batch(self, count: int, parameters: Point) -> tuple[Problem, Point]:
        chosen = torch.randint(400, (8,), generator=torch.Generator().manual_seed(count))
        return BatchLeastSquares(self.A[chosen], self.b[chosen]), parameters

    def value(self, parameters: Point) -> float:
        return 0.5 * float((self.A @ parameters["x"][0] - self.b).square().mean())


RATES = (1e-1, 1e0, 1e1, 1e2, 1e3)


def _explicit(problem: LeastSquares, rate: float, steps: int) -> float:
    x = torch.zeros(5, dtype=torch.float64)
    for k in range(steps):
        batch, _ = problem.batch(k, Point({"x": x}))
        x = x - rate / (k + 1) ** 0.6 * batch.gradient(Point({"x": x}))["x"][0]
        if not bool(torch.isfinite(x).all()):
            return math.inf
    return problem.value(Point({"x": x}))


def test_stable_over_four_orders_of_magnitude_where_explicit_steps_diverge() -> None:
    problem = LeastSquares()
    start = Point({"x": torch.zeros(5, dtype=torch.float64)})
    least, first = problem.value(Point({"x": problem.best})), problem.value(start)
    rows = []
    for rate in RATES:
        solver = ImplicitStochasticGradient(Diminishing(rate, 0.6))
        solution = solve(problem, solver, start, stopping=Stopping(400, change=None), record_every=400)
        rows.append((rate, problem.value(solution.point), _explicit(problem, rate, 400)))
    table = "\n".join(f"{rate:8g}  {implicit:12.3g}  {explicit:12.3g}" for rate, implicit, explicit in rows)
    print(f"\n    rate      implicit      explicit   (start {first:.3g}, least {least:.3g})\n{table}")
    for rate, implicit, explicit in rows:
        assert implicit - least < 1e-2 * (first - least), rate
        if rate >= 1:
            assert explicit > 1e6 * first, rate


def test_small_steps_agree_with_explicit_ones() -> None:
    """θ_{k+1} = θ_k − τ∇E(θ_{k+1}) tends to the explicit step as τ → 0."""
    problem, x = LeastSquares(), _randn(5, 5)
    tau = 1e-7
    solver = ImplicitStochasticGradient(tau)
    new = solver.step(problem, solver.init(problem, Point({"x": x}))).point["x"][0]
    explicit = -problem.batch(0, Point({"x": x}))[0].gradient(Point({"x": x}))["x"][0]
    torch.testing.assert_close((new - x) / tau, explicit, rtol=1e-4, atol=1e-6)


def test_any_inner_solver_reaches_the_same_point() -> None:
    problem, start = LeastSquares(), Point({"x": _randn(5, 5)})
    exact = ImplicitStochasticGradient(0.3)
    inexact = ImplicitStochasticGradient(0.3, inner=FISTA(), inner_steps=3000)
    points = [solve(problem, each, start, stopping=Stopping(3, change=None)).point["x"][0] for each in (exact, inexact)]
    torch.testing.assert_close(*points, rtol=1e-8, atol=1e-8)


def test_anchor_joins_value_gradient_and_bound() -> None:
    problem, _ = LeastSquares().batch(0, Point({"x": _randn(0, 5)}))
    anchor, point = Point({"x": _randn(1, 5)}), Point({"x": _randn(2, 5)})
    anchored = Anchored(problem, anchor, 0.7)
    difference = point["x"][0] - anchor["x"][0]
    assert anchored.value(point) == pytest.approx(problem.value(point) + 0.35 * float(difference.square().sum()))
    assert anchored.smooth_value(point) == pytest.approx(anchored.value(point))
    expected = problem.gradient(point)["x"][0] + 0.7 * difference
    torch.testing.assert_close(anchored.gradient(point)["x"][0], expected)
    assert anchored.bound(point, "x") == pytest.approx(problem.bound(point, "x") + 0.7)
    found = anchored.minimise(point, "x", 1e-8)
    assert found is not None
    assert float(anchored.gradient(found)["x"][0].norm()) < 1e-8


def test_a_failing_batch_is_named() -> None:
    class Broken(LeastSquares):
        def batch(self, count: int, parameters: Point) -> tuple[Problem, Point]:
            problem, start = super().batch(count, parameters)
            if count == 3:
                problem = CompositeProblem(lambda x: x.sum() * math.nan, lambda x: x * math.nan, bound=1.0)
            return problem, start

    start = Point({"x": torch.zeros(5, dtype=torch.float64)})
    solver = ImplicitStochasticGradient(0.3, inner=FISTA(), inner_steps=2)
    solution = solve(Broken(), solver, start, stopping=Stopping(10, change=None))
    assert solution.result is Result.NOT_FINITE
    assert "batch 3" in solution.message and "step 4" in solution.message
    assert bool(torch.isfinite(solution.point["x"][0]).all())
