"""Regularisers R of hidden variables and parameters, and the registry that contract tests visit.

| regulariser   | R(x)                            | gradient |
|---------------|---------------------------------|----------|
| `L1`          | w‖x‖₁                           | –        |
| `ElasticNet`  | a‖x‖₁ + ½b‖x‖²                  | –        |
| `NuclearNorm` | w Σ singular values             | –        |
| `Ridge`       | ½w‖x‖²                          | yes      |
| `Decay`       | ½w‖x − c‖²                      | yes      |
| `NonNegative` | 0 if x ≥ 0, +∞ otherwise        | –        |
| `Interval`    | 0 if lo ≤ x ≤ hi, +∞ otherwise  | –        |
"""

from __future__ import annotations

from torchlift.functions.regularisers.base import Regulariser
from torchlift.functions.regularisers.constraints import Interval, NonNegative
from torchlift.functions.regularisers.nuclear_norm import NuclearNorm
from torchlift.functions.regularisers.quadratic import Decay, Ridge
from torchlift.functions.regularisers.sparse import L1, ElasticNet

#: Every regulariser by name. A new one adds its line here and inherits all contract tests.
REGULARISERS: dict[str, type[Regulariser]] = {
    "decay": Decay,
    "elastic-net": ElasticNet,
    "interval": Interval,
    "l1": L1,
    "non-negative": NonNegative,
    "nuclear-norm": NuclearNorm,
    "ridge": Ridge,
}

__all__ = [
    "L1",
    "REGULARISERS",
    "Decay",
    "ElasticNet",
    "Interval",
    "NonNegative",
    "NuclearNorm",
    "Regulariser",
    "Ridge",
]
