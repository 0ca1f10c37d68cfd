"""Corners of formulas and numbers of states, each written out: what small faults would change unseen."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from contracts.solver_cases import Regression, two_blocks
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.core.problem import CompositeProblem, Problem
from torchlift.core.tensors import Point
from torchlift.functions.regularisers import L1
from torchlift.operators import Identity
from torchlift.solvers import (
    ADMM,
    FISTA,
    PDHG,
    Anchored,
    Backtracking,
    BlockCoordinateDescent,
    Cosine,
    Diagonal,
    FromBound,
    GaussNewton,
    GroupNorm,
    ImplicitStochasticGradient,
    LinearisedBCD,
    Matrix,
    Nesterov,
    NonlinearLeastSquares,
    ProximalAdam,
    ProximalGradient,
    Result,
    SaddleProblem,
    SquaredDistance,
    StepRule,
    Stopping,
    Term,
    conjugate_gradient,
    ridge_least_squares,
    solve,
)
from torchlift.solvers.examples import lasso, normal, total_variation
from torchlift.solvers.momentum import MomentumState
from torchlift.solvers.state import state_from_parts, state_points, state_to_parts


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# States


@pytest.mark.parametrize("solver", [FISTA(), ProximalAdam(0.1)], ids=["fista", "adam"])
def test_the_points_of_a_state_are_found_by_the_paths_of_their_tensors(solver: ProximalGradient) -> None:
    state = solver.init(lasso(), Point({"x": normal((8,), 0)}))
    state = solver.step(lasso(), state)
    points, tensors = state_points(state), state_to_parts(state)[0]
    assert points["point"] is state.point and points["momentum.previous"] is state.momentum.previous
    assert set(points) == {"point", "momentum.previous", "scaling.first", "scaling.second"}
    found = {f"{path}.{block}.{i}": t for path, p in points.items() for block in p for i, t in enumerate(p[block])}
    assert found.keys() == tensors.keys() and all(found[path] is tensors[path] for path in found)


@pytest.mark.parametrize("changed", [lambda t: t[:-1], lambda t: t.float()], ids=["shape", "dtype"])
def test_a_saved_tensor_of_another_shape_or_precision_is_refused(changed: Callable[[Tensor], Tensor]) -> None:
    state = FISTA().init(lasso(), Point({"x": normal((8,), 0)}))
    tensors, numbers = state_to_parts(state)
    tensors["point.x.0"] = changed(tensors["point.x.0"])
    with pytest.raises(InvalidValueError, match=r"saved tensor 'point.x.0': expected torch.float64 of shape \(8,\)"):
        state_from_parts(state, tensors, numbers)


def test_a_state_made_of_its_parts_goes_on_with_identical_steps() -> None:
    solver, problem = FISTA(), lasso()
    state = solver.init(problem, Point({"x": normal((8,), 0)}))
    later = solver.step(problem, solver.step(problem, state))
    again = state_from_parts(state, *state_to_parts(later))
    assert (again.count, again.residual, again.momentum.t) == (later.count, later.residual, later.momentum.t)
    one, two = (solver.step(problem, each).point["x"][0] for each in (later, again))
    assert torch.equal(one, two)


def test_a_state_of_words_has_no_parts() -> None:
    state = FISTA().init(lasso(), Point({"x": normal((8,), 0)}))
    with pytest.raises(InvalidTypeError, match=r"state field 'rule': expected a tensor, a number, a point"):
        state_to_parts(replace(state, rule="constant"))


def test_admm_goes_on_with_all_the_duals_it_is_given() -> None:
    problem, solver = total_variation(), ADMM(penalty=4.0)
    state = solver.init(problem, Point({"x": normal((1, 1, 6, 6), 1)}))
    for _ in range(3):
        state = solver.step(problem, state)
    residuals = {"primal_residual": state.primal_residual, "dual_residual": state.dual_residual}
    assert solver.measure(problem, state).extra == residuals and state.count == 3
    again = solver.init(problem, state.point)
    assert len(again.scaled) == 2
    for w, p in zip(again.scaled, state.point["dual"], strict=True):
        torch.testing.assert_close(4.0 * w, p)


def test_the_penalty_of_admm_changes_so_often_and_no_more() -> None:
    problem, solver = total_variation(), ADMM(penalty=1e6, balance_changes=3)
    state = solver.init(problem, Point({"x": normal((1, 1, 6, 6), 1)}))
    penalties = [state.penalty]
    for _ in range(8):
        state = solver.step(problem, state)
        penalties.append(state.penalty)
        assert state.changes == sum(a != b for a, b in itertools.pairwise(penalties))
    assert state.changes == 3 and state.penalty == 1e6 / 8


def test_an_implicit_state_tells_its_tau() -> None:
    solver = ImplicitStochasticGradient(0.25)
    state = solver.init(Regression(), Point({"x": normal((5,), 0)}))
    new = solver.step(Regression(), state)
    assert state.step_sizes == new.step_sizes == {"x": 0.25}
    assert new.residual == pytest.approx(float((new.point["x"][0] - state.point["x"][0]).norm()) / 0.25)


def test_batches_are_asked_for_by_their_number() -> None:
    asked: list[int] = []

    class Watched(Regression):
        def batch(self, count: int, parameters: Point) -> tuple[Problem, Point]:
            asked.append(count)
            return super().batch(count, parameters)

    solve(Watched(), ImplicitStochasticGradient(), normal((5,), 0), stopping=Stopping(3, change=None))
    assert asked == [0, 0, 1, 2]  # the first one is also looked at before the first step


def test_seconds_are_counted_from_the_call() -> None:
    clock = itertools.count(100).__next__
    solution = solve(lasso(), FISTA(), normal((8,), 0), stopping=Stopping(3, change=None), clock=clock)
    assert [record.seconds for record in solution.history] == [1, 2, 3]


# Blocks


def test_every_other_block_of_six() -> None:
    names = tuple("abcdef")
    six = CompositeProblem(lambda *x: sum((each**2).sum() for each in x), bound=2.0, blocks=names)
    assert LinearisedBCD(sweep="odd-even")._groups(six) == [("a",), ("b", "d", "f"), ("c", "e")]
    assert LinearisedBCD(sweep="backward")._groups(six) == [(name,) for name in "afedcb"]


@pytest.mark.parametrize(
    ("bound", "rule"),
    [(0.5, FromBound(every=10**9)), (None, Backtracking()), (0.0, Backtracking()), (math.inf, Backtracking())],
)
def test_inner_steps_come_from_a_bound_that_says_something(bound: float | None, rule: StepRule) -> None:
    class Bounded(CompositeProblem):
        def bound(self, point: Point, block: str) -> float | None:
            return bound

    problem, point = Bounded(lambda x: (x**2).sum()), Point({"x": vector(3.0)})
    inner = BlockCoordinateDescent()._inner(problem, point, "x")
    assert inner == ProximalGradient(rule, Nesterov(), blocks=("x",))


@pytest.mark.parametrize("solver", [LinearisedBCD(), BlockCoordinateDescent()], ids=["linearised", "exact"])
def test_the_parts_of_the_value_are_recorded(solver: LinearisedBCD) -> None:
    problem, point = two_blocks(), Point({"a": normal((3,), 7), "b": normal((4,), 8)})
    measure, parts = solver.measure(problem, solver.init(problem, point)), problem.parts(point)
    assert measure.extra == parts and len(parts) == 2 and measure.value == sum(parts.values())


def test_an_anchor_leaves_the_nonsmooth_part_alone() -> None:
    problem, x = lasso(), Point({"x": normal((8,), 1)})
    anchored = Anchored(problem, Point({"x": normal((8,), 2)}), 0.7)
    assert torch.equal(anchored.prox(x, {"x": 0.5})["x"][0], L1(0.3).prox(x["x"][0], 0.5))
    assert anchored.nonsmooth_value(x) == problem.nonsmooth_value(x) > 0
    assert anchored.value(x) == pytest.approx(anchored.smooth_value(x) + problem.nonsmooth_value(x))
    assert not anchored.smooth("x") and anchored.proximable("x") and anchored.elementwise("x")


def test_an_anchor_pulls_only_the_blocks_that_it_holds() -> None:
    problem = two_blocks()
    point = Point({"a": normal((3,), 7), "b": normal((4,), 8)})
    anchored = Anchored(problem, Point({"a": normal((3,), 9)}), 0.7)
    assert torch.equal(anchored.gradient(point, ("b",))["b"][0], problem.gradient(point, ("b",))["b"][0])
    pull = 0.7 * (point["a"][0] - anchored.anchor["a"][0])
    torch.testing.assert_close(anchored.gradient(point)["a"][0], problem.gradient(point)["a"][0] + pull)
    assert anchored.bound(point, "b") == problem.bound(point, "b")


# Failures


def test_ctrl_c_inside_a_batch_ends_the_whole() -> None:
    class Impatient(Regression):
        def batch(self, count: int, parameters: Point) -> tuple[Problem, Point]:
            problem, start = super().batch(count, parameters)
            return (CompositeProblem(lambda x: x.sum(), interrupt, bound=1.0) if count == 2 else problem), start

    def interrupt(x: Tensor) -> Tensor:
        raise KeyboardInterrupt

    solver = ImplicitStochasticGradient(0.05, FISTA(), 3)
    solution = solve(Impatient(), solver, normal((5,), 0), stopping=Stopping(9, change=None))
    assert solution.result is Result.INTERRUPTED and solution.state.count == 2


def test_a_block_too_large_to_square_does_not_hide_a_nan() -> None:
    def gradient(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(u, 1e200), v * math.nan

    problem = CompositeProblem(lambda u, v: u.sum() + v.sum(), gradient, blocks=("u", "v"))
    solution = solve(problem, ProximalGradient(1.0), {"u": vector(1.0, 1.0), "v": vector(1.0)})
    assert solution.result is Result.NOT_FINITE and "block 'v' is not finite" in solution.message


def test_implicit_steps_need_the_parameters() -> None:
    with pytest.raises(InvalidValueError, match=r"ImplicitStochasticGradient start: expected the blocks \['x'\]"):
        solve(Regression(), ImplicitStochasticGradient(), {"y": normal((5,), 0)})


def test_a_value_that_is_none_is_not_the_fault_of_the_line_search() -> None:
    problem = CompositeProblem(lambda x: x.sum() * math.nan, lambda x: 8 * x)
    solution = solve(problem, ProximalGradient(Backtracking()), vector(1.0))
    assert solution.result is Result.NOT_FINITE and "the smooth part of the objective is nan" in solution.message


def test_one_step_of_pdhg_with_a_smooth_part_by_hand() -> None:
    """½(x − 4)² + |2x| from x = 1, p = 0.5, the first part by its gradient."""
    term = Term(GroupNorm(1.0, None), 2.0 * Identity((1,)))
    problem = SaddleProblem((term,), f=SquaredDistance(torch.full((1, 1), 4.0).double()))
    solver, start = PDHG(tau=0.2, sigma=0.1), Point({"x": vector(1.0)[None], "dual": vector(0.5)[None]})
    state = solver.step(problem, solver.init(problem, start))
    x = 1 - 0.2 * (1 - 4 + 2 * 0.5)
    p = 0.5 + 0.1 * 2 * (2 * x - 1)
    assert float(state.point["x"][0]) == pytest.approx(x) and float(state.point["dual"][0]) == pytest.approx(p)
    assert state.primal_residual == pytest.approx(abs((1 - x) / 0.2 + (x - 1) + 2 * (p - 0.5)))
    assert state.dual_residual == pytest.approx(abs((0.5 - p) / 0.1 - 2 * (1 - x)))


def test_conjugate_gradients_of_admm_say_why_they_stopped() -> None:
    class Concave(SquaredDistance):
        def normal(self, v: Tensor) -> Tensor:
            return -v

    zero = Term(GroupNorm(1.0, None), 0.0 * Identity((2,)))
    problem = SaddleProblem((zero,), f=Concave(torch.ones(1, 2).double()))
    solution = solve(problem, ADMM(cholesky_up_to=0), torch.zeros(1, 2).double())
    assert solution.result is Result.NOT_POSITIVE_DEFINITE
    assert "in the conjugate gradients of the x-update" in solution.message


# Momentum and step sizes


def test_momentum_that_points_nowhere_is_kept() -> None:
    """A restart asks for ⟨y − x⁺, x⁺ − x⟩ > 0; held by a constraint, x⁺ = x gives 0."""
    x, ahead = Point({"x": vector(1.0, 0.0)}), Point({"x": vector(1.0, -1.0)})
    state = Nesterov().update(MomentumState(Point({"x": vector(1.0, 1.0)}), 2.0), x, ahead, x)
    assert state.restarts == 0 and state.t == pytest.approx((1 + 17**0.5) / 2) and state.previous is x


def test_a_step_is_enlarged_only_for_a_lower_value() -> None:
    flat = CompositeProblem(lambda x: 0 * x.sum(), torch.zeros_like)
    solution = solve(flat, ProximalGradient(Backtracking(0.5)), vector(1.0), stopping=Stopping(1))
    assert solution.history[0].step_sizes == {"x": 0.5}


def test_any_step_will_do_where_the_function_does_not_depend_on_a_block() -> None:
    problem = CompositeProblem(lambda u, v: 2 * v.square().sum(), bound={"u": 0.0, "v": 4.0}, blocks=("u", "v"))
    state = FromBound(0.5).init(problem, problem.blocks, Point({"u": vector(1.0), "v": vector(1.0)}))
    assert state.sizes == (1.0, 0.5 / (2 * 4))


@pytest.mark.parametrize("function", [GroupNorm(0.3), SquaredDistance(vector(2.0)), L1(0.3)])
def test_a_prox_without_a_step_has_step_one(function: GroupNorm) -> None:
    x = normal((2, 3), 0)
    assert torch.equal(function.prox(x), function.prox(x, 1.0)) and not torch.equal(function.prox(x), x)


def test_the_ends_of_what_is_allowed() -> None:
    level = Cosine(0.25, 4, 0.25)
    assert [level.size(count) for count in (0, 2, 4, 9)] == [0.25] * 4
    epsilon = torch.finfo(torch.float64).eps
    assert ADMM(relaxation=0.5).relaxation == 0.5
    assert Stopping(change=epsilon).change_for(torch.float64) == epsilon


def test_metrics_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"Diagonal weights of 'x': expected numbers > 0, got 0.0"):
        Diagonal(vector(1.0, 0.0))
    with pytest.raises(InvalidValueError, match=r"Matrix matrix: expected a square matrix, got shape \(2, 3\)"):
        Matrix(normal((2, 3), 0))
    with pytest.raises(InvalidValueError, match=r"Diagonal weights: expected weights for block 'x', got only \['y'\]"):
        ProximalGradient(0.1, scaling=Diagonal({"y": vector(1.0)})).check(lasso(), Point({"x": normal((8,), 0)}))
    smooth = CompositeProblem(lambda x: x.square().sum())
    with pytest.raises(InvalidValueError, match=r"Matrix on block 'x': expected a last axis of 3, got shape \(3, 2\)"):
        ProximalGradient(0.1, scaling=Matrix(torch.eye(3).double())).check(smooth, Point({"x": normal((3, 2), 0)}))


# Linear systems


def test_in_a_batch_each_sample_stops_as_if_alone() -> None:
    scale, b = torch.stack([vector(1.0, 1.5, 2.0), vector(1.0, 9.0, 200.0)]), normal((2, 3), 0)
    batch = conjugate_gradient(lambda v: scale * v, b, tolerance=0.2, batched=True)
    alone = [conjugate_gradient(lambda v, i=i: scale[i] * v, b[i], tolerance=0.2) for i in range(2)]
    assert 0 < alone[0].steps < alone[1].steps == batch.steps
    torch.testing.assert_close(batch.x, torch.stack([each.x for each in alone]), rtol=1e-13, atol=0)


def test_the_scale_of_the_damping_by_products_is_the_curvature_along_the_gradient() -> None:
    """JᵀJ = (5 1; 1 2) and the gradient −(3, 2): 65/13 = 5; without a gradient, 1."""
    matrix = torch.stack([vector(2.0, 0.0), vector(0.0, 1.0), vector(1.0, 1.0)])
    solver, problem = GaussNewton(0.5, dense_up_to=0), NonlinearLeastSquares(lambda x: matrix @ x - 1)
    assert solver.init(problem, Point({"x": torch.zeros(2).double()})).damping == pytest.approx(0.5 * 5)
    solved = NonlinearLeastSquares(lambda x: matrix @ x)
    assert solver.init(solved, Point({"x": torch.zeros(2).double()})).damping == pytest.approx(0.5)
    constant = NonlinearLeastSquares(lambda x: 0 * x + 1)  # damped all the same
    assert GaussNewton(0.5).init(constant, Point({"x": torch.zeros(2).double()})).damping == pytest.approx(0.5e-12)


def test_the_residual_of_a_system_for_zero_is_absolute() -> None:
    scale, start = vector(1.0, 2.0), vector(3.0, 4.0)
    solution = conjugate_gradient(lambda v: scale * v, torch.zeros_like(start), start, max_steps=1)
    assert solution.result is Result.MAX_STEPS
    assert solution.residual == pytest.approx(float((scale * solution.x).norm()))


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_the_smaller_gram_matrix_is_factorised(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, factorise = [], torch.linalg.cholesky_ex
    monkeypatch.setattr(torch.linalg, "cholesky_ex", lambda a: sizes.append(tuple(a.shape)) or factorise(a))
    monkeypatch.delattr(torch.linalg, "svd")  # only for matrices that have lost their rank
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


@pytest.mark.parametrize("scale", [2.0**-40, 1.0, 2.0**40])
def test_nearly_dependent_columns_at_any_scale(scale: float) -> None:
    """Squaring loses the second singular value, whatever the units: a Cholesky factor gives (1.67, 1.33)."""
    x = torch.stack([vector(1.0, 1.0), vector(1.0, 1 + 1.3 * 2.0**-25)])
    wanted = vector(1.0, 2.0)
    got = ridge_least_squares(scale * x, scale * (x @ wanted))
    torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0)


def test_gauss_newton_damps_more_where_a_factor_fails() -> None:
    """JᵀJ of rank one and a damping below its rounding: a failed factor is no stationary point."""
    problem = NonlinearLeastSquares(lambda x: torch.stack([1e4 * (x.sum() - 1)] * 2))
    found = solve(problem, GaussNewton(1e-18), torch.zeros(2).double())
    assert found.result is Result.CONVERGED
    assert float(problem.smooth_value(found.point)) < 1e-10
