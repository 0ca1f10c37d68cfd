"""Quadratic functions: ½‖x‖², distances and least squares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_finite, check_positive, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.functions.base import Amount, Function, check_step, per_sample
from torchlift.operators import Context, Identity, LinearOperator


@dataclass(frozen=True)
class Ridge(Function):
    """Half the squared norm (ridge, Tikhonov, weight decay); mind the ½.

        g(x)  = ½w‖x‖²
        prox  = x / (1 + sw)
        g*(p) = ‖p‖² / 2w

    Arguments:
        weight: w > 0.
    """

    elementwise: ClassVar[bool] = True

    weight: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Ridge weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * self.weight * per_sample(x.square())

    def grad(self, x: Tensor) -> Tensor:
        return self.weight * x

    def curvature(self) -> float:
        return float(self.weight)

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        return x / (1 + check_step(step, x) * self.weight)

    def conjugate(self, p: Tensor) -> Tensor:
        return per_sample(p.square()) / (2 * self.weight)

    def normal(self, v: Tensor) -> Tensor:
        """The Hessian times v."""
        return self.weight * v


@dataclass(frozen=True, eq=False)
class SquaredDistance(Function):
    """Half the squared distance to a point, such as data, pre-trained weights or the last iterate; mind the ½.

        g(x)  = ½w‖x − c‖²
        prox  = (x + sw c) / (1 + sw)
        g*(p) = ⟨p, c⟩ + ‖p‖² / 2w

    Arguments:
        centre: c, a tensor of the shape of x, or one number for all entries alike, in a tensor.
        weight: w > 0.
    """

    elementwise: ClassVar[bool] = True

    centre: Tensor
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_finite("SquaredDistance centre", check_tensor("SquaredDistance centre", self.centre))
        check_positive("SquaredDistance weight", self.weight)

    def value(self, x: Tensor) -> Tensor:
        return 0.5 * self.weight * per_sample((x - self._centre(x)).square())

    def grad(self, x: Tensor) -> Tensor:
        return self.weight * (x - self._centre(x))

    def curvature(self) -> float:
        return float(self.weight)

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        factor = check_step(step, x) * self.weight
        return (x + factor * self._centre(x)) / (1 + factor)

    def conjugate(self, p: Tensor) -> Tensor:
        return per_sample(p * (self._centre(p) + p / (2 * self.weight)))

    def normal(self, v: Tensor) -> Tensor:
        """The Hessian times v."""
        return self.weight * v

    @classmethod
    def example(cls) -> Function:
        return cls(torch.tensor(0.7, dtype=torch.float64), 1.5)

    def _centre(self, x: Tensor) -> Tensor:
        if self.centre.numel() > 1 and self.centre.shape != x.shape:
            expected = f"the shape {tuple(self.centre.shape)} of the centre"
            hint = "One centre belongs to one parameter, or to one batch."
            invalid_value("SquaredDistance argument", expected, tuple(x.shape), hint)
        return self.centre.detach().to(x)


@dataclass(frozen=True, eq=False)
class LeastSquares(Function):
    """f(x) = ½w‖Hx − y‖², smooth. Its prox is a linear system, and refused.

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
        return 0.5 * self.weight * per_sample(self._residual(x).square())

    def grad(self, x: Tensor) -> Tensor:
        return self.weight * self.operator.adjoint(self._residual(x), self.context)

    def curvature(self) -> float:
        return self.weight * self.operator.norm_bound(self.context) ** 2

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        hint = "Give it as the smooth f, or split it as Term(SquaredDistance(target), operator)."
        invalid_value("LeastSquares.prox", "a closed form", "a linear system", hint)

    def normal(self, v: Tensor) -> Tensor:
        """The Hessian times v."""
        return self.weight * self.operator.adjoint(self.operator.forward(v, self.context), self.context)

    @classmethod
    def example(cls) -> Function:
        return cls(2.0 * Identity((3, 4)), torch.tensor(0.5, dtype=torch.float64), 0.7)

    def _residual(self, x: Tensor) -> Tensor:
        return self.operator.forward(x, self.context) - self.target.to(x)
