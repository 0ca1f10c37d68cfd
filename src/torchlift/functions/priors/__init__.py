"""Priors R of images for stable inversion, and the registry that contract tests visit.

| prior            | R(x)                                        | through           |
|------------------|---------------------------------------------|-------------------|
| `TotalVariation` | Σ_pixels ‖∇x‖                               | dual projection   |
| `HuberTV`        | Σ_pixels h(‖∇x‖), quadratic below δ         | dual projection   |
| `Wavelet`        | ‖detail coefficients‖₁ (needs PyWavelets)   | dual projection   |
| `L1`             | ‖x‖₁                                        | prox              |
| `Tikhonov`       | ½‖Ax‖²                                      | prox, dual with A |
| `NonNegative`    | 0 if x ≥ 0, +∞ otherwise                    | projection        |
| `Box`            | 0 if lo ≤ x ≤ hi, +∞ otherwise              | projection        |
| `Ball`           | 0 if ‖x‖₂ ≤ r, +∞ otherwise                 | projection        |
| `PlugAndPlay`    | given by a callable prox                    | prox              |

Priors add up and take factors: `TotalVariation() + 0.1 * L1() + Box(0, 1)`. Every
`Function` is a prior as well.
"""

from __future__ import annotations

from torchlift.core.signatures import check_calls
from torchlift.functions.base import Multiple, Part, Prior, Split, Sum
from torchlift.functions.constraints import Ball, Box, NonNegative
from torchlift.functions.l1 import L1
from torchlift.functions.priors.images import HuberTV, TotalVariation, Wavelet
from torchlift.functions.priors.plug_and_play import PlugAndPlay
from torchlift.functions.priors.tikhonov import Tikhonov

#: Every prior by name. A new one adds its line here and inherits all contract tests.
PRIORS: dict[str, type[Prior]] = {
    "box": Box,
    "huber-tv": HuberTV,
    "l1": L1,
    "non-negative": NonNegative,
    "plug-and-play": PlugAndPlay,
    "tikhonov": Tikhonov,
    "total-variation": TotalVariation,
    "wavelet": Wavelet,
}

__all__ = [
    "L1",
    "PRIORS",
    "Ball",
    "Box",
    "HuberTV",
    "Multiple",
    "NonNegative",
    "Part",
    "PlugAndPlay",
    "Prior",
    "Split",
    "Sum",
    "Tikhonov",
    "TotalVariation",
    "Wavelet",
]

check_calls(__name__)
