"""One proximal-gradient step before its size is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from torchlift.core.problem import Problem
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Factor, Point, add_scaled, block_norms, dot, subtract
from torchlift.solvers.scaling import Scaling, ScalingState


@dataclass(frozen=True, eq=False)
class Proposal:
    """x(α) = prox_{αg}(base − αd), with d the scaled gradient of f at `at`.

    Arguments:
        at: the whole point where the gradient was taken.
        base: the active blocks where the step starts.
        gradient: ∇f(at) for the active blocks.
        direction: d.
    """

    problem: Problem
    at: Point
    base: Point
    gradient: Point
    direction: Point
    scaling: Scaling
    scaling_state: ScalingState

    @property
    def blocks(self) -> tuple[str, ...]:
        return self.base.blocks

    def trial(self, sizes: Sequence[float]) -> Point:
        """x(α) for one size per active block."""
        steps = dict(zip(self.blocks, sizes, strict=True))
        moved = add_scaled(self.base, self.direction, {name: -step for name, step in steps.items()})
        if not self._nonsmooth:
            return moved
        return moved.merge(self.problem.prox(moved.select(self._nonsmooth), self._prox_steps(steps)))

    def residual(self, new: Point, sizes: Sequence[float]) -> float:
        """Norm of the gradient mapping, √Σ_b ‖x_b(α) − at_b‖²/α_b²."""
        norms = block_norms(subtract(new, self.at.select(self.blocks)))
        return math.hypot(*(norms[name] / size for name, size in zip(self.blocks, sizes, strict=True)))

    def decreases_enough(self, new: Point, size: float) -> bool:
        """f(x⁺) ≤ f(y) + ⟨∇f(y), x⁺ − y⟩ + ‖x⁺ − y‖²_P / 2α, without being fooled by rounding.

        Where the quadratic term drowns in the rounding of f, the equivalent
        ⟨∇f(x⁺) − ∇f(y), x⁺ − y⟩ ≤ ‖x⁺ − y‖²_P / α (the same for quadratics) decides.
        """
        moved = subtract(new, self.at.select(self.blocks))
        room = self.scaling.square(moved) / (2 * size)
        there = self.at.merge(new)
        if room > 1e5 * self._epsilon * abs(self._value):
            return self.problem.smooth_value(there) <= self._value + dot(self.gradient, moved) + room
        turned = subtract(self.problem.gradient(there, self.blocks), self.gradient)
        return dot(turned, moved) <= 2 * room

    def value(self, new: Point) -> float:
        """f + g at a trial."""
        return self.problem.value(self.at.merge(new))

    def check_finite(self) -> None:
        """Raise if the gradient or the value is not finite: then the problem fails, not the line search."""
        for name in self.blocks:
            if not all(bool(tensor.isfinite().all()) for tensor in self.gradient[name]):
                raise StepFailure(Result.NOT_FINITE, f"the gradient in block {name!r} is not finite")
        if not math.isfinite(self._value):
            raise StepFailure(Result.NOT_FINITE, f"the smooth part of the objective is {self._value}")

    @cached_property
    def _value(self) -> float:
        return self.problem.smooth_value(self.at)

    @cached_property
    def _nonsmooth(self) -> tuple[str, ...]:
        return tuple(name for name in self.blocks if not self.problem.smooth(name))

    @property
    def _epsilon(self) -> float:
        return torch.finfo(self.at.dtype).eps

    def _prox_steps(self, steps: dict[str, float]) -> dict[str, Factor]:
        metric, scale = self.scaling.metric(self.scaling_state), self.scaling.prox_scale
        if metric is None:
            return {name: scale * steps[name] for name in self._nonsmooth}
        return {name: tuple(scale * steps[name] * tensor for tensor in metric[name]) for name in self._nonsmooth}
