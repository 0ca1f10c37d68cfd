"""The contract of a regulariser: a convex function known by its proximal map."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_value


class Regulariser(ABC):
    """A convex function R of a tensor: of hidden variables or of parameters.

    Subclasses are frozen dataclasses. R is summed over all entries, a batch
    axis included; whoever wants the mean over samples divides by their number.
    """

    #: Whether R is differentiable everywhere, so that `grad` and `curvature` may be used.
    smooth: ClassVar[bool] = False
    #: Whether R is a sum over entries, so that `prox` takes one step per entry.
    elementwise: ClassVar[bool] = False

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """R(x), a scalar; +∞ off its domain."""

    @abstractmethod
    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        """argmin_p ½‖p − x‖² + step·R(p) for step > 0; a tensor `step` broadcasts against x."""

    def grad(self, x: Tensor) -> Tensor:
        """∇R(x), where R is smooth."""
        name = type(self).__name__
        invalid_value(f"{name}.grad", "a smooth regulariser", "a nonsmooth one", f"Use {name}.prox.")

    def curvature(self) -> float:
        """A Lipschitz constant of `grad`, infinite where there is none."""
        return math.inf

    @classmethod
    def example(cls) -> Regulariser:
        """An instance for contract tests and tables; overridden where arguments are required."""
        return cls()


def check_step(step: float | Tensor, x: Tensor) -> float | Tensor:
    """The step of a prox at x: a finite number > 0, or a tensor, made alike but not read."""
    return step.to(x) if isinstance(step, Tensor) else check_positive("prox step", step)


def soft(x: Tensor, threshold: float | Tensor) -> Tensor:
    """Soft-thresholding, sign(x) max(|x| − threshold, 0)."""
    if isinstance(threshold, Tensor):
        return x - torch.minimum(torch.maximum(x, -threshold), threshold)
    return x - x.clamp(-threshold, threshold)


def zero_or_infinite(inside: Tensor, x: Tensor) -> Tensor:
    """0 if all of `inside` is true, +∞ otherwise, as a scalar like x."""
    return x.new_zeros(()).masked_fill(~inside.all(), torch.inf)
