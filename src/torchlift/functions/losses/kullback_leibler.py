"""The Kullback–Leibler divergence of counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.functions.base import Amount, check_step, per_sample
from torchlift.functions.losses.base import Loss


@dataclass(frozen=True)
class KullbackLeibler(Loss):
    """The negative log-likelihood of Poisson counts x ≥ 0 with expected values p, less its least value.

        L(p; x) = Σ p_i − x_i + x_i log(x_i / p_i) for p ≥ 0, +∞ otherwise
        grad    = 1 − x/p where p > 0
        prox    = ½(p − s + √((p − s)² + 4sx))

    For low light and emission tomography. The gradient is not Lipschitz near 0:
    use the prox, or predictions that are bounded from below.

    Reference: Shepp & Vardi, IEEE Transactions on Medical Imaging 1 (1982).
    """

    def value(self, prediction: Tensor, target: Tensor) -> Tensor:
        terms = prediction - target + torch.xlogy(target, target) - torch.xlogy(target, prediction)
        return per_sample(terms.masked_fill(~(prediction >= 0), math.inf))

    def grad(self, prediction: Tensor, target: Tensor) -> Tensor:
        return 1 - torch.where(target > 0, target / prediction, 0.0)

    def curvature(self) -> float:
        return math.inf

    def prox(self, prediction: Tensor, target: Tensor, step: Amount = 1.0) -> Tensor:
        step = check_step(step, prediction)
        shifted = prediction - step
        root = (shifted.square() + 4 * step * target).sqrt()
        below = 2 * step * target / (root - shifted).clamp_min(torch.finfo(root.dtype).tiny)
        return torch.where(shifted > 0, 0.5 * (shifted + root), below)  # neither form cancels where it is used

    def conjugate(self, dual: Tensor, target: Tensor) -> Tensor:
        return per_sample((-torch.xlogy(target, 1 - dual)).masked_fill(~(dual <= 1), math.inf))

    def check(self, prediction_shape: Shape, target: object, *, values: bool = True) -> None:
        super().check(prediction_shape, target, values=values)
        assert isinstance(target, Tensor)
        if values and bool((target < 0).any()):
            position = tuple((target < 0).nonzero()[0].tolist())
            invalid_value("target", "counts >= 0", f"{float(target[position]):g} at index {position}")
