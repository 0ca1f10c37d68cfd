"""Multiplication by fixed numbers, such as one per channel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchlift.core.checks import Shape, check_shape, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, OnShape


@dataclass(frozen=True, eq=False)
class Diagonal(OnShape):
    """x ↦ s ⊙ x for a tensor s that broadcasts to `shape`: a batch norm in eval mode has one s per channel."""

    factor: Tensor
    shape: Shape

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", check_shape("Diagonal shape", self.shape))
        size = tuple(check_tensor("Diagonal factor", self.factor).shape)
        pairs = zip(reversed(size), reversed(self.shape), strict=False)
        if len(size) > len(self.shape) or any(a not in (1, b) for a, b in pairs):
            invalid_value("Diagonal factor", f"a shape that broadcasts to {self.shape}", size)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return x * self.factor

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return y * self.factor

    def norm_bound(self, context: Context = None) -> float:
        return float(self.factor.detach().abs().max())
