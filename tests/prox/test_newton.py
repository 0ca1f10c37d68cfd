"""The safeguarded Newton iteration: where it looks, when it stops, what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from torchlift.prox import ACTIVATIONS, SmoothActivation
from torchlift.prox.smooth import ITERATIONS, solve_increasing

EPS = torch.finfo(torch.float64).eps


class Watched:
    """An equation g(t) = 0 that remembers where it was evaluated."""

    def __init__(self, equation: Callable[[Tensor], tuple[Tensor, Tensor]]) -> None:
        self.equation, self.points = equation, []

    def __call__(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.points.append(t.tolist())
        g, slope = self.equation(t)
        return g, slope, t.abs() + 1


def column(*entries: float) -> Tensor:
    return torch.tensor(entries, dtype=torch.float64)


def test_a_linear_equation_takes_one_step() -> None:
    watched = Watched(lambda t: (2 * t - 6, torch.full_like(t, 2.0)))
    root = solve_increasing(watched, column(0.0, 10.0), 2.0)
    assert root.tolist() == [3.0, 3.0]
    assert watched.points == [[0.0, 10.0], [3.0, 3.0]]


def test_a_root_at_the_start_is_left_alone_while_others_move() -> None:
    watched = Watched(lambda t: (t + t**3, 1 + 3 * t * t))
    root = solve_increasing(watched, column(0.0, 2.0, -2.0), 1.0)
    assert root.tolist()[0] == 0.0
    assert [points[0] for points in watched.points] == [0.0] * len(watched.points)
    assert root[1:].abs().max() <= 4 * EPS
    assert root[1] == -root[2]


@pytest.mark.parametrize("start", [3.0, -3.0])
def test_newton_that_leaves_the_bracket_is_replaced_by_bisection(start: float) -> None:
    """g = t/10 + arctan(9t): far from 0 Newton overshoots, from ±3 to the other side and beyond."""
    watched = Watched(lambda t: (t / 10 + torch.arctan(9 * t), 0.1 + 9 / (1 + 81 * t * t)))
    root = solve_increasing(watched, column(start), 0.1)
    assert abs(float(root)) <= 4 * EPS
    points = [point for (point,) in watched.points]
    g = start / 10 + float(torch.arctan(column(9 * start)))
    low, high = sorted((start, start - g / 0.1))
    assert all(low <= point <= high for point in points)
    for earlier, point in enumerate(points):
        # each evaluation closes the bracket on its side: later points lie between the nearest ones so far
        below = [t for t in points[: earlier + 1] if t < 0]
        above = [t for t in points[: earlier + 1] if t > 0]
        for later in points[earlier + 1 :]:
            assert max(below, default=low) <= later <= min(above, default=high), (point, later)
    assert len(points) < 20


def test_the_first_bisection_halves_the_bracket_of_the_slope_bound() -> None:
    """At t = 1, g = 1 and g' is so small that Newton leaves [−3, 1]."""
    watched = Watched(lambda t: (torch.where(t > 0, torch.ones_like(t), t), torch.full_like(t, 1e-3)))
    solve_increasing(watched, column(1.0), 0.25)
    assert watched.points[1] == [-1.0]


def test_what_is_not_a_number_counts_as_done() -> None:
    watched = Watched(lambda t: (t * torch.nan, torch.ones_like(t)))
    assert solve_increasing(watched, column(1.0), 1.0).tolist() == [1.0]
    assert len(watched.points) == 1


def test_a_residual_of_rounding_counts_as_done() -> None:
    """Up to 2 eps (size + slope·|t|), here 2 eps (3 + 2·2) = 14 eps."""
    for size, evaluations in ((13.9 * EPS, 1), (14.1 * EPS, 2)):
        watched = Watched(lambda t, size=size: (torch.where(t == 2, size, 0 * t), torch.full_like(t, 2.0)))
        solve_increasing(watched, column(2.0), 1.0)
        assert len(watched.points) == evaluations


def test_an_equation_without_a_root_ends() -> None:
    watched = Watched(lambda t: (torch.ones_like(t), torch.ones_like(t)))
    solve_increasing(watched, column(0.0), 1.0)
    assert len(watched.points) == 1 + ITERATIONS


SMOOTH = [each for kind in ACTIVATIONS.values() for each in kind.examples() if isinstance(each, SmoothActivation)]


@pytest.mark.parametrize("activation", SMOOTH, ids=repr)
def test_a_prox_needs_at_most_25_iterations(activation: SmoothActivation, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ITERATIONS` says: the residual must fall to rounding, and rounding must be recognised."""
    calls: list[int] = []
    linearise = type(activation).linearise
    monkeypatch.setattr(type(activation), "linearise", lambda self, t: calls.append(1) or linearise(self, t))
    sizes = torch.cat([torch.linspace(0, 40, 201), torch.logspace(-12, 6, 100)]).double()
    for step in (1e-6, 1e-3, 0.3, 3.0, 100.0, 1e4):
        calls.clear()
        activation.prox(torch.cat([sizes, -sizes]), step)
        assert len(calls) <= 25 + 3  # at the start, for the step that autograd records, and for σ itself
