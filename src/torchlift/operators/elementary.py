"""Elementary operators: identity, reshape and zero, which compute nothing, dense matrices and diagonals."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import linear

from torchlift.core.checks import Shape, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators.base import BetweenShapes, Context, LinearOperator, OnShape
from torchlift.operators.geometry import broadcasts


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


@dataclass(frozen=True, eq=False)
class Dense(LinearOperator):
    """x ↦ W x for a matrix W of shape (out, in)."""

    weight: Tensor

    def __post_init__(self) -> None:
        if check_tensor("Dense weight", self.weight).ndim != 2:
            invalid_value("Dense weight", "shape (out, in)", tuple(self.weight.shape))

    @property
    def in_shape(self) -> Shape:
        return (self.weight.shape[1],)

    @property
    def out_shape(self) -> Shape:
        return (self.weight.shape[0],)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return linear(x, self.weight)

    def affine(self, x: Tensor, bias: Tensor | None, context: Context = None) -> Tensor:
        return linear(x, self.weight, bias)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return y @ self.weight

    def to_dense(self, context: Context = None) -> Tensor:
        return self.weight


@dataclass(frozen=True, eq=False)
class Diagonal(OnShape):
    """x ↦ s ⊙ x for a tensor s that broadcasts to `shape`: a batch norm in eval mode has one s per channel."""

    factor: Tensor
    shape: Shape

    def __post_init__(self) -> None:
        super().__post_init__()
        size = tuple(check_tensor("Diagonal factor", self.factor).shape)
        if not broadcasts(size, self.shape):
            invalid_value("Diagonal factor", f"a shape that broadcasts to {self.shape}", size)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return x * self.factor

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return y * self.factor

    def norm_bound(self, context: Context = None) -> float:
        return float(self.factor.detach().abs().max())
