"""Exponential linear units: ELU and CELU."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.special import xlog1py

from torchlift.core.checks import check_positive
from torchlift.core.errors import NotProximalError, message
from torchlift.prox.base import ProximalActivation, infinite_outside
from torchlift.prox.smooth import SmoothActivation


class ExponentialUnit(SmoothActivation):
    """The shared formulas of ELU and CELU, with depth α and rate r, αr ≤ 1.

    σ(v)  = v if v > 0, α(e^{rv} − 1) otherwise
    Ψ(u)  = 0 if u > 0, [(α + u) log(1 + u/α) − u]/r − ½u² if −α ≤ u ≤ 0, +∞ otherwise
    Φ*(v) = ½v² if v > 0, α[(e^{rv} − 1)/r − v] otherwise
    """

    alpha: float = 1.0

    @property
    @abstractmethod
    def rate(self) -> float:
        """r: how fast the negative side saturates."""

    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        value = self(t)
        return value, torch.where(t > 0, 1.0, self.rate * (value + self.alpha))

    def psi(self, u: Tensor) -> Tensor:
        c = u.clamp(-self.alpha, 0)
        value = (xlog1py(self.alpha + c, c / self.alpha) - c) / self.rate - 0.5 * c * c
        return infinite_outside(value, u >= -self.alpha)

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        # Ψ vanishes on the positive side, where Newton would only add rounding.
        return torch.where(u > 0, u, super().prox(u.clamp(max=0), step))

    def conjugate(self, v: Tensor) -> Tensor:
        negative = v.clamp(max=0)
        saturating = self.alpha * (torch.expm1(self.rate * negative) / self.rate - negative)
        return torch.where(v > 0, 0.5 * v.square(), saturating)


@dataclass(frozen=True)
class ELU(ExponentialUnit):
    """Exponential linear unit.

        σ(v)  = v if v > 0, α(e^v − 1) otherwise
        Ψ(u)  = 0 if u > 0, (α + u) log(1 + u/α) − u − ½u² if −α ≤ u ≤ 0, +∞ otherwise
        Φ*(v) = ½v² if v > 0, α(e^v − 1 − v) otherwise

    Ψ(−α) = α − ½α². For α > 1 the slope at 0⁻ exceeds 1 and σ is no proximal map.

    Arguments:
        alpha: α in (0, 1].

    Reference: Combettes & Pesquet, Set-Valued and Variational Analysis 28 (2020).
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        if check_positive("ELU alpha", self.alpha) > 1:
            hint = "Beyond 1 its slope exceeds 1: no proximal map. Try CELU(alpha), which is one for every alpha > 0."
            raise NotProximalError(message("ELU alpha", "a number in (0, 1]", self.alpha, hint))

    @property
    def rate(self) -> float:
        return 1.0

    def __call__(self, v: Tensor) -> Tensor:
        return F.elu(v, self.alpha)

    def to_module(self) -> nn.Module:
        return nn.ELU(self.alpha)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(), cls(0.3)


@dataclass(frozen=True)
class CELU(ExponentialUnit):
    """Continuously differentiable exponential linear unit.

        σ(v)  = v if v > 0, α(e^{v/α} − 1) otherwise
        Ψ(u)  = 0 if u > 0, α[(α + u) log(1 + u/α) − u] − ½u² if −α ≤ u ≤ 0, +∞ otherwise
        Φ*(v) = ½v² if v > 0, α[α(e^{v/α} − 1) − v] otherwise

    Arguments:
        alpha: α > 0.

    Reference: Barron, Continuously differentiable exponential linear units (2017).
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_positive("CELU alpha", self.alpha)

    @property
    def rate(self) -> float:
        return 1 / self.alpha

    def __call__(self, v: Tensor) -> Tensor:
        return F.celu(v, self.alpha)

    def to_module(self) -> nn.Module:
        return nn.CELU(self.alpha)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(0.5), cls(2.0)
