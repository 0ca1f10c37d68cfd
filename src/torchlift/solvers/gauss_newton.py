"""Gauss–Newton steps with Levenberg–Marquardt damping, for nonlinear least squares."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import jacrev, vjp

from torchlift.core.checks import check_instance, check_interval, check_positive, check_size
from torchlift.core.cholesky import cholesky
from torchlift.core.derivatives import differentiable_twice
from torchlift.core.errors import invalid_value
from torchlift.core.problem import Problem
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point
from torchlift.solvers.base import NAN, Measure, Solver, State
from torchlift.solvers.conjugate_gradient import conjugate_gradient


class NonlinearLeastSquares(Problem):
    """f(x) = ½‖r(x)‖² for one tensor x, the block "x".

    Arguments:
        residual: r, a function of a tensor that torch.func can differentiate.
    """

    def __init__(self, residual: Callable[[Tensor], Tensor]) -> None:
        self.residual = residual

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("x",)

    @torch.no_grad()
    def smooth_value(self, point: Point) -> float:
        return 0.5 * float(self.residual(point["x"][0]).square().sum())

    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        residual, pull = vjp(self.residual, point["x"][0])[:2]
        return point.like(pull(residual.detach()))


@dataclass(frozen=True, eq=False)
class GaussNewtonState(State):
    """The point, the damping λ and the factor by which it grows after the next refusal."""

    damping: float
    growth: float

    @property
    def step_sizes(self) -> Mapping[str, float]:
        return {"x": 1 / self.damping}


@dataclass(frozen=True)
class GaussNewton(Solver[NonlinearLeastSquares, GaussNewtonState]):
    """Minimises ½‖r(x)‖² (Levenberg–Marquardt).

        (JᵀJ + λI)d = −Jᵀr,   x ← x + d if ½‖r‖² decreases

    λ follows the ratio of the decrease to the predicted one: it shrinks when
    the linear model is good and grows until a step is accepted. The value
    never increases; no step size is needed.

    Arguments:
        damping: λ > 0 to start with, relative to the largest diagonal entry of JᵀJ (or, by products, its curvature
            along the gradient).
        dense_up_to: build J up to this many unknowns; conjugate gradients with products otherwise.
        tolerance: relative residual of the conjugate gradients.
        trials: give up after so many refused steps in a row.

    Reference: Madsen, Nielsen & Tingleff, Methods for Non-Linear Least Squares
    Problems (2004), algorithm 3.16.
    """

    solves: ClassVar[str] = "sums of residuals"

    damping: float = 1e-3
    dense_up_to: int = 512
    tolerance: float = 1e-8
    trials: int = 50

    def __post_init__(self) -> None:
        check_positive("GaussNewton damping", self.damping)
        check_size("GaussNewton dense_up_to", self.dense_up_to, minimum=0)
        check_size("GaussNewton trials", self.trials)
        check_interval("GaussNewton tolerance", self.tolerance, "(0, 1)")

    def check(self, problem: NonlinearLeastSquares, point: Point) -> None:
        hint = "Use GradientDescent or ProximalGradient for other objectives."
        check_instance("GaussNewton", problem, NonlinearLeastSquares, "a NonlinearLeastSquares problem", hint)
        if point.blocks != ("x",) or len(point["x"]) != 1:
            invalid_value("GaussNewton start", "the block 'x' with one tensor", point)

    def init(self, problem: NonlinearLeastSquares, point: Point) -> GaussNewtonState:
        scale = max(self._model(problem, point["x"][0]).scale, 1e-12)
        return GaussNewtonState(0, point, NAN, self.damping * (scale if math.isfinite(scale) else 1.0), 2.0)

    def step(self, problem: NonlinearLeastSquares, state: GaussNewtonState) -> GaussNewtonState:
        (x,), damping, growth = state.point["x"], state.damping, state.growth
        model = self._model(problem, x)
        if not math.isfinite(model.value) or not bool(model.gradient.isfinite().all()):
            raise StepFailure(Result.NOT_FINITE, "the residual or its derivative in block 'x' is not finite")
        size = float(torch.linalg.vector_norm(model.gradient))
        for _ in range(self.trials if size > 0 else 0):
            d = model.solve(damping)
            if d is not None:
                new = state.point.like((x + d,))
                predicted = 0.5 * float((d * (damping * d - model.gradient)).sum())
                gain = (model.value - problem.smooth_value(new)) / predicted if predicted > 0 else math.nan
                if gain > 0:
                    damping *= max(1 / 3, 1 - (2 * gain - 1) ** 3)
                    return GaussNewtonState(state.count + 1, new, size, damping, 2.0)
                if abs(predicted) <= 100 * torch.finfo(x.dtype).eps * abs(model.value):
                    break  # the decrease would be lost in the rounding of the value
            damping, growth = damping * growth, 2 * growth
        else:
            if size > 0:
                raise StepFailure(Result.LINE_SEARCH_FAILED, f"{self.trials} dampings up to {damping:.2g} were refused")
        # the point cannot be improved beyond rounding: it stays, and the relative change is 0
        return GaussNewtonState(state.count + 1, state.point, size, damping, 2.0)

    def measure(self, problem: NonlinearLeastSquares, state: GaussNewtonState) -> Measure:
        return Measure(problem.value(state.point), extra={"damping": state.damping})

    def _model(self, problem: NonlinearLeastSquares, x: Tensor) -> _Model:
        if x.numel() <= self.dense_up_to:
            return _Dense(problem.residual, x)
        return _Products(problem.residual, x, self.tolerance)


class _Model:
    """r(x + d) ≈ r + Jd."""

    value: float
    gradient: Tensor
    scale: float

    def solve(self, damping: float) -> Tensor | None:
        """d = −(JᵀJ + λI)⁻¹Jᵀr; None where that has no factor, because λ is less than the rounding of JᵀJ."""
        raise NotImplementedError


class _Dense(_Model):
    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor) -> None:
        residual = function(x).reshape(-1)
        jacobian = jacrev(function)(x).reshape(residual.numel(), x.numel())
        self.gram = jacobian.T @ jacobian
        self.value = 0.5 * float(residual.square().sum())
        self.gradient = (jacobian.T @ residual).reshape(x.shape)
        self.scale = float(self.gram.diagonal().max())

    def solve(self, damping: float) -> Tensor | None:
        factor = cholesky(self.gram, damping)
        if factor is None:
            return None
        return -torch.cholesky_solve(self.gradient.reshape(-1, 1), factor).reshape(self.gradient.shape)


class _Products(_Model):
    """J only through products with vectors."""

    @torch.enable_grad()
    def __init__(self, function: Callable[[Tensor], Tensor], x: Tensor, tolerance: float) -> None:
        self.x, self.tolerance = x.detach().requires_grad_(), tolerance
        with differentiable_twice():
            self.residual = function(self.x)
        # Jᵀu is linear in u, so its derivative in u along v is Jv: reverse mode twice serves where
        # functions have no forward-mode derivative.
        self.weights = torch.zeros_like(self.residual, requires_grad=True)
        (self.pulled,) = torch.autograd.grad(self.residual, self.x, self.weights, create_graph=True)
        self.value = 0.5 * float(self.residual.detach().square().sum())
        self.gradient = self._pull(self.residual.detach())
        self.scale = self._curvature_along_gradient()

    def solve(self, damping: float) -> Tensor | None:
        def matrix(v: Tensor) -> Tensor:
            return self._gram(v) + damping * v

        return conjugate_gradient(matrix, -self.gradient, tolerance=self.tolerance).x

    def _pull(self, u: Tensor) -> Tensor:
        """Jᵀu."""
        return torch.autograd.grad(self.residual, self.x, u, retain_graph=True)[0]

    def _gram(self, v: Tensor) -> Tensor:
        """JᵀJv."""
        return self._pull(torch.autograd.grad(self.pulled, self.weights, v, retain_graph=True)[0])

    def _curvature_along_gradient(self) -> float:
        square = float(self.gradient.square().sum())
        return float((self.gradient * self._gram(self.gradient)).sum()) / square if square > 0 else 1.0
