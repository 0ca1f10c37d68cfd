"""Convex functions for saddle-point problems: values, proximal maps, and conjugates where they are closed.

Every regulariser serves as well; only the duality gap needs a conjugate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_finite, check_positive, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.core.problem import Proximable
from torchlift.operators import Context, LinearOperator


def prox_conjugate(function: Proximable, p: Tensor, step: float) -> Tensor:
    """prox of step·h* by Moreau's identity, p − step·prox_{h/step}(p/step)."""
    return p - step * function.prox(p / step, 1 / step)


def conjugate(function: object, p: Tensor) -> float | None:
    """h*(p), None where the function does not know it."""
    known = getattr(function, "conjugate", None)
    return None if known is None else float(known(p))


@dataclass(frozen=True, eq=False)
class SquaredDistance:
    """h(x) = ½w‖x − c‖², mind the ½; smooth, with everything closed.

    Arguments:
        centre: c.
        weight: w > 0.
    """

    centre: Tensor
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_finite("SquaredDistance centre", check_tensor("SquaredDistance centre", self.centre))
        check_positive("SquaredDistance weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * self.weight * (x - self.centre).square().sum()

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        factor = step * self.weight
        return (x + factor * self.centre) / (1 + factor)

    def conjugate(self, p: Tensor) -> Tensor:
        """⟨p, c⟩ + ‖p‖²/2w."""
        return (p * self.centre).sum() + p.square().sum() / (2 * self.weight)

    def grad(self, x: Tensor) -> Tensor:
        return self.weight * (x - self.centre)

    def normal(self, v: Tensor) -> Tensor:
        """The Hessian times v."""
        return self.weight * v

    def curvature(self) -> float:
        return self.weight


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """f(x) = ½w‖Hx − y‖², smooth.

    Arguments:
        operator: H.
        target: y (B, *out_shape).
        weight: w > 0.
        context: per-sample context of H.
    """

    operator: LinearOperator
    target: Tensor
    weight: float = 1.0
    context: Context = None

    def __post_init__(self) -> None:
        check_finite("LeastSquares target", check_tensor("LeastSquares target", self.target))
        check_positive("LeastSquares weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * self.weight * (self.operator.forward(x, self.context) - self.target).square().sum()

    def grad(self, x: Tensor) -> Tensor:
        residual = self.operator.forward(x, self.context) - self.target
        return self.weight * self.operator.adjoint(residual, self.context)

    def normal(self, v: Tensor) -> Tensor:
        """The Hessian times v."""
        return self.weight * self.operator.adjoint(self.operator.forward(v, self.context), self.context)

    def curvature(self) -> float:
        return self.weight * self.operator.norm_bound(self.context) ** 2


@dataclass(frozen=True)
class GroupNorm:
    """h(v) = w Σ ‖v along an axis‖₂: with finite differences and axis 1, isotropic total variation.

    Arguments:
        weight: w > 0.
        dim: the axis whose entries belong together, counted with the batch axis; None for single entries (ℓ1).
    """

    weight: float = 1.0
    dim: int | None = 1

    def __post_init__(self) -> None:
        check_positive("GroupNorm weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return self.weight * self._lengths(x).sum()

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        threshold = step * self.weight
        if self.dim is None:
            return x.sign() * (x.abs() - threshold).clamp_min(0)
        return x * (1 - threshold / self._lengths(x).clamp_min(threshold))

    def conjugate(self, p: Tensor) -> Tensor:
        """0 where every group is at most w long (up to rounding), else +∞."""
        room = self.weight * (1 + 64 * torch.finfo(p.dtype).eps)
        longest = self._lengths(p).amax() if p.numel() else p.new_zeros(())
        return p.new_zeros(()).masked_fill(longest > room, math.inf)

    def _lengths(self, x: Tensor) -> Tensor:
        return x.abs() if self.dim is None else torch.linalg.vector_norm(x, dim=self.dim, keepdim=True)


@dataclass(frozen=True, eq=False)
class Equals:
    """h(x) = 0 if ‖x − b‖∞ is at most a tolerance, +∞ otherwise; the prox is b.

    Arguments:
        target: b.
        tolerance: how far a point may be from b for its value to count as 0.
    """

    target: Tensor
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        check_finite("Equals target", check_tensor("Equals target", self.target))
        if not self.tolerance >= 0:
            invalid_value("Equals tolerance", "a number >= 0", self.tolerance)

    def value(self, x: Tensor) -> Tensor:
        return x.new_zeros(()).masked_fill((x - self.target).abs().amax() > self.tolerance, math.inf)

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return self.target.expand_as(x)

    def conjugate(self, p: Tensor) -> Tensor:
        return (p * self.target).sum()
