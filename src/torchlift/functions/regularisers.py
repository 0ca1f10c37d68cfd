"""Regularisers of hidden variables and parameters: functions whose values are summed over the whole tensor.

| regulariser   | R(x)                            | gradient |
|---------------|---------------------------------|----------|
| `L1`          | w‖x‖₁                           | –        |
| `GroupNorm`   | w Σ ‖x_group‖₂                  | –        |
| `ElasticNet`  | a‖x‖₁ + ½b‖x‖²                  | –        |
| `NuclearNorm` | w Σ singular values             | –        |
| `Ridge`       | ½w‖x‖²                          | yes      |
| `Decay`       | ½w‖x − c‖²                      | yes      |
| `NonNegative` | 0 if x ≥ 0, +∞ otherwise        | –        |
| `Interval`    | 0 if lo ≤ x ≤ hi, +∞ otherwise  | –        |

Every other `Function` serves as well.
"""

from __future__ import annotations

from torchlift.functions.base import Function as Regulariser
from torchlift.functions.constraints import Box as Interval
from torchlift.functions.constraints import NonNegative
from torchlift.functions.group_norm import GroupNorm, NuclearNorm
from torchlift.functions.l1 import L1, ElasticNet
from torchlift.functions.squared_norm import Ridge
from torchlift.functions.squared_norm import SquaredDistance as Decay

#: Those that numbers make, by the names that files of settings use.
REGULARISERS: dict[str, type[Regulariser]] = {
    "elastic-net": ElasticNet,
    "group-norm": GroupNorm,
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
    "GroupNorm",
    "Interval",
    "NonNegative",
    "NuclearNorm",
    "Regulariser",
    "Ridge",
]
