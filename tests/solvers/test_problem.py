"""What a problem promises by default, and the one made of ordinary functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.core.problem import CompositeProblem, Problem
from torchlift.core.tensors import Factor, Point, add, scale
from torchlift.functions.regularisers import L1, NonNegative
from torchlift.solvers import ProximalGradient, Stopping, solve
from torchlift.solvers.examples import normal


class Smooth(Problem):
    """½‖a‖² + ‖b‖², several tensors in a block."""

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("a", "b")

    def smooth_value(self, point: Point) -> float:
        return sum(0.5 * float(t.square().sum()) for t in point["a"]) + float(point["b"][0].square().sum())

    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        doubled = point.merge(scale(point.select(("b",)), 2.0))
        return doubled if blocks is None else doubled.select(blocks)


class Sparse(Smooth):
    """With ‖b‖₁ but no prox."""

    def nonsmooth_value(self, point: Point) -> float:
        return float(point["b"][0].abs().sum())

    def smooth(self, block: str) -> bool:
        return block == "a"


class Proximal(Sparse):
    def prox(self, point: Point, steps: Mapping[str, Factor]) -> Point:
        assert list(point) == ["b"] and list(steps) == ["b"]  # smooth blocks are never sent here
        (b,) = point["b"]
        return point.like((b.sign() * (b.abs() - steps["b"]).clamp_min(0),))


START = Point({"a": [normal((2,), 0), normal((3, 2), 1)], "b": 3 + normal((4,), 2)})


def test_defaults_describe_a_smooth_problem() -> None:
    problem = Smooth()
    assert all(problem.smooth(b) and problem.proximable(b) and problem.elementwise(b) for b in problem.blocks)
    assert problem.bound(START, "a") is None and problem.prox(START, {}) is START
    assert problem.value(START) == problem.smooth_value(START) == sum(problem.parts(START).values())
    assert problem.gradient(START, ("b",)).blocks == ("b",)
    solution = solve(problem, ProximalGradient(0.3), START, stopping=Stopping(500))
    assert solution.converged and all(float(t.abs().max()) < 1e-6 for t in solution.point.tensors)


def test_a_nonsmooth_part_needs_a_prox() -> None:
    assert Sparse().proximable("a") and not Sparse().proximable("b") and not Sparse().elementwise("b")
    with pytest.raises(InvalidValueError, match=r"block 'b': expected a proximal map, got none"):
        solve(Sparse(), ProximalGradient(0.1), START)
    fine = solve(Sparse(), ProximalGradient(0.1, blocks=("a",)), START, stopping=Stopping(5))  # b is left alone
    assert fine.point["b"][0] is START["b"][0]


def test_only_nonsmooth_blocks_meet_the_prox() -> None:
    solution = solve(Proximal(), ProximalGradient(0.3), START, stopping=Stopping(500))
    assert solution.converged and not solution.point["b"][0].any()
    record = solution.history[0]
    assert record.extra["nonsmooth"] > 0 and record.value == pytest.approx(sum(record.extra[k] for k in record.extra))


def test_composite_gradients_by_autograd_agree_with_given_ones() -> None:
    def value(u: Tensor, v: Tensor) -> Tensor:
        return (u.sin() * u).sum() + (u.sum() * v).square().sum()

    def gradient(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return u.sin() + u * u.cos() + 2 * u.sum() * v.square().sum(), 2 * u.sum() ** 2 * v

    point = Point({"u": normal((3,), 0), "v": normal((2,), 1)})
    auto = CompositeProblem(value, blocks=("u", "v")).gradient(point)
    given = CompositeProblem(value, gradient, blocks=("u", "v")).gradient(point)
    for a, b in zip(auto.tensors, given.tensors, strict=True):
        torch.testing.assert_close(a, b)
        assert not a.requires_grad
    with torch.no_grad():
        again = CompositeProblem(value, blocks=("u", "v")).gradient(point, ("v",))
    assert again.blocks == ("v",) and torch.equal(again["v"][0], auto["v"][0])
    with pytest.raises(InvalidTypeError, match=r"a 0-d tensor.*Or give `gradient`"):
        CompositeProblem(lambda x: 3.0).gradient(Point({"x": normal((2,), 0)}))


def test_composite_regularisers_per_block() -> None:
    problem = CompositeProblem(
        lambda u, v: u.sum() + v.sum(), None, {"v": L1(2.0)}, {"u": 3.0}, blocks=("u", "v"), elementwise=True
    )
    point = Point({"u": normal((3,), 0), "v": normal((3,), 1)})
    assert problem.smooth("u") and not problem.smooth("v") and problem.elementwise("v")
    assert problem.bound(point, "u") == 3.0 and problem.bound(point, "v") is None
    assert problem.nonsmooth_value(point) == pytest.approx(2 * float(point["v"][0].abs().sum()))
    moved = problem.prox(point, {"u": 0.1, "v": 0.1})
    assert moved["u"][0] is point["u"][0]
    torch.testing.assert_close(moved["v"][0], L1(2.0).prox(point["v"][0], 0.1))
    steps = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    by_entry = problem.prox(point.select(("v",)), {"v": (steps,)})
    torch.testing.assert_close(by_entry["v"][0], L1(2.0).prox(point["v"][0], steps))
    infeasible = CompositeProblem(lambda x: x.sum(), None, NonNegative())
    assert infeasible.value(add(Point({"x": torch.zeros(2)}), Point({"x": torch.ones(2)}), -1.0)) == float("inf")
