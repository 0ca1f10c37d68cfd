"""Losses L(p; x), convex in the prediction p, and the registry that contract tests visit.

| loss           | L(p; x)                        | gradient      | curvature | prox |
|----------------|--------------------------------|---------------|-----------|------|
| `SquaredError` | ½‖p − x‖²                      | yes           | 1         | yes  |
| `CrossEntropy` | log Σ e^{p_c} − p_x            | yes           | ½         | yes  |
| `Huber`        | quadratic, linear beyond δ     | yes           | 1         | yes  |
| `Absolute`     | ‖p − x‖₁                       | a subgradient | ∞         | yes  |
| `Target`       | 0 if p = x, +∞ otherwise       | none          | ∞         | yes  |
"""

from __future__ import annotations

from torchlift.functions.losses.absolute import Absolute
from torchlift.functions.losses.base import Loss
from torchlift.functions.losses.cross_entropy import CrossEntropy
from torchlift.functions.losses.huber import Huber
from torchlift.functions.losses.squared_error import SquaredError
from torchlift.functions.losses.target import Target

#: Every loss by name. A new one adds its line here and inherits all contract tests.
LOSSES: dict[str, type[Loss]] = {
    "absolute": Absolute,
    "cross-entropy": CrossEntropy,
    "huber": Huber,
    "squared-error": SquaredError,
    "target": Target,
}

__all__ = [
    "LOSSES",
    "Absolute",
    "CrossEntropy",
    "Huber",
    "Loss",
    "SquaredError",
    "Target",
]
