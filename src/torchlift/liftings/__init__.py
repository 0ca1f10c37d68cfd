"""Liftings: penalties D_σ(z, v) in place of z = σ(v), and the registry that contract tests visit.

| lifting        | D_σ(z, v)                        | nonsmooth in z | ∇_v D              |
|----------------|----------------------------------|----------------|--------------------|
| `Conventional` | 0 if z = σ(v), +∞ otherwise      | –              | –                  |
| `MACQP`        | μ/2 ‖z − σ(v)‖²                  | –              | μ σ'(v)ᵀ(σ(v) − z) |
| `Classical`    | μ/2 ‖z − v‖² + Ψ(z)              | Ψ              | μ (v − z)          |
| `Contrastive`  | as `Classical`, in two energies  | Ψ              | μ (v − z)          |
| `Fenchel`      | μ B_σ(z, v), per activation      | μΨ             | μ (σ(v) − z)       |
| `Bregman`      | μ [Φ(z) + Φ*(v) − ⟨z, v⟩]        | μΨ             | μ (σ(v) − z)       |
"""

from __future__ import annotations

from torchlift.core.signatures import check_calls
from torchlift.liftings.base import Lifting, weighted
from torchlift.liftings.bregman import Bregman, Fenchel
from torchlift.liftings.classical import MACQP, Classical, Contrastive
from torchlift.liftings.conventional import Conventional

#: Every lifting by name. A new one adds its line here and inherits all contract tests.
LIFTINGS: dict[str, type[Lifting]] = {
    "bregman": Bregman,
    "classical": Classical,
    "contrastive": Contrastive,
    "conventional": Conventional,
    "fenchel": Fenchel,
    "mac-qp": MACQP,
}

__all__ = [
    "LIFTINGS",
    "MACQP",
    "Bregman",
    "Classical",
    "Contrastive",
    "Conventional",
    "Fenchel",
    "Lifting",
    "weighted",
]

check_calls(__name__)
