"""Euclidean balls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.functions.base import Amount, Function, check_step
from torchlift.prox import L2Ball


@dataclass(frozen=True)
class Ball(Function):
    """The constraint ‖x‖₂ ≤ r on every sample.

        g(x)  = 0 if ‖x‖₂ ≤ r, +∞ otherwise
        prox  = x·min(1, r/‖x‖₂), whatever the step
        g*(p) = r‖p‖₂

    Arguments:
        radius: r > 0.
    """

    constraint: ClassVar[bool] = True

    radius: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Ball radius", self.radius)

    def value(self, x: Tensor) -> Tensor:
        return L2Ball(self.radius).psi(x.reshape(len(x), -1))

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        check_step(step, x)
        return L2Ball(self.radius)(x.reshape(len(x), -1)).view_as(x)

    def conjugate(self, p: Tensor) -> Tensor:
        return self.radius * torch.linalg.vector_norm(p.reshape(len(p), -1), dim=1)

    def meet(self, other: Function) -> Function | None:
        return min(self, other, key=lambda ball: ball.radius) if isinstance(other, Ball) else None
