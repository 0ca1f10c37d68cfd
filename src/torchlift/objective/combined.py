"""Proximal maps of an activation's own nonsmooth part plus a regulariser on the hidden variables."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.functions.regularisers import L1, ElasticNet, Interval, NonNegative, Regulariser
from torchlift.liftings import Lifting
from torchlift.prox import Identity, ProximalActivation


def prox(
    lifting: Lifting,
    activation: ProximalActivation,
    regulariser: Regulariser | None,
    z: Tensor,
    step: float | Tensor,
    weight: float | Tensor,
) -> Tensor:
    """argmin_p ½‖p − z‖² + step·(nonsmooth part of D + R)(p).

    For entries treated alone the composition is exact: the proximal map of
    φ + λ|·| is prox_φ after soft-thresholding whenever 0 minimises φ, that of
    φ + λ|·| + ½b(·)² the same with both divided by 1 + b, and that of φ plus
    the indicator of an interval is the projection after prox_φ.
    """
    if regulariser is None or regulariser.smooth:
        return lifting.prox_z(activation, z, step, weight)
    if isinstance(regulariser, L1):
        return lifting.prox_z(activation, regulariser.prox(z, step), step, weight)
    if isinstance(regulariser, ElasticNet):
        shrunk = step / (1 + step * regulariser.ridge)
        return lifting.prox_z(activation, regulariser.prox(z, step), shrunk, weight)
    return regulariser.prox(lifting.prox_z(activation, z, step, weight), step)


def check(lifting: Lifting, activation: ProximalActivation, regulariser: Regulariser, layer: int) -> None:
    """Refuse a sum whose proximal map has no closed form."""
    if regulariser.smooth or isinstance(activation, Identity) or lifting.smooth_in_z:
        return
    elementwise = activation.dim is None
    if isinstance(regulariser, NonNegative | Interval) and elementwise:
        return
    zero = torch.zeros(1, 1, dtype=torch.float64)
    if isinstance(regulariser, L1 | ElasticNet) and elementwise and float(activation(zero)) == 0.0:
        return
    kinds = f"{type(activation).__name__} with {type(regulariser).__name__}"
    hint = "Use MACQP, whose penalty is smooth in z, a smooth regulariser, or PDHG or ADMM, which split the sum."
    invalid_value(f"regulariser of layer {layer}", "a sum with a closed proximal map", kinds, hint)
