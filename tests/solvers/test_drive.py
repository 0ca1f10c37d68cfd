"""The loop: why it stops, what it records, what it saves when things go wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchlift.core.errors import TorchliftError
from torchlift.core.solution import Record, Result, SolverError
from torchlift.core.tensors import Point
from torchlift.operators import Identity
from torchlift.solvers import (
    ADMM,
    FISTA,
    Backtracking,
    CompositeProblem,
    Constant,
    GaussNewton,
    GradientDescent,
    GroupNorm,
    NonlinearLeastSquares,
    ProximalGradient,
    SaddleProblem,
    Solution,
    Stopping,
    Term,
    solve,
)
from torchlift.solvers.base import State
from torchlift.solvers.examples import lasso, ridge

START = torch.ones(8, dtype=torch.float64)
TWO = {"u": torch.ones(2, dtype=torch.float64), "v": torch.ones(3, dtype=torch.float64)}


def failing_at(step: int, bad: float, where: str = "v") -> CompositeProblem:
    """½‖u‖² + ½‖v‖² whose gradient in one block breaks in the given step (from 1)."""
    calls = itertools.count(1)

    def gradient(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        broken = next(calls) == step
        return (u + bad if broken and where == "u" else u), (v + bad if broken and where == "v" else v)

    return CompositeProblem(
        lambda u, v: 0.5 * (u.square().sum() + v.square().sum()), gradient, bound=1.0, blocks=("u", "v")
    )


def converged() -> Solution:
    return solve(lasso(), FISTA(), START)


def max_steps() -> Solution:
    return solve(lasso(), ProximalGradient(), START, stopping=Stopping(max_steps=3))


def time_limit() -> Solution:
    return solve(
        lasso(), ProximalGradient(), START, stopping=Stopping(time_limit=5.0), clock=itertools.count().__next__
    )


def stopped() -> Solution:
    return solve(lasso(), ProximalGradient(), START, callback=lambda record, _: record.step == 4)


def interrupted() -> Solution:
    return solve(lasso(), ProximalGradient(), START, callback=interrupt_at(4))


def not_finite() -> Solution:
    return solve(failing_at(4, math.nan), ProximalGradient(), TWO)


def diverged() -> Solution:
    return solve(ridge(), GradientDescent(10.0), START)


def line_search_failed() -> Solution:
    wrong = CompositeProblem(lambda x: x.square().sum(), lambda x: -2 * x)  # not the gradient of the value
    return solve(wrong, ProximalGradient(Backtracking(trials=20)), START)


def not_positive_definite() -> Solution:
    blind = SaddleProblem((Term(GroupNorm(1.0, None), 0.0 * Identity((8,))),))
    return solve(blind, ADMM(), START[None])


PRODUCERS: dict[Result, Callable[[], Solution]] = {
    Result.CONVERGED: converged,
    Result.MAX_STEPS: max_steps,
    Result.TIME_LIMIT: time_limit,
    Result.STOPPED: stopped,
    Result.INTERRUPTED: interrupted,
    Result.NOT_FINITE: not_finite,
    Result.DIVERGED: diverged,
    Result.LINE_SEARCH_FAILED: line_search_failed,
    Result.NOT_POSITIVE_DEFINITE: not_positive_definite,
}


def interrupt_at(step: int) -> Callable[[Record, State], None]:
    def callback(record: Record, state: State) -> None:
        if record.step == step:
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize("result", Result)
def test_every_code_is_produced(result: Result) -> None:
    solution = PRODUCERS[result]()
    assert solution.result is result
    assert result.value.removesuffix(".") in solution.message and "step" in solution.message
    assert solution.converged == (result is Result.CONVERGED)
    assert result.code == result.name.lower()
    assert all(bool(tensor.isfinite().all()) for tensor in solution.point.tensors)
    assert solution.point is solution.state.point


@pytest.mark.parametrize("result", Result)
def test_failure_raises_on_request_only(result: Result) -> None:
    solution = PRODUCERS[result]()
    bad = {Result.NOT_FINITE, Result.DIVERGED, Result.LINE_SEARCH_FAILED, Result.NOT_POSITIVE_DEFINITE}
    assert solution.failed == (result in bad)
    if result not in bad:
        assert solution.raise_if_failed() is solution
    if result is Result.CONVERGED:
        assert solution.raise_if_failed(unfinished=True) is solution
        return
    with pytest.raises(SolverError, match="step") as caught:
        solution.raise_if_failed(unfinished=True)
    assert caught.value.result is result and isinstance(caught.value, TorchliftError)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("block", ["u", "v"])
@pytest.mark.parametrize("step", [1, 5])
@pytest.mark.parametrize("solver", [ProximalGradient(0.1), FISTA(0.1), ProximalGradient(Backtracking(0.1))])
def test_nan_names_step_and_block_and_keeps_the_last_finite_state(
    bad: float, block: str, step: int, solver: ProximalGradient
) -> None:
    seen: list[State] = []
    solution = solve(failing_at(step, bad, block), solver, TWO, callback=lambda _, state: seen.append(state))
    assert solution.result is Result.NOT_FINITE
    assert f"in step {step}:" in solution.message and f"block {block!r}" in solution.message
    assert solution.state.count == step - 1 and len(solution.history) == step - 1
    if seen:
        assert solution.state is seen[-1]
    else:
        assert torch.equal(solution.point["u"][0], TWO["u"])


def test_a_nan_objective_at_a_finite_point() -> None:
    problem = CompositeProblem(lambda x: x.sum() * (math.nan if float(x[0]) < 0.5 else 1.0), torch.ones_like)
    solution = solve(problem, ProximalGradient(0.2), START)
    assert solution.result is Result.NOT_FINITE and "in step 3: the objective is nan" in solution.message
    assert solution.state.count == 2 and len(solution.history) == 2


def test_an_objective_without_a_lower_bound() -> None:
    problem = CompositeProblem(lambda x: x.sum() if float(x[0]) > 0.5 else -math.inf, torch.ones_like)
    assert solve(problem, ProximalGradient(0.2), START).result is Result.DIVERGED


def test_divergence_names_the_block_that_grew_most() -> None:
    problem = CompositeProblem(
        lambda u, v: u.square().sum() + v.square().sum(), lambda u, v: (2 * u, 2 * v), blocks=("u", "v")
    )
    solution = solve(problem, ProximalGradient(Constant({"u": 0.1, "v": 5.0})), TWO)
    assert solution.result is Result.DIVERGED and "block 'v' grew most" in solution.message
    assert float(solution.point["v"][0].norm()) < 1e10 * (1 + 5**0.5)
    early = solve(problem, ProximalGradient(Constant({"u": 0.1, "v": 5.0})), TWO, stopping=Stopping(divergence=100.0))
    assert early.state.count < solution.state.count


def test_single_precision_overflow_is_divergence_not_nan() -> None:
    """The squares of 1e20 overflow in single precision although the numbers do not."""
    problem = CompositeProblem(lambda x: -x.sum(), lambda x: -torch.ones_like(x))
    solution = solve(problem, ProximalGradient(1e20), torch.zeros(4))
    assert solution.result is Result.DIVERGED


@pytest.mark.parametrize("where", ["callback", "gradient"])
def test_ctrl_c_returns_the_state_so_far(where: str) -> None:
    calls = itertools.count(1)

    def gradient(x: Tensor) -> Tensor:
        if where == "gradient" and next(calls) == 5:
            raise KeyboardInterrupt
        return x

    problem = CompositeProblem(lambda x: 0.5 * x.square().sum(), gradient, bound=2.0)
    solution = solve(problem, ProximalGradient(), START, callback=interrupt_at(4) if where == "callback" else None)
    assert solution.result is Result.INTERRUPTED and "after step 4" in solution.message
    assert solution.state.count == 4
    torch.testing.assert_close(solution.point["x"][0], START / 2**4)


def test_other_errors_are_not_swallowed() -> None:
    def callback(record: Record, state: State) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        solve(lasso(), FISTA(), START, callback=callback)


def test_the_time_limit_is_per_call_and_monotonic() -> None:
    solution = time_limit()
    assert "after step 3" in solution.message  # the clock is read twice in a step: 0 | 1 2 | 3 4 | 5 6
    assert [record.seconds for record in solution.history] == [1, 3, 5]
    again = solve(lasso(), ProximalGradient(), state=solution.state, stopping=Stopping(time_limit=5.0),
                  clock=itertools.count(100).__next__)  # fmt: skip
    assert again.state.count == 2 * solution.state.count


def test_records() -> None:
    solution = solve(lasso(), FISTA(), START, stopping=Stopping(max_steps=25, change=None), record_every=10)
    assert [record.step for record in solution.history] == [10, 20, 25]  # the last one always
    record = solution.history[0]
    assert record.value == pytest.approx(record.extra["smooth"] + record.extra["nonsmooth"])
    assert record.residual > 0 and record.change > 0 and record.gap is None and record.step_sizes["x"] > 0
    assert record.to_dict()["step"] == 10 and isinstance(record.to_dict()["extra"], dict)
    assert solve(lasso(), FISTA(), START, record_every=0).history == ()


def test_values_are_evaluated_only_when_recorded() -> None:
    calls = itertools.count()

    def value(x: Tensor) -> Tensor:
        next(calls)
        return 0.5 * x.square().sum()

    problem = CompositeProblem(value, lambda x: x, bound=2.0)
    solve(problem, GradientDescent(), START, stopping=Stopping(20, change=None), record_every=10)
    assert next(calls) == 2


def test_residual_and_change_stop_where_they_say() -> None:
    by_residual = solve(lasso(), ProximalGradient(), START, stopping=Stopping(change=None, residual=1e-3))
    residuals = [record.residual for record in by_residual.history]
    assert by_residual.converged and residuals[-1] <= 1e-3 < residuals[-2]
    by_change = solve(lasso(), ProximalGradient(), START, stopping=Stopping(change=1e-4))
    changes = [record.change for record in by_change.history]
    assert by_change.converged and changes[-1] <= 1e-4 < changes[-2]
    x, y = by_change.point["x"][0], solve(lasso(), ProximalGradient(), state=by_change.state,
                                          stopping=Stopping(1)).point["x"][0]  # fmt: skip
    assert float((x - y).norm() / y.norm()) < 1e-4


def test_the_residual_is_the_gradient_where_g_is_zero() -> None:
    solution = solve(ridge(), GradientDescent(), START, stopping=Stopping(max_steps=1))
    gradient = ridge().gradient(Point({"x": START}))["x"][0]
    assert solution.history[0].residual == pytest.approx(float(gradient.norm()))


def test_the_automatic_tolerance_follows_the_precision() -> None:
    double = solve(lasso(), FISTA(), START)
    assert double.converged and double.history[-1].change <= 2**-26 < double.history[-2].change
    problem = CompositeProblem(lambda x: (x - 1).cosh().sum(), lambda x: torch.sinh(x - 1))
    single = solve(problem, GradientDescent(0.1), torch.zeros(3))
    assert single.converged and single.point["x"][0].dtype == torch.float32
    assert single.history[-1].change <= 3.46e-4 < single.history[-2].change
    assert Stopping().change_for(torch.float32) == pytest.approx(3.45e-4, rel=1e-2)


def test_starting_at_the_minimum_stops_at_once() -> None:
    problem = CompositeProblem(lambda x: x.square().sum(), lambda x: 2 * x, bound=2.0)
    solution = solve(problem, GradientDescent(), torch.zeros(3))
    assert solution.converged and solution.state.count == 1
    jump = solve(problem, GradientDescent(), torch.ones(3), stopping=Stopping(max_steps=1))
    assert jump.history[0].change > 1 and not jump.converged  # from somewhere to exactly 0
    slow = solve(problem, GradientDescent(0.1), torch.ones(3))  # towards 0, relative to itself always by the same
    assert slow.converged and 0 < float(slow.point["x"][0].max()) < 1e-6


def test_resuming_after_an_interruption_is_as_if_nothing_happened() -> None:
    stopping = Stopping(max_steps=30, change=None)
    whole = solve(lasso(), FISTA(Backtracking()), START, stopping=stopping)
    first = solve(lasso(), FISTA(Backtracking()), START, stopping=stopping, callback=interrupt_at(13))
    rest = solve(lasso(), FISTA(Backtracking()), state=first.state, stopping=Stopping(max_steps=17, change=None))
    assert torch.equal(whole.point["x"][0], rest.point["x"][0])
    assert [r.value for r in whole.history] == [r.value for r in (*first.history, *rest.history)]


def test_gauss_newton_reports_nan() -> None:
    problem = NonlinearLeastSquares(lambda x: torch.log(x))
    solution = solve(problem, GaussNewton(), torch.tensor([-1.0], dtype=torch.float64))
    assert solution.result is Result.NOT_FINITE and "block 'x'" in solution.message and "in step 1" in solution.message
