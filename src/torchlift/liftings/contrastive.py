"""The contrastive lifting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torchlift.liftings.classical import QuadraticLifting


@dataclass(frozen=True)
class Contrastive(QuadraticLifting):
    """The gap between the clamped and the free energy, both of them classical.

        E(z; θ)  = Σ_j μ_j/2 ‖z_j − v_j‖² + Ψ_j(z_j)
        minimise over θ:  min_z [L + E(z; θ)] − min_z E(z; θ)

    As a lifting this class is one layer's term of E: value, gradients and
    prox equal those of `Classical`. What makes it contrastive, the difference
    of two inner minimisations over z, involves the loss and all layers; the
    objective does it, told by `contrastive`.

    Arguments:
        mu: μ > 0, one number for all layers or one per layer.

    Reference: Zach & Estellers, Contrastive learning for lifted networks
    (BMVC 2019).
    """

    contrastive: ClassVar[bool] = True
