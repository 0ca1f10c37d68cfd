"""Block methods on a quadratic of three blocks, against iterates written out."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchlift.core.errors import TorchliftError
from torchlift.core.problem import CompositeProblem
from torchlift.core.tensors import Point
from torchlift.functions.regularisers import L1
from torchlift.solvers import (
    BlockCoordinateDescent,
    Constant,
    HeavyBall,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalGradient,
    Stopping,
    solve,
)

NAMES = ("a", "b 1", "b 2", "c")
H = torch.tensor(
    [[4.0, 1.0, 0.5, -1.0], [1.0, 3.0, 0.2, 0.3], [0.5, 0.2, 2.0, 0.7], [-1.0, 0.3, 0.7, 5.0]], dtype=torch.float64
)
Q = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)
START = torch.tensor([2.0, -1.0, 1.5, 3.0], dtype=torch.float64)


def value(*x: Tensor) -> Tensor:
    joined = torch.cat(x)
    return 0.5 * joined @ H @ joined - Q @ joined


def quadratic(bounded: bool = True) -> CompositeProblem:
    bounds = dict(zip(NAMES, H.diagonal().tolist(), strict=True))
    return CompositeProblem(value, bound=bounds if bounded else None, blocks=NAMES)


def blocks(x: Tensor) -> Point:
    return Point({name: x[i : i + 1] for i, name in enumerate(NAMES)})


def joined(point: Point) -> Tensor:
    return torch.cat([point[name][0] for name in NAMES])


def sweep(x: Tensor, groups: list[list[int]], steps: dict[int, float], repeats: int = 1) -> Tensor:
    """Gradient steps in groups of coordinates that see the same point."""
    for group in groups:
        moved = x.clone()
        for i in group:
            own = x.clone()
            for _ in range(repeats):
                own[i] -= steps[i] * (H[i] @ own - Q[i])
            moved[i] = own[i]
        x = moved
    return x


EXACT = {i: 1 / float(H[i, i]) for i in range(4)}
SWEEPS = {
    "forward": [[0], [1], [2], [3]],
    "backward": [[0], [3], [2], [1]],
    "odd-even": [[0], [1, 3], [2]],
    "jacobi": [[0, 1, 2, 3]],
}


@pytest.mark.parametrize("order", SWEEPS)
@pytest.mark.parametrize("repeats", [1, 3])
def test_sweeps_in_their_order(order: str, repeats: int) -> None:
    parts = ProximalGradient(Constant(0.1))
    solver = LinearisedBCD(parts, order, repeats)  # type: ignore[arg-type]
    state = solver.init(quadratic(), blocks(START))
    assert state.count == 0 and math.isnan(state.residual)
    x = START
    for count in (1, 2):
        state = solver.step(quadratic(), state)
        x = sweep(x, SWEEPS[order], dict.fromkeys(range(4), 0.1), repeats)
        torch.testing.assert_close(joined(state.point), x, rtol=1e-13, atol=1e-13)
        assert state.count == count
    assert dict(state.step_sizes) == dict.fromkeys(NAMES, 0.1)


def test_steps_come_from_the_bound_of_each_block() -> None:
    state = LinearisedBCD().step(quadratic(), LinearisedBCD().init(quadratic(), blocks(START)))
    torch.testing.assert_close(joined(state.point), sweep(START, SWEEPS["forward"], EXACT))
    gradients, x = [], START
    for i in range(4):
        gradients.append(float(H[i] @ x - Q[i]))
        x = sweep(x, [[i]], EXACT)
    assert state.residual == pytest.approx(math.hypot(*gradients))


def test_two_blocks_or_one_need_no_empty_groups() -> None:
    pair = CompositeProblem(lambda u, v: (u**2).sum() + (v**2).sum(), bound=2.0, blocks=("u", "v"))
    solver = LinearisedBCD(sweep="odd-even")
    assert solver._groups(pair) == [("u",), ("v",)]
    assert solver._groups(CompositeProblem(lambda x: x.sum(), bound=1.0)) == [("x",)]


def test_parts_by_name_and_by_first_word() -> None:
    parts = {"a": ProximalGradient(0.1), "b": ProximalGradient(0.2), "b 2": ProximalGradient(0.3)}
    solver = LinearisedBCD(parts | {"c": ProximalGradient(0.05)})
    state = solver.step(quadratic(), solver.init(quadratic(), blocks(START)))
    assert dict(state.step_sizes) == {"a": 0.1, "b 1": 0.2, "b 2": 0.3, "c": 0.05}
    x = sweep(START, SWEEPS["forward"], {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.05})
    torch.testing.assert_close(joined(state.point), x)
    with pytest.raises(TorchliftError, match=r"a step for block 'c', got steps for \['a', 'b', 'b 2'\]"):
        LinearisedBCD(parts).check(quadratic(), blocks(START))


def test_each_block_keeps_its_momentum() -> None:
    solver = LinearisedBCD(ProximalGradient(0.1, HeavyBall(0.5)))
    state = solver.init(quadratic(), blocks(START))
    x, before = START.clone(), START.clone()
    for _ in range(3):
        state = solver.step(quadratic(), state)
        for i in range(4):
            old = x[i].clone()
            x[i] += 0.5 * (x[i] - before[i]) - 0.1 * (H[i] @ x - Q[i])
            before[i] = old
    torch.testing.assert_close(joined(state.point), x)


@pytest.mark.parametrize("bounded", [True, False], ids=["bounds", "backtracking"])
def test_exact_descent_is_gauss_seidel(bounded: bool) -> None:
    problem, solver = quadratic(bounded), BlockCoordinateDescent()
    state, x = solver.init(problem, blocks(START)), START
    for count in (1, 2, 3):
        before, state = x, solver.step(problem, state)
        x = sweep(x, SWEEPS["forward"], EXACT)
        torch.testing.assert_close(joined(state.point), x, rtol=1e-6, atol=1e-6)
        assert state.count == count and state.residual == pytest.approx(float((x - before).norm()), rel=1e-5)
    measure = solver.measure(problem, state)
    assert measure.value == pytest.approx(float(value(x))) and measure.extra["smooth"] == measure.value


def test_exact_descent_in_an_order_of_ones_own() -> None:
    solver = BlockCoordinateDescent(blocks=("c", "a"))
    state = solver.step(quadratic(), solver.init(quadratic(), blocks(START)))
    torch.testing.assert_close(joined(state.point), sweep(START, [[3], [0]], EXACT), rtol=1e-6, atol=1e-6)


def test_the_tolerance_is_a_factor_of_the_first_residual() -> None:
    """Steps of half the curvature's inverse halve the gradient: the residual that stops is 2^-k of the first."""

    def steps(tolerance: float, limit: int = 500) -> int:
        asked: list[float] = []

        class Watched(CompositeProblem):
            def gradient(self, point: Point, blocks: object = None) -> Point:
                asked.append(float(point["x"][0]))
                return super().gradient(point, blocks)  # type: ignore[arg-type]

        problem = Watched(lambda x: 0.5 * (x**2).sum() + 0.05 * (x**4).sum(), bound=4.0)
        solver = BlockCoordinateDescent(tolerance, limit)
        solver.step(problem, solver.init(problem, Point({"x": torch.ones(1, dtype=torch.float64)})))
        return len(asked)

    assert steps(1e-1) < steps(1e-4) < steps(1e-9)
    assert steps(1e-9, 2) == 1 + 2  # the first step, then two more


def test_a_block_that_is_done_is_left_alone() -> None:
    x = torch.linalg.solve(H, Q)
    state = BlockCoordinateDescent().step(quadratic(), BlockCoordinateDescent().init(quadratic(), blocks(x)))
    torch.testing.assert_close(joined(state.point), x, rtol=1e-12, atol=1e-12)


def test_what_is_not_better_is_dropped() -> None:
    class Wrong(CompositeProblem):
        """Its own minimiser goes uphill in one block."""

        def minimise(self, point: Point, block: str, tolerance: float, *_: object) -> Point:
            assert tolerance == 1e-8
            return point.merge(Point({block: torch.full((1,), 9.0 if block == "u" else 0.0, dtype=torch.float64)}))

    problem = Wrong(lambda u, v: (u**2).sum() + (v**2).sum(), blocks=("u", "v"))
    one = torch.ones(1, dtype=torch.float64)
    state = BlockCoordinateDescent().step(problem, BlockCoordinateDescent().init(problem, Point({"u": one, "v": one})))
    assert float(state.point["u"][0]) == 1.0 and float(state.point["v"][0]) == 0.0
    assert state.residual == 1.0


class WithoutProx:
    def value(self, x: Tensor) -> Tensor:
        return x.abs().sum()


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no tolerance": (lambda: BlockCoordinateDescent(0.0), r"BlockCoordinateDescent tolerance: expected a number > 0"),
    "no inner steps": (lambda: BlockCoordinateDescent(inner_steps=0), r"inner_steps: expected a whole number >= 1"),
    "unknown block": (
        lambda: BlockCoordinateDescent(blocks=("a", "z")).check(quadratic(), blocks(START)),
        r"blocks: expected some of \['a', 'b 1', 'b 2', 'c'\], got \['z'\]",
    ),
    "no prox": (
        lambda: BlockCoordinateDescent().check(
            CompositeProblem(lambda x: x.sum(), None, WithoutProx(), 1.0),  # type: ignore[arg-type]
            Point({"x": START}),
        ),
        r"BlockCoordinateDescent on block 'x': expected a proximal map",
    ),
    "other blocks": (
        lambda: BlockCoordinateDescent().check(quadratic(), Point({"x": START})),
        r"BlockCoordinateDescent start: expected the blocks",
    ),
    "sweep": (lambda: LinearisedBCD(sweep="up"), r"sweep: expected one of 'forward', 'backward', 'odd-even', 'jacobi'"),  # type: ignore[arg-type]
    "no steps": (lambda: LinearisedBCD(steps=0), r"LinearisedBCD steps: expected a whole number >= 1"),
    "part": (lambda: LinearisedBCD({"a": 0.1}), r"part 'a': expected a ProximalGradient, got float"),  # type: ignore[dict-item]
    "part for all": (lambda: LinearisedBCD("fista"), r"part '': expected a ProximalGradient"),  # type: ignore[arg-type]
    "other blocks, linearised": (
        lambda: LinearisedBCD().check(quadratic(), Point({"x": START})),
        r"LinearisedBCD start: expected the blocks",
    ),
    "no bound": (lambda: LinearisedBCD().check(quadratic(False), blocks(START)), r"finite Lipschitz constant"),
    "tau in a constant": (
        lambda: ImplicitStochasticGradient(Constant(0.1)),  # type: ignore[arg-type]
        r"tau: expected a number or a schedule.*Give the number itself",
    ),
    "no tau": (lambda: ImplicitStochasticGradient(0.0), r"tau: expected a number > 0"),
    "inner in words": (lambda: ImplicitStochasticGradient(inner="bcd"), r"inner: expected a Solver, got str"),  # type: ignore[arg-type]
    "no inner steps, implicit": (lambda: ImplicitStochasticGradient(inner_steps=0), r"inner_steps: expected a whole"),
    "full batch": (
        lambda: solve(quadratic(), ImplicitStochasticGradient(), blocks(START)),
        r"expected a StochasticProblem.*inner solver itself",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    attempt, message = REFUSED[case]
    with pytest.raises(TorchliftError, match=message):
        attempt()


def test_a_nonsmooth_block_converges_to_the_lasso() -> None:
    """min ½(u − v)² + ½(v − 3)² + |u|: optimality 2v = u + 3 and u = v − 1 give u = 1, v = 2."""

    def smooth(u: Tensor, v: Tensor) -> Tensor:
        return 0.5 * ((u - v) ** 2).sum() + 0.5 * ((v - 3) ** 2).sum()

    problem = CompositeProblem(smooth, None, {"u": L1(1.0)}, {"u": 1.0, "v": 2.0}, blocks=("u", "v"))
    zero = torch.zeros(1, dtype=torch.float64)
    for solver in (BlockCoordinateDescent(), LinearisedBCD()):
        solution = solve(problem, solver, {"u": zero, "v": zero}, stopping=Stopping(200, change=1e-12))
        assert solution.converged
        assert float(solution.point["u"][0]) == pytest.approx(1.0, abs=1e-8)
        assert float(solution.point["v"][0]) == pytest.approx(2.0, abs=1e-8)
