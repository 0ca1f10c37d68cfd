"""Losses L(p; x), convex in the prediction p, and the registry that contract tests visit.

| loss                   | L(p; x)                        | gradient      | curvature |
|------------------------|--------------------------------|---------------|-----------|
| `SquaredError`         | ½‖p − x‖²                      | yes           | 1         |
| `WeightedSquaredError` | ½ Σ w(p − x)²                  | yes           | max w     |
| `CrossEntropy`         | log Σ e^{p_c} − p_x            | yes           | ½         |
| `Huber`                | quadratic, linear beyond δ     | yes           | 1         |
| `Absolute`             | ‖p − x‖₁                       | a subgradient | ∞         |
| `KullbackLeibler`      | Σ p − x + x log(x/p), p ≥ 0    | for p > 0     | ∞         |
| `Target`               | 0 if p = x, +∞ otherwise       | none          | ∞         |

All have a proximal map. `loss.at(target)` is a `Function` of the prediction. `Criterion` is any
other function of predictions and targets, with nothing but its gradient.
"""

from __future__ import annotations

from torchlift.core.signatures import check_calls
from torchlift.functions.losses.base import Loss
from torchlift.functions.losses.criterion import Criterion, LossLike, as_loss
from torchlift.functions.losses.cross_entropy import CrossEntropy, KullbackLeibler
from torchlift.functions.losses.residual import (
    Absolute,
    Huber,
    ResidualLoss,
    SquaredError,
    Target,
    WeightedSquaredError,
)

#: Every loss by name. A new one adds its line here and inherits all contract tests.
LOSSES: dict[str, type[Loss]] = {
    "absolute": Absolute,
    "cross-entropy": CrossEntropy,
    "huber": Huber,
    "kullback-leibler": KullbackLeibler,
    "squared-error": SquaredError,
    "target": Target,
    "weighted-squared-error": WeightedSquaredError,
}

__all__ = [
    "LOSSES",
    "Absolute",
    "Criterion",
    "CrossEntropy",
    "Huber",
    "KullbackLeibler",
    "Loss",
    "LossLike",
    "ResidualLoss",
    "SquaredError",
    "Target",
    "WeightedSquaredError",
    "as_loss",
]

check_calls(__name__)
