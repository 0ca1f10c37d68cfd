"""Textbook rates, Adam's iterates, and step sizes that find themselves."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from torchlift.core.tensors import Point
from torchlift.solvers import (
    FISTA,
    AdamScaling,
    Backtracking,
    CompositeProblem,
    Constant,
    Cosine,
    Diagonal,
    Diminishing,
    GradientDescent,
    HeavyBall,
    Matrix,
    Nesterov,
    ProximalAdam,
    ProximalGradient,
    Scaling,
    Solver,
    Stopping,
    solve,
)
from torchlift.solvers.examples import lasso, normal, ridge

KAPPA = 100.0
SPECTRUM = torch.logspace(0, math.log10(KAPPA), 30, dtype=torch.float64)
ROOT = math.sqrt(KAPPA)


def quadratic() -> CompositeProblem:
    """½⟨x, Dx⟩ with condition number κ; its minimiser 0 lets errors shrink far below rounding."""
    return CompositeProblem(lambda x: 0.5 * (SPECTRUM * x * x).sum(), lambda x: SPECTRUM * x, None, KAPPA)


def rate(solver: Solver, first: int = 400, last: int = 1200) -> float:
    """The factor by which the error shrinks in one step, between two steps."""
    start = torch.ones(30, dtype=torch.float64)
    early = solve(quadratic(), solver, start, stopping=Stopping(max_steps=first, change=None), record_every=0)
    rest = Stopping(max_steps=last - first, change=None)
    late = solve(quadratic(), solver, state=early.state, stopping=rest, record_every=0)
    ratio = float(late.point["x"][0].norm() / early.point["x"][0].norm())
    return ratio ** (1 / (last - first))


@pytest.mark.parametrize(
    ("solver", "wanted"),
    [
        (GradientDescent(), 1 - 1 / KAPPA),
        (GradientDescent(2 / (KAPPA + 1)), (KAPPA - 1) / (KAPPA + 1)),
        (GradientDescent(4 / (ROOT + 1) ** 2, HeavyBall(((ROOT - 1) / (ROOT + 1)) ** 2)), (ROOT - 1) / (ROOT + 1)),
        (GradientDescent(1 / KAPPA, Nesterov(beta=(ROOT - 1) / (ROOT + 1))), 1 - 1 / ROOT),
    ],
    ids=["gradient 1/L", "gradient 2/(L+μ)", "heavy ball", "Nesterov"],
)
def test_textbook_rates(solver: Solver, wanted: float) -> None:
    assert math.log(rate(solver)) == pytest.approx(math.log(wanted), rel=0.1)


def test_restart_recovers_linear_convergence() -> None:
    """Without knowing κ; the sequence t_k alone is much slower."""
    with_restart, without = rate(FISTA()), rate(FISTA(restart=False))
    assert math.log(with_restart) < 0.5 * math.log(1 - 1 / ROOT)  # at least half the optimal rate
    assert math.log(without) > 0.35 * math.log(1 - 1 / ROOT)
    solution = solve(quadratic(), FISTA(), torch.ones(30, dtype=torch.float64))
    assert solution.history[-1].extra["restarts"] >= 2


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.0, 0.99)])
def test_adam_scaling_is_adam(betas: tuple[float, float]) -> None:
    matrix, target = normal((9, 5), 0), normal((9,), 1)

    def value(x: Tensor, y: Tensor) -> Tensor:
        return (matrix @ x - target).square().sum() + torch.cosh(y).sum() + x.sum() * y.sum()

    problem = CompositeProblem(value, blocks=("x", "y"))
    mine = {"x": normal((5,), 2), "y": normal((2, 2), 3)}
    theirs = [tensor.clone().requires_grad_() for tensor in mine.values()]
    adam = torch.optim.Adam(theirs, lr=0.05, betas=betas, eps=1e-6)
    solver = ProximalAdam(0.05, betas, 1e-6)
    state = solver.init(problem, Point(mine))
    for _ in range(50):
        adam.zero_grad()
        value(*theirs).backward()
        adam.step()
        state = solver.step(problem, state)
        for a, b in zip(state.point.tensors, theirs, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=1e-12, atol=1e-13)


def test_proximal_adam_takes_the_plain_prox_step() -> None:
    """One step by hand: m̂ = g and q̂ = g², so x − α g/(|g| + ε), then soft-thresholding at αλ."""
    problem, x, step, eps = lasso(weight=0.3), normal((8,), 5), 0.05, 0.2
    g = problem.gradient(Point({"x": x}))["x"][0]
    moved = x - step * g / (g.abs() + eps)
    threshold = {False: 0.3 * step, True: 0.3 * step / (g.abs() + eps)}
    for matched in (False, True):
        solver = ProximalGradient(step, scaling=AdamScaling(eps=eps, matched=matched))
        got = solve(problem, solver, x, stopping=Stopping(max_steps=1)).point["x"][0]
        wanted = moved.sign() * (moved.abs() - threshold[matched]).clamp_min(0)
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14)


def test_heavy_ball_and_nesterov_by_hand() -> None:
    x0, step, beta = torch.full((1,), 2.0, dtype=torch.float64), 0.1, 0.5
    problem = CompositeProblem(lambda x: 1.5 * x.square().sum(), lambda x: 3 * x)
    x1 = x0 - step * 3 * x0
    y = x1 + beta * (x1 - x0)
    two = Stopping(max_steps=2, change=None)
    ball = solve(problem, ProximalGradient(step, HeavyBall(beta)), x0, stopping=two).point["x"][0]
    nesterov = solve(problem, ProximalGradient(step, Nesterov(beta=beta)), x0, stopping=two).point["x"][0]
    torch.testing.assert_close(ball, y - step * 3 * x1)
    torch.testing.assert_close(nesterov, y - step * 3 * y)


@pytest.mark.parametrize("start", [1e-12, 1e-3, 1.0, 1e6])
def test_backtracking_does_not_mind_its_start(start: float) -> None:
    problem = ridge()
    best = solve(problem, GradientDescent(), normal((8,), 1), stopping=Stopping(5000, change=1e-14)).point["x"][0]
    solution = solve(problem, GradientDescent(Backtracking(start)), normal((8,), 1), stopping=Stopping(change=1e-12))
    assert solution.converged
    assert solution.state.count < 200
    torch.testing.assert_close(solution.point["x"][0], best, atol=1e-9, rtol=0)


def test_backtracking_grows_where_the_function_flattens() -> None:
    """cosh has curvature 1e4 at the start and 1 at its minimum: the step must grow by orders of magnitude."""
    problem = CompositeProblem(lambda x: torch.cosh(x).sum(), torch.sinh)
    start = torch.full((1,), 10.0, dtype=torch.float64)
    growing = solve(problem, GradientDescent(Backtracking()), start, stopping=Stopping(400, change=None, residual=1e-9))
    stuck = solve(problem, GradientDescent(Backtracking(growth=1.0)), start, stopping=Stopping(400, residual=1e-9))
    sizes = [record.step_sizes["x"] for record in growing.history]
    assert growing.converged and not stuck.converged
    assert sizes[0] < 1e-2 and max(sizes) > 0.5


def test_backtracking_reaches_full_precision() -> None:
    """Near the minimum f is flat to rounding: its values say nothing, but gradients still do."""
    matrix, target = normal((12, 8), 0), 1e3 + normal((12,), 1)
    problem = CompositeProblem(
        lambda x: 0.5 * (matrix @ x - target).square().sum(), lambda x: matrix.T @ (matrix @ x - target)
    )
    stopping = Stopping(5000, change=None, residual=1e-9)
    solution = solve(problem, FISTA(Backtracking()), torch.zeros(8, dtype=torch.float64), stopping=stopping)
    assert solution.converged
    wanted = torch.linalg.lstsq(matrix, target[:, None]).solution[:, 0]
    torch.testing.assert_close(solution.point["x"][0], wanted, rtol=1e-10, atol=1e-10)


def test_schedules() -> None:
    assert [Diminishing(2.0, 1.0).size(k) for k in range(4)] == [2.0, 1.0, 2 / 3, 0.5]
    cosine = Cosine(1.0, 10, 0.2)
    assert cosine.size(0) == 1.0 and cosine.size(5) == pytest.approx(0.6)
    assert cosine.size(10) == cosine.size(99) == 0.2
    problem = quadratic()
    start = torch.ones(30, dtype=torch.float64)
    for rule, wanted in ((Diminishing(0.01, 0.5), 0.01 / math.sqrt(3)), (Cosine(0.01, 4, 0.001), 0.0055)):
        solution = solve(problem, GradientDescent(rule), start, stopping=Stopping(max_steps=3))
        assert solution.history[-1].step_sizes["x"] == pytest.approx(wanted)
    assert GradientDescent(0.5).step_size == Constant(0.5)


@pytest.mark.parametrize("scaling", [Diagonal(SPECTRUM), Matrix(torch.diag(SPECTRUM))], ids=["diagonal", "matrix"])
def test_backtracking_measures_in_the_metric(scaling: Scaling) -> None:
    """With the Hessian as the metric every step below 1 decreases enough, whatever κ."""
    solver = ProximalGradient(Backtracking(start=0.99, growth=1.0), scaling=scaling)
    start = torch.ones(30, dtype=torch.float64)
    solution = solve(quadratic(), solver, start, stopping=Stopping(max_steps=1))
    assert solution.history[0].step_sizes["x"] == 0.99
    torch.testing.assert_close(solution.point["x"][0], 0.01 * start, rtol=1e-10, atol=1e-12)
