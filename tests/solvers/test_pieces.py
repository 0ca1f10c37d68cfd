"""Conjugate gradients, ridge regression, Gauss–Newton and power iteration."""

from __future__ import annotations

import math
from importlib import import_module

import pytest
import scipy.optimize
import sklearn.linear_model
import torch
from torch import Tensor

from contracts.solver_cases import curve_fit
from torchlift.core.solution import Result
from torchlift.core.tensors import Point
from torchlift.solvers import (
    GaussNewton,
    NonlinearLeastSquares,
    Stopping,
    conjugate_gradient,
    power_iteration,
    ridge_least_squares,
    solve,
)
from torchlift.solvers.examples import normal


def positive(size: int, seed: int = 0, spread: float = 100.0) -> Tensor:
    basis, _ = torch.linalg.qr(normal((size, size), seed))
    return basis @ torch.diag(torch.logspace(0, math.log10(spread), size, dtype=torch.float64)) @ basis.T


class TestConjugateGradient:
    def test_solves_and_says_so(self) -> None:
        matrix, b = positive(30), normal((30,), 1)
        solution = conjugate_gradient(lambda v: matrix @ v, b, tolerance=1e-12)
        assert solution.converged and solution.residual <= 1e-12 and solution.steps <= 60
        torch.testing.assert_close(solution.x, torch.linalg.solve(matrix, b), rtol=1e-10, atol=1e-10)

    def test_as_many_steps_as_distinct_eigenvalues(self) -> None:
        basis, _ = torch.linalg.qr(normal((20, 20), 0))
        matrix = basis @ torch.diag(torch.tensor([1.0, 5.0, 9.0, 20.0], dtype=torch.float64).repeat(5)) @ basis.T
        assert conjugate_gradient(lambda v: matrix @ v, normal((20,), 1), tolerance=1e-9).steps == 4

    def test_chebyshev_bound(self) -> None:
        """‖e_k‖_A ≤ 2((√κ − 1)/(√κ + 1))ᵏ‖e_0‖_A."""
        matrix, b = positive(60, spread=400.0), normal((60,), 1)
        exact = torch.linalg.solve(matrix, b)
        for steps in (5, 15, 25):
            x = conjugate_gradient(lambda v: matrix @ v, b, max_steps=steps).x
            error = math.sqrt(float((x - exact) @ matrix @ (x - exact)) / float(exact @ matrix @ exact))
            assert error <= 2 * (19 / 21) ** steps

    def test_start_and_preconditioner_save_steps(self) -> None:
        scale = torch.logspace(0, 6, 40, dtype=torch.float64)
        matrix, b = torch.diag(scale) + 0.1 * positive(40), normal((40,), 1)
        plain = conjugate_gradient(lambda v: matrix @ v, b)
        scaled = conjugate_gradient(lambda v: matrix @ v, b, precondition=lambda r: r / matrix.diagonal())
        assert scaled.converged and scaled.steps < plain.steps / 3
        torch.testing.assert_close(scaled.x, torch.linalg.solve(matrix, b), rtol=1e-7, atol=1e-9)
        again = conjugate_gradient(lambda v: matrix @ v, b, scaled.x, tolerance=1e-8)
        assert again.converged and again.steps == 0 and torch.equal(again.x, scaled.x)

    def test_a_batch_is_solved_sample_by_sample(self) -> None:
        matrices = torch.stack([positive(12, seed, 10.0 ** (seed + 1)) for seed in range(3)])
        b = normal((3, 12), 1)
        b[1] = 0  # is solved before it starts, and must stay so
        batch = conjugate_gradient(lambda v: torch.einsum("bij,bj->bi", matrices, v), b, tolerance=1e-11, batched=True)
        assert batch.converged and not batch.x[1].any()
        for i in (0, 2):
            torch.testing.assert_close(batch.x[i], torch.linalg.solve(matrices[i], b[i]), rtol=1e-8, atol=1e-8)

    def test_every_reason_to_stop(self) -> None:
        b = normal((10,), 0)
        matrix = positive(10, spread=1e4)
        assert conjugate_gradient(lambda v: matrix @ v, b, max_steps=2).result is Result.MAX_STEPS
        assert conjugate_gradient(lambda v: -v, b).result is Result.NOT_POSITIVE_DEFINITE
        assert conjugate_gradient(lambda v: v * math.nan, b).result is Result.NOT_FINITE
        assert conjugate_gradient(lambda v: v, b * math.nan).result is Result.NOT_FINITE
        zero = conjugate_gradient(lambda v: v, torch.zeros(4))
        assert zero.converged and zero.steps == 0 and zero.residual == 0

    def test_the_reported_residual_is_the_true_one(self) -> None:
        matrix, b = positive(20), normal((20,), 1)
        solution = conjugate_gradient(lambda v: matrix @ v, b, max_steps=7)
        true = float((b - matrix @ solution.x).norm() / b.norm())
        assert solution.residual == pytest.approx(true, rel=1e-9) and true > 1e-6


class TestRidge:
    @pytest.mark.parametrize("method", ["auto", "cholesky", "cg"])
    @pytest.mark.parametrize(("rows", "features"), [(30, 8), (8, 30)])
    def test_against_scikit_learn(self, method: str, rows: int, features: int) -> None:
        x, y = normal((rows, features), 0), normal((rows, 3), 1)
        model = sklearn.linear_model.Ridge(alpha=0.7, fit_intercept=False, solver="svd").fit(x.numpy(), y.numpy())
        got = ridge_least_squares(x, y, 0.7, method=method)  # type: ignore[arg-type]
        torch.testing.assert_close(got, torch.from_numpy(model.coef_.T), rtol=1e-8, atol=1e-9)
        one = ridge_least_squares(x, y[:, 0], 0.7, method=method)  # type: ignore[arg-type]
        torch.testing.assert_close(one, got[:, 0], rtol=1e-8, atol=1e-9)

    def test_automatic_by_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        least_squares = import_module("torchlift.solvers.conjugate_gradient")  # the package calls a function so

        def refuse(*_: object) -> Tensor:
            raise AssertionError("the factorisation was used")

        x, y = normal((9, 6), 0), normal((9,), 1)
        wanted = ridge_least_squares(x, y, 0.1)
        monkeypatch.setattr(least_squares, "CHOLESKY_UP_TO", 5)
        monkeypatch.setattr(least_squares, "_direct", refuse)
        torch.testing.assert_close(ridge_least_squares(x, y, 0.1), wanted, rtol=1e-7, atol=1e-9)

    @pytest.mark.parametrize("shape", [(20, 6), (6, 20)])
    def test_rank_deficient_without_a_ridge_gives_the_least_norm(self, shape: tuple[int, int]) -> None:
        x = normal((shape[0], 3), 0) @ normal((3, shape[1]), 1)
        y = normal((shape[0], 2), 2)
        got = ridge_least_squares(x, y)
        torch.testing.assert_close(got, torch.linalg.pinv(x, rtol=1e-10) @ y, rtol=1e-8, atol=1e-9)


def rosenbrock(x: Tensor) -> Tensor:
    return torch.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])


class TestGaussNewton:
    @pytest.mark.parametrize("dense_up_to", [512, 0])
    def test_curve_fit_against_scipy(self, dense_up_to: int) -> None:
        problem = curve_fit()
        fit = scipy.optimize.least_squares(
            lambda x: problem.residual(torch.from_numpy(x)).numpy(), [1.0, 1.0, 1.0], xtol=1e-15, ftol=1e-15, gtol=1e-15
        )
        start = torch.ones(3, dtype=torch.float64)
        solution = solve(problem, GaussNewton(dense_up_to=dense_up_to), start, stopping=Stopping(50, change=1e-12))
        assert solution.converged and solution.state.count < 30
        torch.testing.assert_close(solution.point["x"][0], torch.from_numpy(fit.x), rtol=1e-7, atol=1e-8)
        values = [record.value for record in solution.history]
        assert values == sorted(values, reverse=True)

    @pytest.mark.parametrize("dense_up_to", [512, 0])
    def test_rosenbrock(self, dense_up_to: int) -> None:
        start = torch.tensor([-1.2, 1.0], dtype=torch.float64)
        solution = solve(NonlinearLeastSquares(rosenbrock), GaussNewton(dense_up_to=dense_up_to), start)
        assert solution.converged and solution.state.count < 60
        torch.testing.assert_close(solution.point["x"][0], torch.ones(2, dtype=torch.float64), rtol=1e-8, atol=1e-8)

    def test_linear_residuals_take_a_few_steps(self) -> None:
        matrix, b = normal((12, 5), 0), normal((12,), 1)
        problem = NonlinearLeastSquares(lambda x: matrix @ x - b)
        solution = solve(problem, GaussNewton(damping=1e-12), torch.zeros(5, dtype=torch.float64), stopping=Stopping(1))
        torch.testing.assert_close(solution.point["x"][0], torch.linalg.lstsq(matrix, b[:, None]).solution[:, 0])

    def test_a_layer_of_a_network(self) -> None:
        """½‖tanh(XΘᵀ) − Z‖² for a matrix Θ, by products: finds the Θ that made the data."""
        inputs, theta = normal((40, 4), 0), 0.5 * normal((3, 4), 1)
        targets = torch.tanh(inputs @ theta.T)
        problem = NonlinearLeastSquares(lambda t: torch.tanh(inputs @ t.T) - targets)
        solution = solve(problem, GaussNewton(dense_up_to=3), torch.zeros_like(theta))
        torch.testing.assert_close(solution.point["x"][0], theta, rtol=1e-7, atol=1e-7)

    def test_at_the_minimum_nothing_moves(self) -> None:
        start = torch.ones(2, dtype=torch.float64)
        solution = solve(NonlinearLeastSquares(rosenbrock), GaussNewton(), start)
        assert solution.converged and solution.state.count == 1 and torch.equal(solution.point["x"][0], start)

    def test_gradient_is_that_of_the_value(self) -> None:
        problem, x = curve_fit(), normal((3,), 0).requires_grad_()
        (wanted,) = torch.autograd.grad(0.5 * problem.residual(x).square().sum(), x)
        torch.testing.assert_close(problem.gradient(Point({"x": x}))["x"][0], wanted)

    def test_gives_up_where_no_damping_helps(self) -> None:
        """A residual that is a step: its derivative says 'left', its value says 'nowhere'."""
        problem = NonlinearLeastSquares(lambda x: x - x.detach() + 1.0 + (x.detach() - 2).abs())
        solution = solve(problem, GaussNewton(trials=5), torch.full((1,), 2.0, dtype=torch.float64))
        assert solution.result is Result.LINE_SEARCH_FAILED and "5 dampings" in solution.message


class TestPowerIteration:
    def test_largest_eigenvalue(self) -> None:
        matrix = positive(20, spread=50.0)
        pair = power_iteration(lambda v: matrix @ v, normal((20,), 1), tolerance=1e-8, max_steps=5000)
        assert pair.result is Result.CONVERGED
        assert pair.value == pytest.approx(50.0, rel=1e-10)
        torch.testing.assert_close(matrix @ pair.vector, 50 * pair.vector, rtol=1e-6, atol=1e-6)

    def test_a_negative_one_and_other_shapes(self) -> None:
        weights = torch.tensor([[1.0, -7.0], [3.0, 0.5]], dtype=torch.float64)
        assert power_iteration(lambda v: weights * v, torch.ones_like(weights)).value == pytest.approx(-7.0)

    def test_it_is_a_lower_bound_and_says_when_it_is_not_there(self) -> None:
        matrix = torch.diag(torch.linspace(0.99, 1, 50, dtype=torch.float64))
        pair = power_iteration(lambda v: matrix @ v, torch.ones(50, dtype=torch.float64), tolerance=1e-9, max_steps=20)
        assert pair.result is Result.MAX_STEPS and pair.steps == 20 and pair.value < 1
        assert power_iteration(lambda v: math.inf * v, torch.ones(2)).result is Result.NOT_FINITE
        assert power_iteration(lambda v: 0 * v, torch.ones(2)).value == 0
