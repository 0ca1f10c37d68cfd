"""Losses that are functions of the residual p − x."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_finite, check_positive, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.core.signatures import explain
from torchlift.functions.base import Amount, Function, check_step, per_sample, zero_or_infinite
from torchlift.functions.constraints import Equals
from torchlift.functions.group_norm import GroupNorm
from torchlift.functions.l1 import L1
from torchlift.functions.losses.base import Loss
from torchlift.functions.squared_norm import Ridge


class ResidualLoss(Loss):
    """L(p; x) = f(p − x) for a function f, hence prox = x + prox_f(p − x) and L*(q; x) = f*(q) + ⟨q, x⟩."""

    @property
    @abstractmethod
    def function(self) -> Function:
        """f."""

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self.function.value(prediction - target)

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self.function.grad(prediction - target)

    def curvature(self) -> float:
        return self.function.curvature()

    def prox(self, prediction: Tensor, target: Tensor, step: Amount = 1.0) -> Tensor:
        return target + self.function.prox(prediction - target, step)

    def conjugate(self, dual: Tensor, target: Tensor) -> Tensor:
        return self.function.conjugate(dual) + per_sample(dual * target)

    @property
    def has_conjugate(self) -> bool:
        return self.function.has_conjugate


@dataclass(frozen=True)
class SquaredError(ResidualLoss):
    """Half the squared Euclidean distance; mind the ½, and that entries are summed, not averaged.

    L(p; x) = ½‖p − x‖²
    prox    = (p + s x) / (1 + s)

    Half of `torch.nn.functional.mse_loss` times the entries of a sample.
    """

    @property
    def function(self) -> Function:
        return Ridge()

    def mean(self, prediction: Tensor, target: Tensor) -> Tensor:
        try:
            if not (isinstance(prediction, Tensor) and isinstance(target, Tensor)):
                raise TypeError("expected tensors")  # numbers would be broadcast
            return 0.5 * (prediction - target).square().sum() / len(prediction)
        except Exception as error:
            explain(error)
            raise

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return prediction - target  # saves the product with the weight 1


@dataclass(frozen=True)
class Absolute(ResidualLoss):
    """The ℓ1 distance, robust against outliers.

        L(p; x) = ‖p − x‖₁
        grad    = sign(p − x), a subgradient: the one of least norm where entries agree
        prox    = x + soft-thresholding of p − x at s

    Reference: Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    @property
    def function(self) -> Function:
        return L1()


@dataclass(frozen=True)
class Huber(ResidualLoss):
    """Quadratic up to a residual of δ and linear beyond; entries are summed.

        L(p; x) = Σ h(p_i − x_i),  h(r) = ½r² if |r| ≤ δ, δ(|r| − ½δ) otherwise
        grad    = min(max(r, −δ), δ)
        prox    = p − s·min(max(r / (1 + s), −δ), δ)

    Arguments:
        delta: δ > 0.

    Reference: Huber, Annals of Mathematical Statistics 35 (1964).
    """

    delta: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Huber delta", self.delta)

    @property
    def function(self) -> Function:
        return GroupNorm(self.delta, None, self.delta)


@dataclass(frozen=True)
class Target(ResidualLoss):
    """The constraint that a prediction equals its target.

        L(p; x) = 0 if p = x, +∞ otherwise
        prox    = x

    Equality is meant up to 256 eps · (1 + |x|) per entry, since predictions are
    rounded. There is no gradient. With `lifting=Contrastive(μ)` it clamps the output of a
    last layer without activation, as in the source: the energy μ/2‖x − p‖² of that layer is what is trained and
    recorded.
    """

    constraint: ClassVar[bool] = True

    @property
    def function(self) -> Function:
        return Equals(torch.zeros(()))

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        tolerance = 256 * torch.finfo(prediction.dtype).eps * (1 + target.abs())
        return zero_or_infinite((prediction - target).abs() <= tolerance, prediction)

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        hint = "Use its prox, or try SquaredError(), which penalises instead."
        invalid_value("Target.grad", "a loss with a gradient", "the hard constraint p = x", hint)


@dataclass(frozen=True, eq=False)
class WeightedSquaredError(Loss):
    """Squared error with a weight per entry, such as a mask or inverse variances of noise; mind the ½.

        L(p; x) = ½ Σ w_i (p_i − x_i)²
        prox    = (p_i + s w_i x_i) / (1 + s w_i)

    Arguments:
        weights: w ≥ 0, a number or a tensor that broadcasts against the prediction (B, …).
    """

    weights: float | Tensor = 1.0

    def __post_init__(self) -> None:
        where = "WeightedSquaredError weights"
        weights = torch.as_tensor(self.weights)
        if not bool((check_finite(where, check_tensor(where, weights)) >= 0).all()):
            invalid_value(where, "numbers >= 0", f"a least one of {float(weights.min())}")

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        return 0.5 * per_sample(self._weights(prediction) * (prediction - target).square())

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self._weights(prediction) * (prediction - target)

    def curvature(self) -> float:
        return float(torch.as_tensor(self.weights).max())

    def prox(self, prediction: Tensor, target: Tensor, step: Amount = 1.0) -> Tensor:
        factor = check_step(step, prediction) * self._weights(prediction)
        return (prediction + factor * target) / (1 + factor)

    @classmethod
    def example(cls) -> Loss:
        return cls(torch.tensor([0.5, 0.0, 2.0, 1.0], dtype=torch.float64))

    def _weights(self, like: Tensor) -> float | Tensor:
        return self.weights.to(like) if isinstance(self.weights, Tensor) else self.weights
