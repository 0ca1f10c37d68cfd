"""Piecewise linear: the identity, ReLU and its leaky relatives, with a given slope and with learned ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchlift.core.checks import check_interval, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.prox.base import Projection, ProximalActivation, check_step, describe, indicator


@dataclass(frozen=True)
class Identity(Projection, ProximalActivation):
    """No activation at all.

    σ(v)  = v
    Ψ(u)  = 0
    Φ*(v) = ½v²
    """

    def __call__(self, v: Tensor) -> Tensor:
        return v

    def apply_(self, v: Tensor) -> Tensor:
        return v

    def psi(self, u: Tensor) -> Tensor:
        return torch.zeros_like(u)

    def conjugate(self, v: Tensor) -> Tensor:
        return 0.5 * v.square()

    def to_module(self) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class ReLU(Projection, ProximalActivation):
    """Rectified linear unit, the projection onto the non-negative numbers.

        σ(v)  = max(v, 0)
        Ψ(u)  = 0 if u ≥ 0, +∞ otherwise
        Φ*(v) = ½ max(v, 0)²

    Reference: Combettes & Pesquet, Deep neural network structures solving
    variational inequalities, Set-Valued and Variational Analysis 28 (2020).
    """

    def __call__(self, v: Tensor) -> Tensor:
        return F.relu(v)

    def apply_(self, v: Tensor) -> Tensor:
        return v.relu_()

    def psi(self, u: Tensor) -> Tensor:
        return indicator(u >= 0, u)

    def conjugate(self, v: Tensor) -> Tensor:
        return 0.5 * F.relu(v).square()

    def to_module(self) -> nn.Module:
        return nn.ReLU()


@dataclass(frozen=True)
class LeakyReLU(ProximalActivation):
    """Leaky rectifier with slope a on the negative side.

        σ(v)  = v if v ≥ 0, a·v otherwise
        Ψ(u)  = 0 if u ≥ 0, ½(1/a − 1)u² otherwise
        Φ*(v) = ½ v σ(v)
        prox with step s has the slope a / (a + s(1 − a)) on the negative side.

    Arguments:
        slope: a in (0, 1).

    Reference: Combettes & Pesquet (2020), as for ReLU.
    """

    slope: float = 0.01

    def __post_init__(self) -> None:
        hint = "Slope 0 is ReLU(), slope 1 is Identity(); other slopes are not proximal."
        check_interval("LeakyReLU slope", self.slope, "(0, 1)", hint)

    def __call__(self, v: Tensor) -> Tensor:
        return F.leaky_relu(v, self.slope)

    def psi(self, u: Tensor) -> Tensor:
        return 0.5 * (1 / self.slope - 1) * u.clamp(max=0).square()

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        slope = self.slope / (self.slope + check_step(step, u) * (1 - self.slope))
        return torch.where(u < 0, slope * u, u)

    def conjugate(self, v: Tensor) -> Tensor:
        return 0.5 * v * self(v)

    def to_module(self) -> nn.Module:
        return nn.LeakyReLU(self.slope)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(), cls(0.3)


@dataclass(frozen=True, eq=False, repr=False)
class PReLU(ProximalActivation):
    """The activation of `nn.PReLU`: a leaky rectifier whose slopes a are a tensor, one number or one per channel.

        σ(v)  = v if v ≥ 0, a·v otherwise
        Ψ(u)  = 0 if u ≥ 0, ½(1/a − 1)u² otherwise
        Φ*(v) = ½ v σ(v)

    Arguments:
        slope: a in (0, 1], shape (1,) or (C,) with channels on axis 1. It is not read, so that no device waits:
            `lift` checks it once.
    """

    slope: Tensor

    def __post_init__(self) -> None:
        if check_tensor("PReLU slope", self.slope).ndim != 1:
            invalid_value("PReLU slope", "a tensor of shape (1,) or (channels,)", tuple(self.slope.shape))

    def __call__(self, v: Tensor) -> Tensor:
        return F.prelu(v, self.slope.to(v))

    def __repr__(self) -> str:
        return describe(self)

    def psi(self, u: Tensor) -> Tensor:
        return 0.5 * (1 / self._aligned(u) - 1) * u.clamp(max=0).square()

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        slope = self._aligned(u)
        return torch.where(u < 0, slope / (slope + check_step(step, u) * (1 - slope)) * u, u)

    def conjugate(self, v: Tensor) -> Tensor:
        return 0.5 * v * self(v)

    @classmethod
    def example(cls) -> ProximalActivation:
        return cls(torch.tensor([0.25], dtype=torch.float64))

    def _aligned(self, v: Tensor) -> Tensor:
        slope = self.slope.to(v)
        return slope if len(slope) == 1 or v.ndim < 2 else slope.view(-1, *(1,) * (v.ndim - 2))
