"""Activations that are proximal maps, σ = prox_Ψ, and the registry that contract tests visit.

Accuracy, as tested: the largest error in units of eps · max(1, |exact|), for
prox times max(1, step), where eps is the spacing of the dtype at 1.

| quantity      | double, against 50 digits | single, against double |
|---------------|---------------------------|------------------------|
| σ(v)          | 2                         | 2                      |
| Ψ(u)          | 8                         | 12                     |
| prox(u, step) | 3                         | 3                      |
| Φ*(v)         | 4                         | 4                      |

Two remarks. `Softplus` keeps torch's cut-off at v = 20 and hence an absolute
error of 2e-9 in σ, unless its `threshold` is raised. Ψ of `ISRU` has infinite
slope at its closed ends, where the rounding of u itself weighs more than this.
"""

from __future__ import annotations

from torchlift.core.signatures import check_calls
from torchlift.prox.base import (
    ActivationModule,
    GroupwiseActivation,
    ProximalActivation,
    check_group_step,
    check_step,
    indicator,
    infinite_outside,
)
from torchlift.prox.box import Box, Hardtanh, L2Ball, ReLU6
from torchlift.prox.convert import ACTIVATIONS, as_activation
from torchlift.prox.relu import Identity, LeakyReLU, PReLU, ReLU
from torchlift.prox.saturating import ISRU, Arctan, Sigmoid, Softsign, Tanh
from torchlift.prox.simplex import Simplex, Softmax
from torchlift.prox.smooth import SmoothActivation
from torchlift.prox.smooth_rectifiers import CELU, ELU, Softplus, Squareplus
from torchlift.prox.soft_threshold import GroupSoftThreshold, SoftThreshold

__all__ = [
    "ACTIVATIONS",
    "CELU",
    "ELU",
    "ISRU",
    "ActivationModule",
    "Arctan",
    "Box",
    "GroupSoftThreshold",
    "GroupwiseActivation",
    "Hardtanh",
    "Identity",
    "L2Ball",
    "LeakyReLU",
    "PReLU",
    "ProximalActivation",
    "ReLU",
    "ReLU6",
    "Sigmoid",
    "Simplex",
    "SmoothActivation",
    "SoftThreshold",
    "Softmax",
    "Softplus",
    "Softsign",
    "Squareplus",
    "Tanh",
    "as_activation",
    "check_group_step",
    "check_step",
    "indicator",
    "infinite_outside",
]

check_calls(__name__)
