"""Operators that move or drop numbers without computing: identity, reshape, zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.operators.base import BetweenShapes, Context, OnShape


@dataclass(frozen=True, eq=False)
class Identity(OnShape):
    """x ↦ x; a multiple of the identity is `c * Identity(shape)`."""

    shape: Shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return x

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return y

    @property
    def is_orthogonal(self) -> bool:
        return True

    def symbol(self) -> str:
        return "I"


@dataclass(frozen=True, eq=False)
class Reshape(BetweenShapes):
    """x ↦ the same numbers in another shape, in row-major order (flatten, unflatten)."""

    from_shape: Shape
    to_shape: Shape

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.prod(self.from_shape) != math.prod(self.to_shape):
            invalid_value("Reshape to_shape", f"as many entries as {self.from_shape}", self.to_shape)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return x.reshape(x.shape[0], *self.to_shape)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return y.reshape(y.shape[0], *self.from_shape)

    @property
    def is_orthogonal(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Zero(BetweenShapes):
    """x ↦ 0."""

    from_shape: Shape
    to_shape: Shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return x.new_zeros(x.shape[0], *self.to_shape)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return y.new_zeros(y.shape[0], *self.from_shape)

    def norm_bound(self, context: Context = None) -> float:
        return 0.0

    def symbol(self) -> str:
        return "0"
