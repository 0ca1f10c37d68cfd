# pyright: reportPrivateImportUsage=false
"""Scaling as a part of proximal gradient: which direction stands in for the gradient."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_finite, check_interval, check_positive
from torchlift.core.cholesky import cholesky
from torchlift.core.errors import invalid_value
from torchlift.core.problem import Problem
from torchlift.core.tensors import Point, as_point, dot, zeros_like


@dataclass(frozen=True, eq=False)
class ScalingState:
    """Moment estimates; points without tensors where there are none."""

    first: Point
    second: Point
    count: int = 0


class Scaling(ABC):
    """The step is x − αd with d = P⁻¹∇f, followed by the prox with step α, or αP⁻¹ where `metric` gives P⁻¹."""

    #: Whether x − αd decreases f for small α with the metric P, as a line search needs.
    descent: bool = True
    #: Multiplies the step of the prox; anything but 1 solves another problem.
    prox_scale: float = 1.0

    def check(self, problem: Problem, blocks: Sequence[str], point: Point) -> None:
        """Refuse blocks whose prox does not fit the metric."""
        return

    def init(self, point: Point) -> ScalingState:
        return ScalingState(Point({}), Point({}))

    @abstractmethod
    def direction(self, state: ScalingState, gradient: Point) -> tuple[Point, ScalingState]:
        """d, and the state after this gradient."""

    def metric(self, state: ScalingState) -> Point | None:
        """P⁻¹ by entry where the prox must use it, None for the plain step."""
        return None

    def square(self, difference: Point) -> float:
        """⟨v, P v⟩."""
        return dot(difference, difference)


@dataclass(frozen=True)
class NoScaling(Scaling):
    """P = I."""

    def direction(self, state: ScalingState, gradient: Point) -> tuple[Point, ScalingState]:
        return gradient, state


@dataclass(frozen=True)
class AdamScaling(Scaling):
    """Adam's direction, with a prox (the source's "Adam variant").

        m ← β₁m + (1 − β₁)∇f,   q ← β₂q + (1 − β₂)(∇f)²
        x ← prox_{αg}(x − α m̂/(√q̂ + ε)),   m̂ = m/(1 − β₁ᵏ), q̂ = q/(1 − β₂ᵏ)

    The source's prox has the plain step α although the gradient is scaled, so a
    fixed point minimises f + g only where scaling cannot change the prox
    (constraints on entries, g = 0). With `matched` the prox has the step
    α/(√q̂ + ε) of each entry, and fixed points are minimisers of f + g.

    Arguments:
        beta1, beta2: β₁, β₂ in [0, 1).
        eps: ε > 0.
        matched: scale the prox like the gradient; needs a prox by entries.
        prox_scale: c in prox_{cαg}. Training objectives are means over B samples, so that the threshold of z is αμλ/B,
            while Adam's direction does not know B; the source prints αμλ, which is c = B.

    Reference: Kingma & Ba, Adam (2015), algorithm 1; Melchior et al., Proximal
    Adam: robust adaptive update scheme for constrained optimization (2019).
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    matched: bool = False
    prox_scale: float = 1.0

    descent = False

    def __post_init__(self) -> None:
        check_interval("AdamScaling beta1", self.beta1, "[0, 1)")
        check_interval("AdamScaling beta2", self.beta2, "[0, 1)")
        check_positive("AdamScaling eps", self.eps)
        check_positive("AdamScaling prox_scale", self.prox_scale)

    def check(self, problem: Problem, blocks: Sequence[str], point: Point) -> None:
        if self.matched:
            _check_elementwise("AdamScaling with matched=True", problem, blocks, "Use matched=False.")

    def init(self, point: Point) -> ScalingState:
        return ScalingState(zeros_like(point), zeros_like(point))

    def direction(self, state: ScalingState, gradient: Point) -> tuple[Point, ScalingState]:
        if not gradient.tensors:
            return gradient, state
        first = torch._foreach_lerp(state.first.tensors, gradient.tensors, 1 - self.beta1)
        second = torch._foreach_mul(state.second.tensors, self.beta2)
        torch._foreach_addcmul_(second, gradient.tensors, gradient.tensors, value=1 - self.beta2)
        new = ScalingState(gradient.like(first), gradient.like(second), state.count + 1)
        direction = torch._foreach_div(first, self._denominator(new))
        torch._foreach_div_(direction, 1 - self.beta1**new.count)
        return gradient.like(direction), new

    def metric(self, state: ScalingState) -> Point | None:
        if not self.matched or not state.second.tensors:
            return None
        return state.second.like(torch._foreach_reciprocal(self._denominator(state)))

    def _denominator(self, state: ScalingState) -> tuple[Tensor, ...]:
        root = torch._foreach_sqrt(state.second.tensors)
        torch._foreach_div_(root, math.sqrt(1 - self.beta2**state.count))
        torch._foreach_add_(root, self.eps)
        return tuple(root)


@dataclass(frozen=True, eq=False)
class Diagonal(Scaling):
    """A fixed diagonal metric, such as the column norms of a matrix.

        x ← prox_{αg}^P(x − αP⁻¹∇f),   P = diag(p)

    Step sizes are relative to P: α ≤ 1/L with L the Lipschitz constant of P^{-1/2}∇f(P^{-1/2}·).

    Arguments:
        weights: p > 0, {block: tensors} like the blocks it is used on, or one tensor for the block "x".
    """

    weights: Point | Mapping[str, Tensor | Sequence[Tensor]] | Tensor

    def __post_init__(self) -> None:
        point = as_point(self.weights)
        for name in point:
            for tensor in point[name]:
                if not bool((check_finite(f"Diagonal weights of {name!r}", tensor) > 0).all()):
                    invalid_value(f"Diagonal weights of {name!r}", "numbers > 0", float(tensor.min()))
        object.__setattr__(self, "weights", point)

    def check(self, problem: Problem, blocks: Sequence[str], point: Point) -> None:
        _check_shapes("Diagonal weights", self._point, blocks, point)
        _check_elementwise("Diagonal", problem, blocks, "Use no scaling, or one weight for all entries.")

    def direction(self, state: ScalingState, gradient: Point) -> tuple[Point, ScalingState]:
        weights = self._point.select(gradient.blocks)
        return gradient.like(torch._foreach_div(gradient.tensors, weights.tensors)), state

    def metric(self, state: ScalingState) -> Point | None:
        return self._point.like(torch._foreach_reciprocal(self._point.tensors))

    def square(self, difference: Point) -> float:
        weights = self._point.select(difference.blocks)
        return dot(difference, difference.like(torch._foreach_mul(difference.tensors, weights.tensors)))

    @property
    def _point(self) -> Point:
        return as_point(self.weights)


@dataclass(frozen=True, eq=False)
class Matrix(Scaling):
    """A fixed metric P on the last axis of one smooth tensor, such as a Gram matrix.

        x ← x − α∇f(x)P⁻¹      (rows of x are solved for; one Cholesky factor)

    With P ≥ ∇²f along that axis, α = 1 is a descent step.

    Arguments:
        matrix: P, symmetric positive definite, of the size of the last axis.
    """

    matrix: Tensor

    def __post_init__(self) -> None:
        matrix = check_finite("Matrix matrix", self.matrix)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            invalid_value("Matrix matrix", "a square matrix", f"shape {tuple(matrix.shape)}")
        factor = cholesky(matrix)
        if factor is None or not bool(torch.allclose(matrix, matrix.T)):
            hint = "Add a multiple of the identity."
            invalid_value("Matrix matrix", "a symmetric positive definite matrix", "another one", hint)
        object.__setattr__(self, "_factor", factor)

    def check(self, problem: Problem, blocks: Sequence[str], point: Point) -> None:
        for name in blocks:
            if not problem.smooth(name):
                hint = "Use Diagonal, or no scaling."
                invalid_value(f"Matrix on block {name!r}", "a smooth block", "one with a nonsmooth part", hint)
            for tensor in point[name]:
                if tensor.ndim == 0 or tensor.shape[-1] != len(self.matrix):
                    expected = f"a last axis of {len(self.matrix)}"
                    invalid_value(f"Matrix on block {name!r}", expected, f"shape {tuple(tensor.shape)}")

    def direction(self, state: ScalingState, gradient: Point) -> tuple[Point, ScalingState]:
        return gradient.like(self._solve(tensor) for tensor in gradient.tensors), state

    def square(self, difference: Point) -> float:
        return dot(difference, difference.like(tensor @ self.matrix for tensor in difference.tensors))

    def _solve(self, tensor: Tensor) -> Tensor:
        factor: Tensor = self._factor  # pyright: ignore[reportAttributeAccessIssue]  (set in __post_init__)
        rows = tensor.reshape(-1, tensor.shape[-1])
        return torch.cholesky_solve(rows.T, factor).T.reshape(tensor.shape)


def _check_elementwise(where: str, problem: Problem, blocks: Sequence[str], hint: str) -> None:
    for name in blocks:
        if not problem.elementwise(name):
            invalid_value(f"{where} on block {name!r}", "a prox that acts by entries", "one that does not", hint)


def _check_shapes(where: str, weights: Point, blocks: Sequence[str], point: Point) -> None:
    for name in blocks:
        if name not in weights:
            invalid_value(where, f"weights for block {name!r}", f"only {list(weights)}")
        shapes = [tuple(tensor.shape) for tensor in point[name]]
        if shapes != [tuple(tensor.shape) for tensor in weights[name]]:
            invalid_value(f"{where} of {name!r}", f"shapes {shapes}", weights)
