"""Multiplication by fixed numbers, such as one per channel."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchlift.core.checks import Shape, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, OnShape
from torchlift.operators.geometry import broadcasts


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
