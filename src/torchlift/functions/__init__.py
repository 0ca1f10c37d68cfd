"""Convex functions: one value per sample, a proximal map, and a gradient and a conjugate where they are closed.

| function          | g(x)                                | smooth  |
|-------------------|-------------------------------------|---------|
| `L1`              | w‖x‖₁                               | –       |
| `ElasticNet`      | a‖x‖₁ + ½b‖x‖²                      | –       |
| `GroupNorm`       | w Σ ‖x_group‖, or Huber's function  | δ > 0   |
| `NuclearNorm`     | w Σ singular values                 | –       |
| `Ridge`           | ½w‖x‖²                              | yes     |
| `SquaredDistance` | ½w‖x − c‖²                          | yes     |
| `LeastSquares`    | ½w‖Hx − y‖², without a prox         | yes     |
| `Box`             | 0 if lo ≤ x ≤ hi, +∞ otherwise      | –       |
| `NonNegative`     | 0 if x ≥ 0, +∞ otherwise            | –       |
| `Ball`            | 0 if ‖x‖₂ ≤ r, +∞ otherwise         | –       |
| `Equals`          | 0 if x = b, +∞ otherwise            | –       |

`losses`, `priors` and `regularisers` are made of them: a loss with its target is a
function of the prediction (`Loss.at`), a prior is a sum of functions of linear
maps, and a regulariser is a function of a parameter or a hidden variable.
"""

from __future__ import annotations

from torchlift.core.signatures import check_calls
from torchlift.functions.base import Function, Part, Prior, Split, check_step, per_sample
from torchlift.functions.constraints import Ball, Box, Equals, NonNegative
from torchlift.functions.group_norm import GroupNorm, NuclearNorm
from torchlift.functions.l1 import L1, ElasticNet
from torchlift.functions.squared_norm import LeastSquares, Ridge, SquaredDistance

#: Every function by name. A new one adds its line here and inherits all contract tests.
FUNCTIONS: dict[str, type[Function]] = {
    "ball": Ball,
    "box": Box,
    "elastic-net": ElasticNet,
    "equals": Equals,
    "group-norm": GroupNorm,
    "l1": L1,
    "least-squares": LeastSquares,
    "non-negative": NonNegative,
    "nuclear-norm": NuclearNorm,
    "ridge": Ridge,
    "squared-distance": SquaredDistance,
}

__all__ = [
    "FUNCTIONS",
    "L1",
    "Ball",
    "Box",
    "ElasticNet",
    "Equals",
    "Function",
    "GroupNorm",
    "LeastSquares",
    "NonNegative",
    "NuclearNorm",
    "Part",
    "Prior",
    "Ridge",
    "Split",
    "SquaredDistance",
    "check_step",
    "per_sample",
]

check_calls(__name__)
