"""Defaults as documented, the edges of what is allowed, and rules followed number by number."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torchlift.core.errors import TorchliftError
from torchlift.core.solution import Result
from torchlift.core.tensors import Point
from torchlift.functions.priors import PlugAndPlay
from torchlift.functions.regularisers import L1
from torchlift.operators import Dense, Identity
from torchlift.solvers import (
    ADMM,
    FISTA,
    PDHG,
    AdamScaling,
    Backtracking,
    BlockCoordinateDescent,
    CompositeProblem,
    Diminishing,
    Equals,
    FromBound,
    GaussNewton,
    GradientDescent,
    GroupNorm,
    HeavyBall,
    ImplicitStochasticGradient,
    LeastSquares,
    LinearisedBCD,
    Nesterov,
    NoMomentum,
    NonlinearLeastSquares,
    NoScaling,
    ProximalAdam,
    ProximalGradient,
    SaddleProblem,
    SquaredDistance,
    Stopping,
    Term,
    conjugate_gradient,
    power_iteration,
    ridge_least_squares,
    solve,
)
from torchlift.solvers.examples import lasso, normal, total_variation

X = torch.ones(3, dtype=torch.float64)
EYE = torch.eye(3, dtype=torch.float64)


def test_defaults_are_those_of_the_documentation() -> None:
    """A default that changes, changes the results of everyone who did not choose."""
    assert ADMM() == ADMM(1.0, 1.6, 50, 1024, 1e-10)
    assert PDHG() == PDHG(None, None, 1.0, True)
    assert GaussNewton() == GaussNewton(1e-3, 512, 1e-8, 50)
    assert BlockCoordinateDescent() == BlockCoordinateDescent(1e-8, 500, None)
    assert LinearisedBCD() == LinearisedBCD(ProximalGradient(), "forward", 1)
    assert ImplicitStochasticGradient() == ImplicitStochasticGradient(1.0, BlockCoordinateDescent(), 1)
    assert ProximalGradient() == ProximalGradient(FromBound(1.0, 1), NoMomentum(), NoScaling(), None, True)
    assert FISTA() == ProximalGradient(FromBound(), Nesterov(None, True))
    assert GradientDescent() == ProximalGradient(FromBound(), NoMomentum(), proximal=False)
    assert ProximalAdam() == ProximalGradient(1e-3, scaling=AdamScaling(0.9, 0.999, 1e-8, False))
    assert AdamScaling() == AdamScaling(0.9, 0.999, 1e-8, False)
    assert Backtracking() == Backtracking(1.0, 0.5, 1.3, 100)
    assert Diminishing(1.0).power == 0.5 and HeavyBall().beta == 0.9 and Nesterov() == Nesterov(None, True)
    assert Stopping() == Stopping(1000, "auto", None, None, None, 1e10)
    assert GroupNorm() == GroupNorm(1.0, 1)
    assert SquaredDistance(X).weight == LeastSquares(Dense(EYE), X).weight == 1.0 and Equals(X).tolerance == 0.0
    for function, wanted in {
        conjugate_gradient: {"tolerance": 1e-10, "max_steps": None, "batched": False},
        power_iteration: {"tolerance": 1e-6, "max_steps": 1000},
        ridge_least_squares: {"ridge": 0.0, "method": "auto", "tolerance": 1e-10},
        solve: {"record_every": 1, "stopping": None},
    }.items():
        parameters = inspect.signature(function).parameters
        assert {name: parameters[name].default for name in wanted} == wanted


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "relaxation of zero": (lambda: ADMM(relaxation=0.0), r"ADMM relaxation: expected a number in \(0, 2\)"),
    "penalty of zero": (lambda: ADMM(penalty=0.0), r"ADMM penalty: expected a number > 0"),
    "ADMM tolerance of zero": (lambda: ADMM(tolerance=0.0), r"ADMM tolerance: expected a number in \(0, 1\)"),
    "balance changes": (lambda: ADMM(balance_changes=-1), r"ADMM balance_changes: expected a whole number >= 0"),
    "size of a factor": (lambda: ADMM(cholesky_up_to=-1), r"ADMM cholesky_up_to: expected a whole number >= 0"),
    "sigma alone": (lambda: PDHG(sigma=0.1), r"PDHG: expected both tau and sigma"),
    "negative tau": (lambda: PDHG(tau=-0.1, sigma=0.1), r"PDHG tau: expected a number > 0"),
    "dense_up_to": (lambda: GaussNewton(dense_up_to=-1), r"GaussNewton dense_up_to: expected a whole number >= 0"),
    "GaussNewton trials": (lambda: GaussNewton(trials=0), r"GaussNewton trials: expected a whole number >= 1"),
    "GaussNewton tolerance of zero": (lambda: GaussNewton(tolerance=0.0), r"GaussNewton tolerance"),
    "GaussNewton tolerance of one": (lambda: GaussNewton(tolerance=1.0), r"GaussNewton tolerance"),
    "shrink of zero": (lambda: Backtracking(shrink=0.0), r"Backtracking shrink: expected a number in \(0, 1\)"),
    "power of zero": (lambda: Diminishing(1.0, 0.0), r"Diminishing power: expected a number in \(0, 1\]"),
    "no start of a schedule": (lambda: Diminishing(0.0), r"Diminishing start: expected a number > 0"),
    "factor of zero": (lambda: FromBound(0.0), r"FromBound factor: expected a number in \(0, 2\)"),
    "divergence of one": (lambda: Stopping(divergence=1.0), r"Stopping divergence: expected a number > 1"),
    "gap of all": (lambda: Stopping(gap=1.0), r"Stopping gap: expected a relative tolerance < 1"),
    "residual of zero": (lambda: Stopping(residual=0.0), r"Stopping residual: expected a number > 0"),
    "Nesterov beta of one": (lambda: Nesterov(beta=1.0), r"Nesterov beta: expected a number in \[0, 1\)"),
    "CG tolerance of one": (lambda: conjugate_gradient(lambda v: v, X, tolerance=1.0), r"a number in \(0, 1\)"),
    "CG of an empty batch": (lambda: conjugate_gradient(lambda v: v, EYE[:0], batched=True), r"b: expected a batch"),
    "power tolerance": (lambda: power_iteration(lambda v: v, X, tolerance=0.0), r"tolerance: expected a number > 0"),
    "power steps": (lambda: power_iteration(lambda v: v, X, max_steps=0), r"max_steps: expected a whole number >= 1"),
    "endless vector": (lambda: power_iteration(lambda v: v, X * math.inf), r"a finite vector that is not 0"),
    "inputs of a ridge": (lambda: ridge_least_squares(X, X), r"inputs: expected a matrix \(rows, features\)"),
    "no inputs": (lambda: ridge_least_squares(EYE[:0], EYE[:0]), r"inputs: expected a matrix"),
    "targets of a ridge": (lambda: ridge_least_squares(EYE, EYE[None].repeat(3, 1, 1)), r"targets: expected 3 rows"),
    "rows of a ridge": (lambda: ridge_least_squares(EYE, EYE[:2]), r"targets: expected 3 rows"),
    "precision of a ridge": (lambda: ridge_least_squares(EYE, EYE.float()), r"targets: expected"),
    "centre": (lambda: SquaredDistance(X * math.nan), r"SquaredDistance centre: expected finite values"),
    "target": (lambda: LeastSquares(Dense(EYE), X * math.inf), r"LeastSquares target: expected finite values"),
    "weight of least squares": (lambda: LeastSquares(Dense(EYE), X, 0.0), r"LeastSquares weight: expected a number"),
    "weight of groups": (lambda: GroupNorm(0.0), r"GroupNorm weight: expected a number > 0"),
    "tolerance of a constraint": (lambda: Equals(X, -1e-9), r"Equals tolerance: expected a number >= 0"),
    "tolerance that is none": (lambda: Equals(X, math.nan), r"Equals tolerance: expected a number >= 0"),
    "function among terms": (lambda: SaddleProblem((L1(1.0),)), r"SaddleProblem terms: expected Terms"),  # type: ignore[arg-type]
    "g without a prox": (lambda: SaddleProblem(total_variation().terms, g=3.0), r"SaddleProblem g"),  # type: ignore[arg-type]
    "two tensors": (
        lambda: solve(NonlinearLeastSquares(lambda x: x), GaussNewton(), {"x": [X, X]}),
        r"GaussNewton start: expected the block 'x' with one tensor",
    ),
    "two images": (
        lambda: solve(total_variation(), PDHG(), {"x": [torch.zeros(1, 1, 6, 6, dtype=torch.float64)] * 2}),
        r"PDHG start: expected the block 'x' with one tensor",
    ),
    "stranger": (
        lambda: solve(total_variation(), PDHG(), {"x": torch.zeros(1, 1, 6, 6).double(), "y": X}),
        r"PDHG start: expected the block 'x' with one tensor",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    attempt, message = REFUSED[case]
    with pytest.raises(TorchliftError, match=message):
        attempt()


def test_edges_that_are_allowed() -> None:
    assert Backtracking(growth=1.0).growth == 1 and Diminishing(1.0, 1.0).power == 1
    assert ADMM(balance_changes=0, cholesky_up_to=0) and GaussNewton(dense_up_to=0, trials=1)
    assert AdamScaling(0.0, 0.0).beta1 == 0 and Equals(X, 0.0).tolerance == 0
    assert torch.equal(ridge_least_squares(EYE, X, 0.0), X)


# The loop


def line(slope: float) -> CompositeProblem:
    """Walks by `slope` times the step size, for ever."""
    return CompositeProblem(lambda x: slope * x.sum(), lambda x: torch.full_like(x, slope))


ONE = torch.full((1,), 3.0, dtype=torch.float64)


@pytest.mark.parametrize(("step", "made"), [(100.0, 3), (397.0, 1), (398.0, 0)])
def test_divergence_is_a_multiple_of_one_more_than_the_start(step: float, made: int) -> None:
    """From 3 the limit is 100·(1 + 3) = 400, which may be reached but not passed."""
    solution = solve(line(-1.0), ProximalGradient(step), ONE, stopping=Stopping(divergence=100.0, change=None))
    assert solution.result is Result.DIVERGED and solution.state.count == made


def test_a_tolerance_that_is_met_exactly_is_met() -> None:
    """From 3 to 2 is a change of 1/2; halving 3 gives the residuals 3, 3/2, 3/4."""
    solution = solve(line(1.0), ProximalGradient(1.0), ONE, stopping=Stopping(5, change=0.5))
    assert solution.converged and solution.state.count == 1
    half = CompositeProblem(lambda x: 0.5 * x.square().sum(), lambda x: x)
    solution = solve(half, ProximalGradient(0.5), ONE, stopping=Stopping(9, change=None, residual=0.75))
    assert solution.converged and solution.state.count == 3


# Step sizes and momentum


def test_the_accelerated_sequence_by_hand() -> None:
    hessian = torch.tensor([1.0, 10.0], dtype=torch.float64)
    problem = CompositeProblem(lambda x: 0.5 * (hessian * x * x).sum(), lambda x: hessian * x)
    x = before = torch.ones(2, dtype=torch.float64)
    t, solver = 1.0, FISTA(0.09, restart=False)
    state = solver.init(problem, Point({"x": x}))
    for _ in range(6):
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        y = x + (t - 1) / following * (x - before)
        before, x, t = x, y - 0.09 * hessian * y, following
        state = solver.step(problem, state)
        torch.testing.assert_close(state.point["x"][0], x, rtol=1e-13, atol=1e-14)
        assert state.residual == pytest.approx(float((hessian * y).norm()))
        assert state.momentum.t == pytest.approx(t) and state.momentum.restarts == 0


def test_a_restart_forgets_the_momentum() -> None:
    problem = CompositeProblem(lambda x: 0.5 * x.square().sum(), lambda x: x)
    solver, states = FISTA(0.3), []
    state = solver.init(problem, Point({"x": ONE}))
    for _ in range(20):
        state = solver.step(problem, state)
        states.append(state)
    (first, *_) = [k for k, each in enumerate(states) if each.momentum.restarts == 1]
    at = states[first]
    assert at.momentum.t == 1.0 and torch.equal(at.momentum.previous["x"][0], at.point["x"][0])
    torch.testing.assert_close(states[first + 1].point["x"][0], 0.7 * at.point["x"][0])  # a plain step
    assert states[-1].momentum.restarts >= 2


def test_backtracking_finds_the_largest_power_that_decreases() -> None:
    """On ½·8x² every α ≤ 1/8 decreases enough and nothing larger does."""
    problem = CompositeProblem(lambda x: 4 * x.square().sum(), lambda x: 8 * x)

    def sizes(rule: Backtracking, steps: int = 3) -> list[float]:
        solution = solve(problem, GradientDescent(rule), X, stopping=Stopping(steps, change=None))
        return [record.step_sizes["x"] for record in solution.history]

    assert sizes(Backtracking(1.0, growth=1.0), 1) == [0.125]
    assert sizes(Backtracking(0.9, 0.5, growth=1.0), 2) == [0.9 / 8] * 2
    assert sizes(Backtracking(0.01, 0.5, 1.0), 1) == [0.08]  # enlarged in the first step only
    grown = sizes(Backtracking(0.1, 0.5, 1.2))
    assert grown == pytest.approx([0.1, 0.12, 0.072])  # 0.2 refused; 0.12; 0.144 refused, halved


def test_backtracking_gives_up_after_its_trials() -> None:
    uphill = CompositeProblem(lambda x: x.square().sum(), lambda x: -2 * x)
    solution = solve(uphill, GradientDescent(Backtracking(1.0, 0.5, 1.0, trials=4)), X)
    assert solution.result is Result.LINE_SEARCH_FAILED
    assert "4 trials down to a step of 0.12" in solution.message


# Conjugate gradients


@pytest.mark.parametrize("batched", [False, True])
def test_by_default_ten_steps_per_unknown(batched: bool) -> None:
    calls: list[float] = []

    def restless(v: Tensor) -> Tensor:
        calls.append(1.0)
        return v * torch.tensor([1.0, 2.0 + len(calls) % 3], dtype=torch.float64)

    b = normal((3, 2) if batched else (2,), 0)
    solution = conjugate_gradient(restless, b, tolerance=1e-12, batched=batched)
    assert solution.result is Result.MAX_STEPS and solution.steps == 20 == len(calls)


def test_residuals_are_relative_to_each_right_hand_side() -> None:
    b = torch.tensor([[3.0, 4.0], [0.0, 0.0], [30.0, 40.0]], dtype=torch.float64)
    scale = torch.tensor([[1.0, 2.0], [1.0, 1.0], [1.0, 8.0]], dtype=torch.float64)
    one = conjugate_gradient(lambda v: scale * v, b, max_steps=1, batched=True)
    residuals = (b - scale * one.x).norm(dim=1) / torch.tensor([5.0, 1.0, 50.0], dtype=torch.float64)
    assert one.residual == pytest.approx(float(residuals.max())) and residuals[1] == 0


# Gauss–Newton


def test_the_damping_of_a_linear_problem_shrinks_threefold() -> None:
    """The model is exact, so the gain is 1 and λ ← λ·max(1/3, 1 − 1)."""
    matrix = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    problem = NonlinearLeastSquares(lambda x: matrix @ x - 1)
    solver, start = GaussNewton(0.5), Point({"x": torch.zeros(2, dtype=torch.float64)})
    state = solver.init(problem, start)
    assert state.damping == pytest.approx(0.5 * 5) and state.growth == 2.0  # the largest diagonal entry is 5
    new = solver.step(problem, state)
    system = matrix.T @ matrix + 2.5 * torch.eye(2, dtype=torch.float64)
    torch.testing.assert_close(new.point["x"][0], torch.linalg.solve(system, matrix.T @ torch.ones(3).double()))
    assert new.damping == pytest.approx(2.5 / 3) and new.growth == 2.0
    assert new.residual == pytest.approx(math.hypot(3.0, 2.0)) and new.step_sizes["x"] == pytest.approx(3 / 2.5)
    assert solver.measure(problem, new).extra["damping"] == new.damping


def test_refused_dampings_grow_by_two_four_eight() -> None:
    problem = NonlinearLeastSquares(lambda x: x - x.detach() + 1.0 + (x.detach() - 2).abs())
    solution = solve(problem, GaussNewton(1.0, trials=5), torch.full((1,), 2.0, dtype=torch.float64))
    assert "5 dampings up to 3.3e+04 were refused" in solution.message  # 2·4·8·16·32


# Power iteration


def test_power_iteration_normalises_and_counts() -> None:
    weights = torch.tensor([2.0, 1.0], dtype=torch.float64)
    pair = power_iteration(lambda v: weights * v, torch.tensor([3.0, 4.0], dtype=torch.float64), max_steps=1)
    assert pair.value == pytest.approx(0.36 * 2 + 0.64) and pair.steps == 1 and pair.result is Result.MAX_STEPS
    torch.testing.assert_close(pair.vector, torch.tensor([6.0, 4.0], dtype=torch.float64) / math.sqrt(52))
    done = power_iteration(lambda v: weights * v, torch.tensor([7.0, 0.0], dtype=torch.float64))
    assert done.result is Result.CONVERGED and done.steps == 1 and done.value == 2.0


# Saddle-point methods


def test_balancing_of_admm_by_a_factor_of_ten() -> None:
    solver, problem = ADMM(penalty=4.0, balance_changes=2), total_variation()
    state = solver.init(problem, Point({"x": torch.zeros(1, 1, 6, 6, dtype=torch.float64)}))
    scaled = (torch.ones(2, dtype=torch.float64),)
    for primal, dual, factor in ((10.0, 1.0, 1.0), (10.1, 1.0, 2.0), (1.0, 10.0, 1.0), (1.0, 10.1, 0.5)):
        penalty, (w,) = solver._balance(state, primal, dual, scaled)
        assert penalty == 4.0 * factor and torch.equal(w, scaled[0] / factor)
    assert solver._balance(replace(state, changes=2), 99.0, 1.0, scaled)[0] == 4.0
    assert solver._balance(replace(state, changes=1), 99.0, 1.0, scaled)[0] == 8.0


def test_balancing_of_pdhg_by_a_falling_pace() -> None:
    solver, problem = PDHG(ratio=1.0), total_variation()
    state = solver.init(problem, Point({"x": torch.zeros(1, 1, 6, 6, dtype=torch.float64)}))
    state = replace(state, tau=1.0, sigma=1.0, norm=1.0, curvature=0.0, pace=0.5)
    for primal, dual in ((1.5, 1.0), (1.0, 1.5), (1.0, 1.0)):
        assert solver._balance(state, primal, dual) == (1.0, 1.0, 0.5, 0)
    for primal, dual, before, pace, way in ((1.6, 1, 0, 0.45, 1), (1.6, 1, 1, 0.495, 1), (1, 1.6, 1, 0.45, -1)):
        tau, sigma, new, direction = solver._balance(replace(state, direction=before), primal, dual)
        assert (new, direction) == (pytest.approx(pace), way)
        assert sigma / tau == pytest.approx((1 - pace) ** (2 * way)) and tau * sigma == pytest.approx(1.0)
    doubled = replace(state, norm=2.0)  # a dual residual counts ‖K‖ times
    assert solver._balance(doubled, 2.0, 1.0)[3] == 0 and solver._balance(doubled, 1.0, 1.0)[3] == -1
    assert replace(solver, balance=False)._balance(state, 9.0, 1.0)[3] == 0


def test_one_step_of_pdhg_by_hand() -> None:
    """½(x − 3)² + |2x| from x = 1, p = 0.5."""
    term = Term(L1(1.0), 2.0 * Identity((1,)))
    problem = SaddleProblem((term,), g=SquaredDistance(torch.full((1, 1), 3.0, dtype=torch.float64)))
    solver = PDHG(tau=0.5, sigma=0.5)
    one, half = (torch.full((1, 1), v, dtype=torch.float64) for v in (1.0, 0.5))
    state = solver.step(problem, solver.init(problem, Point({"x": one, "dual": half})))
    x = (1 - 0.5 * 2 * 0.5 + 0.5 * 3) / 1.5
    p = min(max(0.5 + 0.5 * 2 * (2 * x - 1), -1), 1)
    assert float(state.point["x"][0]) == pytest.approx(x) and float(state.point["dual"][0]) == pytest.approx(p)
    primal, dual = abs((1 - x) / 0.5 + 2 * (p - 0.5)), abs((0.5 - p) / 0.5 - 2 * (1 - x))
    assert (state.primal_residual, state.dual_residual) == pytest.approx((primal, dual))
    assert state.residual == pytest.approx(max(primal, dual)) and state.step_sizes == {"x": 0.5, "dual": 0.5}
    measure = solver.measure(problem, state)
    value, bound = 0.5 * (x - 3) ** 2 + abs(2 * x), -(-2 * p * 3 + (2 * p) ** 2 / 2)
    assert measure.value == pytest.approx(value)
    unknown = Term(PlugAndPlay(L1(1.0).prox, L1(1.0).value), 2.0 * Identity((1,)))
    assert solver.measure(SaddleProblem((unknown,), g=problem.g), state).gap is None  # no conjugate is known
    assert measure.extra["dual_value"] == pytest.approx(bound)
    assert measure.gap == pytest.approx((value - bound) / (1 + abs(value) + abs(bound)))


def test_one_step_of_admm_by_hand() -> None:
    """½(x − 3)² + |2x| with ρ = 2 and γ = 1.5, from x = 1."""
    term = Term(GroupNorm(1.0, None), 2.0 * Identity((1,)))
    problem = SaddleProblem((term,), f=SquaredDistance(torch.full((1, 1), 3.0, dtype=torch.float64)))
    one, half = (torch.full((1, 1), v, dtype=torch.float64) for v in (1.0, 0.5))
    for size in (1024, 0):
        solver = ADMM(2.0, 1.5, 0, size)
        start = solver.init(problem, Point({"x": one, "dual": half}))
        state = solver.step(problem, start)
        z, w = 2.0, 0.25
        x = (3 + 2 * 2 * (z - w)) / (1 + 2 * 4)
        s = 1.5 * 2 * x + (1 - 1.5) * z + w
        new = math.copysign(max(abs(s) - 0.5, 0), s)
        assert float(state.point["x"][0]) == pytest.approx(x) and float(state.point["split"][0]) == pytest.approx(new)
        assert float(state.scaled[0]) == pytest.approx(s - new)
        assert float(state.point["dual"][0]) == pytest.approx(2 * (s - new))
        primal, dual = abs(2 * x - new), 2 * 2 * abs(new - z)
        assert (state.primal_residual, state.dual_residual) == pytest.approx((primal, dual))
        assert state.residual == pytest.approx(max(primal, dual)) and state.step_sizes == {"dual": 2.0}
        assert solver.measure(problem, state).value == pytest.approx(0.5 * (x - 3) ** 2 + abs(new))


def test_the_relative_step_of_a_lasso_is_recorded() -> None:
    solution = solve(lasso(), ProximalGradient(), normal((8,), 3), stopping=Stopping(2, change=None))
    states = [solve(lasso(), ProximalGradient(), normal((8,), 3), stopping=Stopping(k, change=None)) for k in (1, 2)]
    first, second = (each.point["x"][0] for each in states)
    assert solution.history[1].change == pytest.approx(float((second - first).norm() / second.norm()))
