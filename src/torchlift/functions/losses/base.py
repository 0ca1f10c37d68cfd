"""The contract of a loss: how a prediction is compared with its target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from torch import Tensor

from torchlift.core.checks import Shape, check_finite, check_tensor
from torchlift.core.errors import invalid_value


class Loss(ABC):
    """A convex function L(p; x) of a prediction p (B, …) for a given target x.

    Subclasses are frozen dataclasses without state. A batch counts as the sum
    of its samples: whoever wants the mean divides by B.
    """

    #: Whether L is differentiable everywhere. If not, `grad` is a subgradient, or refused.
    smooth: ClassVar[bool] = True

    @abstractmethod
    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        """L for each sample, (B,)."""

    def mean(self, prediction: Tensor, target: Tensor) -> Tensor:
        """The mean over the samples, differentiable by autograd: what a training loop calls its criterion."""
        return self.value(prediction, target).mean()

    @abstractmethod
    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Gradient of Σ L in the prediction, in a new tensor of its shape."""

    @abstractmethod
    def curvature(self) -> float:
        """A Lipschitz constant of `grad`, infinite where there is none."""

    @abstractmethod
    def prox(self, prediction: Tensor, target: Tensor, step: float | Tensor = 1.0) -> Tensor:
        """argmin_q ½‖q − p‖² + step·L(q; x) for step > 0.

        A tensor `step` broadcasts against the prediction.
        """

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
            invalid_value("target", f"shape {tuple(prediction_shape)}", tuple(x.shape), hint)
        if values:
            check_finite("target", x)

    @classmethod
    def example(cls) -> Loss:
        """An instance for contract tests and tables; overridden where arguments are required."""
        return cls()


def per_sample(terms: Tensor) -> Tensor:
    """Sums over all axes but the first."""
    return terms.flatten(1).sum(1) if terms.ndim > 1 else terms
