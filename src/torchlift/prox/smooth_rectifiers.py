"""Smooth rectifiers: softplus, squareplus, and exponential linear units."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.special import xlog1py

from torchlift.core.checks import check_number, check_positive
from torchlift.core.errors import NotProximalError, invalid_value, message
from torchlift.prox.base import ProximalActivation, check_step, infinite_outside
from torchlift.prox.smooth import SmoothActivation

_ZETA_2 = math.pi**2 / 6


@dataclass(frozen=True)
class Softplus(SmoothActivation):
    """Softplus, written with the dilogarithm Li₂.

        σ(v)  = log(1 + e^{βv}) / β
        Ψ(u)  = [Li₂(e^{−βu}) − π²/6] / β² if u ≥ 0, +∞ otherwise
        Φ*(v) = −Li₂(−e^{βv}) / β²

    Ψ(0) = 0, Ψ(∞) = −π²/(6β²).

    Arguments:
        beta: β > 0.
        threshold: where βv exceeds it, torch returns v itself; so does σ, to
            give the same bits. At the default 20 this costs up to 2e-9 in
            absolute terms, visible only in double precision; a threshold of
            40 costs nothing. `prox`, `psi` and `conjugate` never cut off.

    Reference: Zagier, The dilogarithm function (2007), for Li₂. That softplus
    is a proximal map follows from 0 < σ' < 1 (Combettes & Pesquet, 2020).
    """

    beta: float = 1.0
    threshold: float = 20.0

    def __post_init__(self) -> None:
        check_positive("Softplus beta", self.beta)
        if check_number("Softplus threshold", self.threshold) < 20:
            hint = "A lower cut-off tears a visible jump into the activation, which then is no proximal map."
            invalid_value("Softplus threshold", "a number >= 20", self.threshold, hint)

    def __call__(self, v: Tensor) -> Tensor:
        return F.softplus(v, self.beta, self.threshold)

    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return -F.logsigmoid(-self.beta * t) / self.beta, torch.sigmoid(self.beta * t)

    def psi(self, u: Tensor) -> Tensor:
        c = self.beta * u.clamp(min=0)
        # Li₂(e^{−c}) − π²/6 = c log(1 − e^{−c}) − D(c), and Li₂(z) = D(−log(1 − z)).
        small = c.clamp(max=1)
        near = torch.xlogy(small, -torch.expm1(-small)) - debye(small)
        far = debye(-torch.log1p(-torch.exp(-c.clamp(min=0.5)))) - _ZETA_2
        value = torch.where(c < math.log(2), near, far) / self.beta**2
        return infinite_outside(value, u >= 0)

    def conjugate(self, v: Tensor) -> Tensor:
        x = self.beta * v
        # −Li₂(−e^x) = −D(−log(1 + e^x)); for x > 0 by the inversion formula.
        negative = -debye(F.logsigmoid(-x.clamp(max=0)))
        positive = _ZETA_2 + 0.5 * x * x + debye(F.logsigmoid(x.clamp(min=0)))
        return torch.where(x > 0, positive, negative) / self.beta**2

    def to_module(self) -> nn.Module:
        return nn.Softplus(self.beta, self.threshold)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(), cls(beta=3.0, threshold=40.0)


@dataclass(frozen=True)
class Squareplus(ProximalActivation):
    """Squareplus, the proximal map of the logarithmic barrier.

        σ(v)  = ½(v + √(v² + 4c))
        Ψ(u)  = −c log u if u > 0, +∞ otherwise
        Φ*(v) = σ(v) (v − ½σ(v)) + c log σ(v)
        prox with step s is squareplus with sc in place of c.

    Arguments:
        c: the weight of the barrier, c > 0.

    Reference: Barron, Squareplus: a softplus-like algebraic rectifier (2021);
    Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    c: float = 1.0

    def __post_init__(self) -> None:
        check_positive("Squareplus c", self.c)

    def __call__(self, v: Tensor) -> Tensor:
        return self.prox(v, 1.0)

    def psi(self, u: Tensor) -> Tensor:
        # max(u, 0) sends negative entries to −log 0 = +∞ as well; NaN needs the mask.
        return infinite_outside(-self.c * torch.log(u.clamp(min=0)), u > 0)

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        c = self.c * check_step(step, u)
        root = torch.hypot(u, 2 * c.sqrt() if isinstance(c, Tensor) else torch.full_like(u, 2 * math.sqrt(c)))
        # For u < 0 the sum of the textbook formula cancels; its conjugate form does not.
        return torch.where(u >= 0, 0.5 * (root + u), 2 * c / (root - u.clamp(max=0)))

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(), cls(0.01)


#: B_{2k} / (2k + 1)! for k = 1 … 9, with B_{2k} the Bernoulli numbers.
_BERNOULLI = (
    1 / 36,
    -1 / 3600,
    1 / 211680,
    -1 / 10886400,
    1 / 526901760,
    -691 / 16999766784000,
    1 / 1120863744000,
    -3617 / 181400588328960000,
    43867 / 97072790126247936000,
)


def debye(w: Tensor) -> Tensor:
    """D(w) = ∫₀^w t / (e^t − 1) dt = Li₂(1 − e^{−w}), for |w| ≤ log 2 (any |w| ≤ 1 at slightly less precision).

    The series w − w²/4 + Σ B_{2k} w^{2k+1} / (2k + 1)! gains almost two digits
    per term, so nine terms reach double precision.

    Reference: 't Hooft & Veltman, Nuclear Physics B 153 (1979), appendix A.
    """
    square = w * w
    tail = torch.full_like(w, _BERNOULLI[-1])
    for coefficient in reversed(_BERNOULLI[:-1]):
        tail = tail * square + coefficient
    return w - 0.25 * square + w * square * tail


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
