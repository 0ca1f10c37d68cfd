"""PDHG and ADMM against pyproximal, linear programming and each other."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import scipy.optimize
import torch
from torch import Tensor

from contracts.solver_cases import basis_pursuit
from torchlift.core.solution import Result
from torchlift.functions.priors import PlugAndPlay
from torchlift.functions.regularisers import L1, NonNegative, Ridge
from torchlift.operators import Dense, FiniteDifference, Identity, Mask
from torchlift.solvers import (
    ADMM,
    FISTA,
    PDHG,
    CompositeProblem,
    Equals,
    GroupNorm,
    LeastSquares,
    SaddleProblem,
    Solver,
    SquaredDistance,
    Stopping,
    Term,
    solve,
)
from torchlift.solvers.examples import normal, total_variation
from torchlift.solvers.pdhg import step_sizes

SOLVERS: dict[str, Solver] = {
    "pdhg": PDHG(),
    "pdhg, badly scaled": PDHG(ratio=1e4),
    "pdhg, from the other side": PDHG(ratio=1e-4),
    "pdhg, fixed": PDHG(balance=False, ratio=100.0),
    "admm": ADMM(),
    "admm, badly scaled": ADMM(penalty=1e3),
    "admm by conjugate gradients": ADMM(penalty=5.0, cholesky_up_to=0),
}
solvers = pytest.mark.parametrize("name", SOLVERS)
TIGHT = Stopping(max_steps=20_000, change=None, residual=3e-9)


def minimise(problem: SaddleProblem, solver: Solver, start: Tensor, stopping: Stopping = TIGHT) -> Tensor:
    solution = solve(problem, solver, start, stopping=stopping, record_every=100)
    assert solution.converged, solution.message
    return solution.point["x"][0]


def picture(size: int = 8) -> Tensor:
    clean = torch.zeros(1, 1, size, size, dtype=torch.float64)
    clean[..., 2:6, 3:7] = 1.0
    return clean + 0.1 * normal(clean.shape, 0)


@functools.cache
def denoised(weight: float) -> Tensor:
    """An independent oracle in numpy: accelerated projected gradients on the dual of the picture's denoising."""
    image = picture()[0, 0].numpy()

    def gradient(x: np.ndarray) -> np.ndarray:
        down = np.vstack([np.diff(x, axis=0), np.zeros((1, x.shape[1]))])
        right = np.hstack([np.diff(x, axis=1), np.zeros((x.shape[0], 1))])
        return np.stack([down, right])

    def divergence(p: np.ndarray) -> np.ndarray:
        down = np.diff(np.vstack([np.zeros((1, p.shape[2])), p[0, :-1], np.zeros((1, p.shape[2]))]), axis=0)
        right = np.diff(np.hstack([np.zeros((p.shape[1], 1)), p[1, :, :-1], np.zeros((p.shape[1], 1))]), axis=1)
        return down + right

    p = q = np.zeros((2, *image.shape))
    t = 1.0
    for _ in range(20_000):
        moved = q + gradient(image + divergence(q)) / 8
        new = moved / np.maximum(1, np.linalg.norm(moved, axis=0) / weight)
        t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
        q, p, t = new + (t - 1) / t_new * (new - p), new, t_new
    return torch.from_numpy(image + divergence(p))[None, None]


@solvers
@pytest.mark.parametrize("smooth", [False, True])
def test_total_variation_denoising(name: str, smooth: bool) -> None:
    y, weight = picture(), 0.2
    data = SquaredDistance(y)
    term = Term(GroupNorm(weight), FiniteDifference((1, 8, 8)))
    problem = SaddleProblem((term,), f=data) if smooth else SaddleProblem((term,), g=data)
    got = minimise(problem, SOLVERS[name], torch.zeros_like(y))
    torch.testing.assert_close(got, denoised(weight), atol=1e-7, rtol=0)
    assert float((got - y).norm()) > 0.3  # it did denoise


@solvers
def test_anisotropic_total_variation(name: str) -> None:
    """The dual is a least-squares problem with bounds, which scipy solves to rounding."""
    y, weight = picture(6), 0.15
    difference = np.diff(np.eye(6), axis=0)
    matrix = np.vstack([np.kron(difference, np.eye(6)), np.kron(np.eye(6), difference)])
    fit = scipy.optimize.lsq_linear(matrix.T, y.numpy().ravel(), (-weight, weight), method="bvls", tol=1e-14)
    wanted = torch.from_numpy((y.numpy().ravel() - matrix.T @ fit.x).reshape(1, 1, 6, 6))
    problem = SaddleProblem((Term(GroupNorm(weight, None), FiniteDifference((1, 6, 6))),), g=SquaredDistance(y))
    torch.testing.assert_close(minimise(problem, SOLVERS[name], torch.zeros_like(y)), wanted, atol=1e-8, rtol=0)


@pytest.mark.parametrize("name", ["admm", "admm, badly scaled", "pdhg"])
def test_basis_pursuit(name: str) -> None:
    problem = basis_pursuit(12, 30)
    matrix, b = problem.terms[0].operator.to_dense().numpy(), problem.terms[0].function.target[0].numpy()  # type: ignore[attr-defined]
    program = scipy.optimize.linprog(np.ones(60), A_eq=np.hstack([matrix, -matrix]), b_eq=b, method="highs-ds")
    wanted = torch.from_numpy(program.x[:30] - program.x[30:])
    got = minimise(problem, SOLVERS[name], torch.zeros(1, 30, dtype=torch.float64))
    torch.testing.assert_close(got[0], wanted, atol=1e-7, rtol=0)
    assert int((wanted != 0).sum()) == 12


@solvers
def test_two_terms_with_a_constraint(name: str) -> None:
    """½‖Hx − y‖² + a‖Dx‖₁ + b‖x‖₁ on x ≥ 0, against FISTA where D = I merges the two norms."""
    matrix, y = normal((1, 9, 6), 0)[0], normal((1, 9), 1)
    terms = (Term(GroupNorm(0.3, None), Identity((6,))), Term(L1(0.5), 2.0 * Identity((6,))))
    problem = SaddleProblem(terms, g=NonNegative(), f=LeastSquares(Dense(matrix), y))

    class Positive:
        def value(self, x: Tensor) -> Tensor:
            return 1.3 * x.sum()

        def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
            return (x - 1.3 * step).clamp_min(0)

    norm = float(torch.linalg.matrix_norm(matrix, 2)) ** 2
    twin = CompositeProblem(lambda x: 0.5 * (x @ matrix.T - y).square().sum(), None, Positive(), norm)
    start = torch.ones(1, 6, dtype=torch.float64)
    wanted = solve(twin, FISTA(), start, stopping=Stopping(20_000, change=1e-15)).point["x"][0]
    torch.testing.assert_close(minimise(problem, SOLVERS[name], start), wanted, atol=1e-7, rtol=0)
    assert 0 < int((wanted == 0).sum()) < 6


@solvers
def test_per_sample_context(name: str) -> None:
    """Inpainting of two images with their own masks is the same as of one after the other."""
    y, masks = normal((2, 1, 5, 5), 0), (normal((2, 1, 5, 5), 1) > 0).double()

    def problem(rows: slice) -> SaddleProblem:
        mask = masks[rows]
        data = LeastSquares(Mask(shape=(1, 5, 5)), mask * y[rows], context=mask)
        term = Term(GroupNorm(0.1), FiniteDifference((1, 5, 5)))
        return SaddleProblem((term, Term(Ridge(0.2), Identity((1, 5, 5)))), f=data)

    stopping = Stopping(max_steps=20_000, change=None, residual=1e-8)
    both = minimise(problem(slice(0, 2)), SOLVERS[name], torch.zeros_like(y), stopping)
    for i in range(2):
        one = minimise(problem(slice(i, i + 1)), SOLVERS[name], torch.zeros_like(y[:1]), stopping)
        torch.testing.assert_close(both[i : i + 1], one, atol=1e-6, rtol=0)


@pytest.mark.parametrize("solver", [PDHG(), ADMM()], ids=["pdhg", "admm"])
@pytest.mark.parametrize("smooth", [False, True])
def test_the_duality_gap_bounds_the_error_and_stops(solver: Solver, smooth: bool) -> None:
    problem = total_variation(smooth=smooth)
    start = torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    best = problem.value(minimise(problem, solver, start))
    solution = solve(problem, solver, start, stopping=Stopping(5000, change=None, gap=1e-6))
    assert solution.converged
    gaps = [record.gap for record in solution.history]
    assert all(gap is not None and gap >= -1e-12 for gap in gaps)
    assert gaps[0] > 1e-3 and gaps[-1] <= 1e-6 < gaps[-2]
    value = problem.value(solution.point["x"][0])
    assert 0 <= value - best + 1e-12 <= 1e-6 * (1 + 2 * abs(value))
    assert problem.gap(solution.point["x"][0], solution.point["dual"][:1]) == pytest.approx(gaps[-1], rel=1e-6)


def test_balancing_helps() -> None:
    problem, start = total_variation(), torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    stopping = Stopping(2000, change=None, gap=1e-7)

    def steps(solver: Solver) -> int:
        return solve(problem, solver, start, stopping=stopping).state.count

    assert steps(PDHG(ratio=1e4)) < 500 and steps(PDHG(ratio=1e-4)) < 500
    assert steps(PDHG(ratio=1e4)) < 0.5 * steps(PDHG(ratio=1e4, balance=False))
    assert steps(ADMM(penalty=1e3)) < 0.5 * steps(ADMM(penalty=1e3, balance_changes=0))


@pytest.mark.parametrize(("ratio", "norm", "curvature"), [(1, 2, 0), (5, 0.3, 7), (1e-3, 10, 1), (1, 0, 4), (2, 0, 0)])
def test_step_sizes_meet_the_condition(ratio: float, norm: float, curvature: float) -> None:
    tau, sigma = step_sizes(ratio, norm, curvature)
    assert sigma == pytest.approx(ratio * tau)
    if norm or curvature:
        assert 1 / tau - sigma * norm**2 == pytest.approx(curvature, abs=1e-9 / tau)


def test_every_step_keeps_the_condition_while_balancing() -> None:
    problem = total_variation(smooth=True)
    sizes: list[tuple[float, float]] = []
    solve(
        problem,
        PDHG(ratio=1e3),
        torch.zeros(1, 1, 6, 6, dtype=torch.float64),
        stopping=Stopping(100, change=None),
        callback=lambda record, _: sizes.append((record.step_sizes["x"], record.step_sizes["dual"])),
    )
    norm = problem.norm_bound()
    assert all(1 / tau - sigma * norm**2 >= 1 - 1e-9 / tau for tau, sigma in sizes)
    assert len({round(math.log(sigma / tau), 6) for tau, sigma in sizes}) > 3  # it did balance


def test_the_hessians_of_quadratic_functions() -> None:
    x, y = normal((2, 4), 0), normal((2, 3), 1)
    quadratics = (LeastSquares(Dense(normal((3, 4), 2)), y, 1.3), SquaredDistance(normal((2, 4), 3), 0.7), Ridge(0.4))
    for f in quadratics:
        v = normal((2, 4), 4)
        torch.testing.assert_close(f.normal(v), f.grad(x + v) - f.grad(x))
        assert float(f.normal(v).norm()) <= f.curvature() * float(v.norm()) * (1 + 1e-12)


def test_values_are_infinite_off_the_domain() -> None:
    b = normal((1, 3), 0)
    assert float(Equals(b).value(b)) == 0 and float(Equals(b).value(b + 1e-9)) == math.inf
    assert float(Equals(b, 1e-8).value(b + 1e-9)) == 0
    assert float(GroupNorm(0.5, None).conjugate(torch.tensor([[0.4, 0.6]]))) == math.inf
    problem = basis_pursuit()
    x, p = torch.zeros(1, 9, dtype=torch.float64), torch.zeros(1, 5, dtype=torch.float64)
    assert problem.value(x) == math.inf and problem.dual_value((p,)) == 0 and problem.gap(x, (p,)) == math.inf
    without_conjugate = SaddleProblem(problem.terms, g=PlugAndPlay(L1().prox, L1().value))
    assert without_conjugate.value(x) == math.inf and without_conjugate.dual_value((p,)) is None


def test_admm_says_when_its_system_is_singular() -> None:
    """Nothing sees x at all."""
    zero = SaddleProblem((Term(GroupNorm(1.0, None), 0.0 * Identity((3,))),))
    solution = solve(zero, ADMM(), normal((1, 3), 0))
    assert solution.result is Result.NOT_POSITIVE_DEFINITE and solution.failed
    assert "in step 1: the x-update has no unique solution" in solution.message


def test_warm_start_of_the_duals() -> None:
    problem, start = total_variation(), torch.zeros(1, 1, 6, 6, dtype=torch.float64)
    done = solve(problem, PDHG(), start, stopping=TIGHT)
    again = solve(problem, PDHG(), {"x": done.point["x"], "dual": done.point["dual"]}, stopping=Stopping(50, gap=1e-8))
    assert again.converged and again.state.count == 1
    warm = solve(problem, ADMM(), done.point, stopping=Stopping(50, change=None, gap=1e-6))
    cold = solve(problem, ADMM(), start, stopping=Stopping(50, change=None, gap=1e-6))
    assert warm.converged and warm.state.count < cold.state.count
