"""The contract of a loss: how a prediction is compared with its target."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from torchlift.core.checks import Shape, check_finite, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.core.signatures import explain
from torchlift.functions.base import Amount, Function


class Loss(ABC):
    """A convex function L(p; x) of a prediction p (B, …) for a given target x.

    Subclasses are frozen dataclasses without state. A batch counts as the sum
    of its samples: whoever wants the mean divides by B. `at(target)` is the same
    as a `Function` of the prediction alone.
    """

    #: True if L has no values but 0 and +∞.
    constraint: ClassVar[bool] = False

    @abstractmethod
    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        """L for each sample, (B,); +∞ off its domain."""

    def mean(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The mean over the samples, differentiable by autograd: what a training loop calls its criterion."""
        try:
            if not (isinstance(prediction, Tensor) and isinstance(target, Tensor)):
                raise TypeError("expected tensors")  # numbers would be broadcast
            return self.value(prediction, target).mean()
        except Exception as error:
            explain(error)
            raise

    @abstractmethod
    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Gradient of Σ L in the prediction, in a new tensor of its shape; a subgradient, or refused, if not smooth."""

    @abstractmethod
    def curvature(self) -> float:
        """A Lipschitz constant of `grad`, infinite where there is none."""

    @property
    def smooth(self) -> bool:
        """True if L is differentiable everywhere, with a Lipschitz gradient."""
        return math.isfinite(self.curvature())

    @abstractmethod
    def prox(self, prediction: Tensor, target: Tensor, step: Amount = 1.0) -> Tensor:
        """argmin_q ½‖q − p‖² + step·L(q; x) for step > 0, one number, one per sample, or a tensor that broadcasts."""

    def conjugate(self, dual: Tensor, target: Tensor) -> Tensor:
        """max_p ⟨p, dual⟩ − L(p; x), one per sample: (B,), for duality gaps."""
        name = type(self).__name__
        invalid_value(f"{name}.conjugate", "a loss with a known conjugate", "one without")

    @property
    def has_conjugate(self) -> bool:
        return type(self).conjugate is not Loss.conjugate

    def at(self, target: Tensor) -> Function:
        """L(·; x) as a function of the prediction: a data term for solvers."""
        return LossAt(self, target)

    def check(self, prediction_shape: Shape, target: object, *, values: bool = True) -> None:
        """Refuse a target that does not belong to predictions of this shape (B, …).

        With `values` the entries are read, once, and the first bad one is named
        with its sample; without, only shape and dtype are looked at and no
        device waits.
        """
        x = check_tensor("target", target)
        if not prediction_shape or prediction_shape[0] == 0:
            invalid_value("prediction", "at least one sample", f"shape {prediction_shape}")
        if tuple(x.shape) != tuple(prediction_shape):
            hint = "The target has the shape of the network's output."
            if x.numel() == math.prod(prediction_shape):
                hint += f" Try targets.reshape({', '.join(map(str, (-1, *prediction_shape[1:])))})."
            elif values and x.ndim == 1 and x.is_floating_point() and bool((x == x.round()).all()):
                hint = "Labels are whole numbers: try targets.long()."
            invalid_value("target", f"shape {tuple(prediction_shape)}", tuple(x.shape), hint)
        if values:
            check_finite("target", x)

    @classmethod
    def example(cls) -> Loss:
        """An instance for contract tests and tables; overridden where arguments are required."""
        return cls()


@dataclass(frozen=True, eq=False)
class LossAt(Function):
    """A loss with its target, as a function of the prediction.

    Arguments:
        loss: L.
        target: x.
    """

    loss: Loss
    target: Tensor

    @property
    def constraint(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]  (a loss decides)
        return self.loss.constraint

    def value(self, x: Tensor) -> Tensor:
        return self.loss.value(x, self._target(x))

    def grad(self, x: Tensor) -> Tensor:
        return self.loss.grad(x, self._target(x))

    def curvature(self) -> float:
        return self.loss.curvature()

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        return self.loss.prox(x, self._target(x), step)

    def conjugate(self, p: Tensor) -> Tensor:
        return self.loss.conjugate(p, self._target(p))

    @property
    def has_conjugate(self) -> bool:
        return self.loss.has_conjugate

    def _target(self, x: Tensor) -> Tensor:
        return self.target.to(x) if self.target.is_floating_point() else self.target.to(x.device)
