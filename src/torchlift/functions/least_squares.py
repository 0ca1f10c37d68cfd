"""Least squares through a linear map."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_finite, check_positive, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.functions.base import Amount, Function, per_sample
from torchlift.operators import Context, Identity, LinearOperator


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
