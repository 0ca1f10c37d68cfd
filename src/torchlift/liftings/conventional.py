"""No lifting: the constraint itself."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.liftings.base import Lifting
from torchlift.prox import ProximalActivation
from torchlift.prox.base import indicator


@dataclass(frozen=True)
class Conventional(Lifting):
    """The hard constraint z = σ(v): ordinary training by back-propagation, the baseline.

        D(z, v) = 0 if z = σ(v), +∞ otherwise

    Equality is meant up to 256 eps · (1 + |v|) per entry, since v may have been
    summed in another order than z. There is nothing to differentiate, so
    gradients and prox are refused, and no weight to choose.
    """

    hard: ClassVar[bool] = True

    mu: float | tuple[float, ...] = field(default=1.0, init=False, repr=False)

    def value(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        tolerance = 256 * torch.finfo(z.dtype).eps * (1 + v.abs())
        missed = activation.reduce(~((z - activation(v)).abs() <= tolerance))  # true for NaN
        return indicator(missed == 0, activation.reduce(z))

    def grad_z(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        _refuse("grad_z")

    def grad_v(self, activation: ProximalActivation, z: Tensor, v: Tensor, weight: float | Tensor) -> Tensor:
        _refuse("grad_v")

    def prox_z(self, activation: ProximalActivation, z: Tensor, step: float | Tensor, weight: float | Tensor) -> Tensor:
        _refuse("prox_z")

    def curvature_z(self, activation: ProximalActivation) -> float:
        return math.inf

    def curvature_v(self, activation: ProximalActivation) -> float:
        return math.inf


def _refuse(method: str) -> NoReturn:
    hint = "Differentiate the network by back-propagation, or try Bregman(mu)."
    invalid_value(f"Conventional.{method}", "a lifting with a penalty", "the hard constraint z = σ(v)", hint)
