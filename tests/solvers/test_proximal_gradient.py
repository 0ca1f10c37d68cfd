"""The proximal-gradient family against scikit-learn and scipy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.optimize
import sklearn.linear_model
import torch
from torch import Tensor

from torchlift.core.tensors import Point
from torchlift.functions.regularisers import L1, ElasticNet, NonNegative, NuclearNorm, Ridge
from torchlift.solvers import (
    FISTA,
    Backtracking,
    CompositeProblem,
    Constant,
    Diagonal,
    FromBound,
    GradientDescent,
    HeavyBall,
    Matrix,
    ProximalAdam,
    ProximalGradient,
    Solver,
    Stopping,
    solve,
)
from torchlift.solvers.examples import lasso, normal

ROWS, COLUMNS = 60, 20
A = normal((ROWS, COLUMNS), 0)
B = A @ torch.cat([normal((5,), 1), torch.zeros(15, dtype=torch.float64)]) + 0.3 * normal((ROWS,), 2)
L = float(torch.linalg.matrix_norm(A, 2)) ** 2
ZERO = torch.zeros(COLUMNS, dtype=torch.float64)
TIGHT = Stopping(max_steps=20_000, change=1e-13)

FAMILY: dict[str, Solver] = {
    "plain": ProximalGradient(),
    "over-relaxed": ProximalGradient(FromBound(1.9)),
    "fista": FISTA(),
    "fista without restart": FISTA(restart=False),
    "fista by backtracking": FISTA(Backtracking()),
    "plain by backtracking": ProximalGradient(Backtracking(start=100.0)),
    "heavy ball": ProximalGradient(FromBound(0.8), HeavyBall(0.5)),
    "diagonal": ProximalGradient(Backtracking(), scaling=Diagonal(A.square().sum(0))),
    "constant": ProximalGradient(1 / L),
    "adam, matched": ProximalAdam(0.05, matched=True),
}
family = pytest.mark.parametrize("name", FAMILY)


def regression(regulariser: object) -> CompositeProblem:
    return CompositeProblem(
        lambda x: 0.5 * (A @ x - B).square().sum(),
        lambda x: A.T @ (A @ x - B),
        regulariser,  # type: ignore[arg-type]
        L,
        elementwise=True,
    )


def minimise(problem: CompositeProblem, solver: Solver, start: Tensor = ZERO) -> Tensor:
    return solve(problem, solver, start, stopping=TIGHT, record_every=0).raise_if_failed().point["x"][0]


@family
def test_lasso(name: str) -> None:
    weight = 4.0
    model = sklearn.linear_model.Lasso(alpha=weight / ROWS, fit_intercept=False, tol=1e-14, max_iter=100_000)
    wanted = torch.from_numpy(model.fit(A.numpy(), B.numpy()).coef_)
    got = minimise(regression(L1(weight)), FAMILY[name])
    torch.testing.assert_close(got, wanted, atol=1e-7, rtol=0)
    assert 0 < int((got == 0).sum()) < COLUMNS
    assert torch.equal(got == 0, wanted == 0)


@family
def test_elastic_net(name: str) -> None:
    l1, ridge = 3.0, 5.0
    alpha = (l1 + ridge) / ROWS
    model = sklearn.linear_model.ElasticNet(
        alpha=alpha, l1_ratio=l1 / (l1 + ridge), fit_intercept=False, tol=1e-14, max_iter=100_000
    )
    wanted = torch.from_numpy(model.fit(A.numpy(), B.numpy()).coef_)
    torch.testing.assert_close(minimise(regression(ElasticNet(l1, ridge)), FAMILY[name]), wanted, atol=1e-7, rtol=0)


@family
def test_non_negative_least_squares(name: str) -> None:
    wanted, _ = scipy.optimize.nnls(A.numpy(), B.numpy())
    got = minimise(regression(NonNegative()), FAMILY[name])
    torch.testing.assert_close(got, torch.from_numpy(wanted), atol=1e-7, rtol=0)
    assert bool((got == 0).any()) and bool((got >= 0).all())


def test_plain_adam_solves_constraints_but_not_the_lasso() -> None:
    """The plain prox step of the source does not fit the scaled gradient; see `AdamScaling`."""
    wanted, _ = scipy.optimize.nnls(A.numpy(), B.numpy())
    got = minimise(regression(NonNegative()), ProximalAdam(0.02))
    torch.testing.assert_close(got, torch.from_numpy(wanted), atol=1e-4, rtol=0)
    problem = regression(L1(4.0))
    best = problem.value(Point({"x": minimise(problem, FISTA())}))
    assert problem.value(Point({"x": minimise(problem, ProximalAdam(0.02))})) > 1.001 * best
    matched = minimise(problem, ProximalAdam(0.02, matched=True))
    assert problem.value(Point({"x": matched})) < (1 + 1e-9) * best


def labels(classes: int) -> tuple[np.ndarray, Tensor]:
    scores = A @ normal((COLUMNS, classes), 5) + 2.0 * normal((ROWS, classes), 6)
    y = scores.argmax(1)
    return y.numpy(), y


@pytest.mark.parametrize("solver", [FISTA(), FISTA(Backtracking()), ProximalGradient(Backtracking())])
def test_logistic_regression(solver: Solver) -> None:
    y, target = labels(2)
    sign = 2.0 * target.double() - 1
    problem = CompositeProblem(  # gradient by autograd
        lambda x: torch.nn.functional.softplus(-sign * (A @ x)).sum(), None, Ridge(2.0), L / 4
    )
    model = sklearn.linear_model.LogisticRegression(C=0.5, fit_intercept=False, tol=1e-12, max_iter=10_000)
    wanted = torch.from_numpy(model.fit(A.numpy(), y).coef_[0])
    torch.testing.assert_close(minimise(problem, solver), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("solver", [FISTA(), FISTA(Backtracking(start=1e-6)), GradientDescent(Backtracking())])
def test_multinomial_regression_of_two_blocks(solver: Solver) -> None:
    """Weights (with a ridge) and intercepts (without) as two blocks with their own bounds."""
    y, target = labels(3)

    def value(weight: Tensor, bias: Tensor) -> Tensor:
        loss = torch.nn.functional.cross_entropy(A @ weight + bias, target, reduction="sum")
        return loss + weight.square().sum()

    bounds = {"weight": L / 2 + 2, "bias": ROWS / 2}
    problem = CompositeProblem(value, bound=bounds, blocks=("weight", "bias"))
    start = {"weight": torch.zeros(COLUMNS, 3, dtype=torch.float64), "bias": torch.zeros(3, dtype=torch.float64)}
    solution = solve(problem, solver, start, stopping=TIGHT, record_every=0)
    model = sklearn.linear_model.LogisticRegression(C=0.5, tol=1e-12, max_iter=10_000).fit(A.numpy(), y)
    torch.testing.assert_close(solution.point["weight"][0], torch.from_numpy(model.coef_.T), atol=1e-6, rtol=0)
    bias, wanted = solution.point["bias"][0], torch.from_numpy(model.intercept_)
    torch.testing.assert_close(bias - bias.mean(), wanted - wanted.mean(), atol=1e-6, rtol=0)


def test_matrix_scaling_with_the_gram_is_newton() -> None:
    gram = A.T @ A
    step = ProximalGradient(1.0, scaling=Matrix(gram))
    problem = regression(None)
    got = solve(problem, step, ZERO, stopping=Stopping(max_steps=1)).point["x"][0]
    torch.testing.assert_close(got, torch.linalg.lstsq(A, B[:, None]).solution[:, 0])


def test_only_named_blocks_move() -> None:
    problem = CompositeProblem(lambda u, v: ((u + v - 3) ** 2).sum(), bound=2.0, blocks=("u", "v"))
    start = {"u": torch.zeros(2, dtype=torch.float64), "v": torch.ones(2, dtype=torch.float64)}
    solution = solve(problem, ProximalGradient(blocks=("u",)), start)
    assert torch.equal(solution.point["v"][0], start["v"])
    torch.testing.assert_close(solution.point["u"][0], torch.full((2,), 2.0, dtype=torch.float64))
    assert solution.history[-1].step_sizes == {"u": 0.5}


def test_steps_per_block_from_bounds_and_from_a_mapping() -> None:
    problem = CompositeProblem(lambda u, v: (2 * u**2).sum() + (8 * v**2).sum(), bound={"u": 4.0, "v": 16.0},
                               blocks=("u", "v"))  # fmt: skip
    start = {name: torch.ones(2, dtype=torch.float64) for name in ("u", "v")}
    one = Stopping(max_steps=1)
    assert solve(problem, ProximalGradient(), start, stopping=one).history[0].step_sizes == {"u": 1 / 8, "v": 1 / 32}
    solution = solve(problem, ProximalGradient(Constant({"u": 0.25, "v": 0.0625})), start, stopping=one)
    assert not solution.point["u"][0].any() and not solution.point["v"][0].any()


def test_bounds_are_asked_for_again_as_often_as_set() -> None:
    asked: list[float] = []

    class Counting(CompositeProblem):
        def bound(self, point: Point, block: str) -> float:
            asked.append(float(point["x"][0]))
            return 2.0

    problem = Counting(lambda x: (x**2).sum())
    start = torch.ones((), dtype=torch.float64)
    for every, wanted in ((1, 2 + 5), (3, 2 + 1)):  # once in check, once in init, then in steps 1..5
        asked.clear()
        solve(problem, ProximalGradient(FromBound(0.5, every)), start, stopping=Stopping(max_steps=6, change=None))
        assert len(asked) == wanted
    assert asked[-1] == 0.5**3  # at the current point


def test_a_prox_that_does_not_act_by_entries() -> None:
    """Denoising by the nuclear norm: one prox of the data."""
    data = normal((4, 3), 0)
    problem = CompositeProblem(lambda x: 0.5 * (x - data).square().sum(), None, NuclearNorm(0.7), 1.0)
    got = minimise(problem, ProximalGradient(), torch.zeros_like(data))
    torch.testing.assert_close(got, NuclearNorm(0.7).prox(data, 1.0))


def test_bound_steps_never_increase_the_objective() -> None:
    history = solve(lasso(), ProximalGradient(), normal((8,), 3)).history
    values = [record.value for record in history]
    assert len(values) > 50
    assert all(after <= before * (1 + 1e-14) for before, after in itertools.pairwise(values))
    assert values[0] > 1.5 * values[-1]
    assert history[-1].extra["smooth"] + history[-1].extra["nonsmooth"] == history[-1].value
