"""The classical lifted penalty."""

from __future__ import annotations

from dataclasses import dataclass

from torchlift.liftings.quadratic import QuadraticLifting


@dataclass(frozen=True)
class Classical(QuadraticLifting):
    """The distance to the pre-activation, with the activation's Ψ as a regulariser.

        D(z, v) = μ/2 ‖z − v‖² + Ψ(z)

    For ReLU, Ψ is the constraint z ≥ 0. Over z, D is least at prox_{Ψ/μ}(v),
    which is σ(v) if μ = 1 or Ψ is an indicator. D is not 0 there and, unlike
    the other penalties, also pulls v towards z: training tends to an affine
    network, so this lifting serves to initialise others.

    Arguments:
        mu: μ > 0, one number for all layers or one per layer.

    Reference: Askari et al., Lifted neural networks (2018).
    """
