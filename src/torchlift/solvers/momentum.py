"""Momentum as a part of proximal gradient: where the gradient is taken and where the step starts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from torchlift.core.checks import check_interval
from torchlift.core.tensors import Point, add, dot, subtract

T = TypeVar("T", float, Tensor)


@dataclass(frozen=True, eq=False)
class MomentumState:
    """The point before the current one, and the counter t of accelerated schemes."""

    previous: Point
    t: float = 1.0
    restarts: int = 0


class Momentum(ABC):
    """Step k goes from `base` along the gradient at `at`, both made of the last two points."""

    def init(self, point: Point) -> MomentumState:
        return MomentumState(point)

    @abstractmethod
    def points(self, state: MomentumState, point: Point) -> tuple[Point, Point]:
        """(at, base)."""

    @abstractmethod
    def update(self, state: MomentumState, point: Point, at: Point, new: Point) -> MomentumState:
        """After the step from `point` to `new` with the gradient at `at`."""


@dataclass(frozen=True)
class NoMomentum(Momentum):
    """at = base = x_k."""

    def points(self, state: MomentumState, point: Point) -> tuple[Point, Point]:
        return point, point

    def update(self, state: MomentumState, point: Point, at: Point, new: Point) -> MomentumState:
        return MomentumState(new)  # nothing is remembered, so nothing extra is stored


@dataclass(frozen=True)
class HeavyBall(Momentum):
    """Heavy-ball momentum (with a prox: iPiano).

        x_{k+1} = prox_{αg}(x_k − α∇f(x_k) + β(x_k − x_{k−1}))

    Converges for α < 2(1 − β)/L. On a quadratic with eigenvalues in [μ, L] the
    best choice is √β = (√L − √μ)/(√L + √μ), α = 4/(√L + √μ)², with rate √β.

    Arguments:
        beta: β in [0, 1).

    Reference: Polyak, Some methods of speeding up the convergence of iteration
    methods (1964); Ochs et al., iPiano, SIAM Journal on Imaging Sciences 7 (2014).
    """

    beta: float = 0.9

    def __post_init__(self) -> None:
        check_interval("HeavyBall beta", self.beta, "[0, 1)")

    def points(self, state: MomentumState, point: Point) -> tuple[Point, Point]:
        return point, add(point, subtract(point, state.previous), self.beta)

    def update(self, state: MomentumState, point: Point, at: Point, new: Point) -> MomentumState:
        return MomentumState(point)


@dataclass(frozen=True)
class Nesterov(Momentum):
    """Nesterov's acceleration (with a prox: FISTA).

        y_k = x_k + β_k(x_k − x_{k−1}),   x_{k+1} = prox_{αg}(y_k − α∇f(y_k))

    with β_k = (t_{k−1} − 1)/t_k, t_k = (1 + √(1 + 4t_{k−1}²))/2, or with a constant β.
    Needs α ≤ 1/L. With β = (√κ − 1)/(√κ + 1) and α = 1/L the rate on a quadratic
    of condition κ is 1 − 1/√κ.

    Arguments:
        beta: a constant β in [0, 1); None for the sequence t_k.
        restart: forget the momentum when it points uphill, ⟨y_k − x_{k+1}, x_{k+1} − x_k⟩ > 0,
            which recovers linear convergence without knowing κ. Only with the sequence t_k.

    Reference: Beck & Teboulle, SIAM Journal on Imaging Sciences 2 (2009), section 4;
    O'Donoghue & Candès, Foundations of Computational Mathematics 15 (2015), section 3.2.
    """

    beta: float | None = None
    restart: bool = True

    def __post_init__(self) -> None:
        if self.beta is not None:
            check_interval("Nesterov beta", self.beta, "[0, 1)")

    def points(self, state: MomentumState, point: Point) -> tuple[Point, Point]:
        weight = (state.t - 1) / next_momentum(state.t) if self.beta is None else self.beta
        if weight == 0:
            return point, point
        at = add(point, subtract(point, state.previous), weight)
        return at, at

    def update(self, state: MomentumState, point: Point, at: Point, new: Point) -> MomentumState:
        if self.beta is not None:
            return MomentumState(point)
        if self.restart and at is not point and dot(subtract(at, new), subtract(new, point)) > 0:
            return MomentumState(new, 1.0, state.restarts + 1)
        return MomentumState(point, next_momentum(state.t), state.restarts)


def next_momentum(t: T) -> T:
    """t_{k+1} = (1 + √(1 + 4t_k²))/2, the sequence of Nesterov's weights (t_k − 1)/t_{k+1}; for numbers and tensors."""
    return (1 + (1 + 4 * t * t) ** 0.5) / 2  # pyright: ignore[reportReturnType]
