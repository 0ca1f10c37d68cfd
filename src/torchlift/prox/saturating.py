"""Sigmoids: the logistic one, tanh, softsign, arctan and ISRU."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.special import xlog1py

from torchlift.core.checks import check_positive
from torchlift.prox.base import ProximalActivation, check_step, infinite_outside
from torchlift.prox.smooth import SmoothActivation


@dataclass(frozen=True)
class Sigmoid(SmoothActivation):
    """Logistic sigmoid.

        σ(v)  = 1 / (1 + e^{−v})
        Ψ(u)  = u log u + (1 − u) log(1 − u) − ½u² if 0 ≤ u ≤ 1, +∞ otherwise
        Φ*(v) = log(1 + e^v)

    Ψ(0) = 0 and Ψ(1) = −½.

    Reference: Combettes & Pesquet, Set-Valued and Variational Analysis 28
    (2020) (there shifted by ½).
    """

    def __call__(self, v: Tensor) -> Tensor:
        return torch.sigmoid(v)

    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.sigmoid(t)
        return value, value * (1 - value)

    def apply_(self, v: Tensor) -> Tensor:
        return v.sigmoid_()

    def psi(self, u: Tensor) -> Tensor:
        c = u.clamp(0, 1)
        value = torch.xlogy(c, c) + xlog1py(1 - c, -c) - 0.5 * c * c
        return infinite_outside(value, (u >= 0) & (u <= 1))

    def conjugate(self, v: Tensor) -> Tensor:
        # Not F.softplus, which drops e^{−v} beyond v = 20.
        return -F.logsigmoid(-v)

    def to_module(self) -> nn.Module:
        return nn.Sigmoid()


@dataclass(frozen=True)
class Tanh(SmoothActivation):
    """Hyperbolic tangent.

        σ(v)  = tanh(v)
        Ψ(u)  = ½[(1 + u) log(1 + u) + (1 − u) log(1 − u)] − ½u² if |u| ≤ 1, +∞ otherwise
        Φ*(v) = log cosh(v)

    Ψ is continuous up to its ends, Ψ(±1) = log 2 − ½, where some texts put +∞:
    lower semicontinuity asks for the finite value, and rounding reaches it.

    Reference: Combettes & Pesquet, Set-Valued and Variational Analysis 28
    (2020), there written u artanh(u) + ½(log(1 − u²) − u²).
    """

    def __call__(self, v: Tensor) -> Tensor:
        return torch.tanh(v)

    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.tanh(t)
        return value, 1 - value * value

    def apply_(self, v: Tensor) -> Tensor:
        return v.tanh_()

    def psi(self, u: Tensor) -> Tensor:
        c = u.clamp(-1, 1)
        entropy = xlog1py(1 + c, c) + xlog1py(1 - c, -c)
        return infinite_outside(0.5 * (entropy - c * c), u.abs() <= 1)

    def conjugate(self, v: Tensor) -> Tensor:
        # log cosh v = −½ log(1 − tanh² v) loses nothing near 0; the other form nothing far away.
        near = -0.5 * torch.log1p(-torch.tanh(v.clamp(-1, 1)).square())
        far = v.abs() + F.softplus(-2 * v.abs()) - math.log(2)
        return torch.where(v.abs() < 1, near, far)

    def to_module(self) -> nn.Module:
        return nn.Tanh()


@dataclass(frozen=True)
class Softsign(ProximalActivation):
    """Softsign.

        σ(v)  = v / (1 + |v|)
        Ψ(u)  = −|u| − log(1 − |u|) − ½u² if |u| < 1, +∞ otherwise
        Φ*(v) = |v| − log(1 + |v|)
        prox with step s is 2u / (1 + |u| + √((1 − |u|)² + 4s|u|)).

    Reference: Combettes & Pesquet, Set-Valued and Variational Analysis 28
    (2020).
    """

    def __call__(self, v: Tensor) -> Tensor:
        return F.softsign(v)

    def psi(self, u: Tensor) -> Tensor:
        c = u.abs().clamp(max=1)
        return infinite_outside(log1p_gap(-c) - 0.5 * c * c, u.abs() < 1)

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        step = check_step(step, u)
        if not isinstance(step, Tensor) and step == 1.0:
            return self(u)
        # The formula above divided by 1 + |u|: no square overflows, and the slope at 0 is finite.
        rest = 1 / (1 + u.abs())
        share = u.abs() * rest
        return 2 * u * rest / (1 + torch.sqrt((rest - share) ** 2 + 4 * step * share * rest))

    def conjugate(self, v: Tensor) -> Tensor:
        return log1p_gap(v.abs())

    def to_module(self) -> nn.Module:
        return nn.Softsign()


@dataclass(frozen=True)
class Arctan(SmoothActivation):
    """Arctangent.

        σ(v)  = arctan(v)
        Ψ(u)  = −log cos(u) − ½u² if |u| < π/2, +∞ otherwise
        Φ*(v) = v arctan(v) − ½ log(1 + v²)

    Reference: Combettes & Pesquet, Set-Valued and Variational Analysis 28
    (2020) (there scaled to the range (−1, 1)).
    """

    def __call__(self, v: Tensor) -> Tensor:
        return torch.arctan(v)

    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return torch.arctan(t), 1 / (1 + t * t)

    def psi(self, u: Tensor) -> Tensor:
        inside = u.abs() < math.pi / 2
        c = u.masked_fill(~inside, 0)
        # −log cos u = −½ log(1 − sin² u) is exact to rounding near 0, the plain form near the ends.
        near = -0.5 * torch.log1p(-torch.sin(c.clamp(-1, 1)).square())
        value = torch.where(c.abs() < 1, near, -torch.log(torch.cos(c))) - 0.5 * c * c
        return infinite_outside(value, inside)

    def conjugate(self, v: Tensor) -> Tensor:
        # ½ log(1 + v²) in two forms: v² overflows far away, hypot is coarse near 0.
        near = 0.5 * torch.log1p(v.clamp(-1, 1).square())
        far = torch.log(torch.hypot(v, torch.ones_like(v)))
        return v * torch.arctan(v) - torch.where(v.abs() < 1, near, far)


@dataclass(frozen=True)
class ISRU(SmoothActivation):
    """Inverse square root unit.

        σ(v)  = v / √(1 + αv²)
        Ψ(u)  = (1 − √(1 − αu²)) / α − ½u² if |u| ≤ 1/√α, +∞ otherwise
        Φ*(v) = (√(1 + αv²) − 1) / α

    Ψ(±1/√α) = 1/(2α). Beyond the ends, four units of rounding are forgiven,
    since 1/√α itself is rounded.

    Arguments:
        alpha: α > 0; the range is (−1/√α, 1/√α).

    Reference: Carlile et al., Improving deep learning by inverse square root
    linear units (2017); Combettes & Pesquet (2020).
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        check_positive("ISRU alpha", self.alpha)

    def __call__(self, v: Tensor) -> Tensor:
        # Finite stand-ins for ±∞ leave every finite value alone.
        v = v.clamp(-torch.finfo(v.dtype).max, torch.finfo(v.dtype).max)
        return v / self._root(v)

    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return self(t), self._root(t) ** -3

    def psi(self, u: Tensor) -> Tensor:
        square = u * u
        # (1 − √(1 − αu²)) / α without cancellation.
        root = torch.sqrt((1 - self.alpha * square).clamp(min=0))
        inside = math.sqrt(self.alpha) * u.abs() <= 1 + 4 * torch.finfo(u.dtype).eps
        return infinite_outside(square / (1 + root) - 0.5 * square, inside)

    def conjugate(self, v: Tensor) -> Tensor:
        return v * (v / (1 + self._root(v)))

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(), cls(3.0)

    def _root(self, v: Tensor) -> Tensor:
        """√(1 + αv²) without overflow."""
        return torch.hypot(math.sqrt(self.alpha) * v, torch.ones_like(v))


def log1p_gap(x: Tensor) -> Tensor:
    """x − log(1 + x) ≥ 0 for x ≥ −1, without cancellation near 0.

    With r = x / (2 + x), log(1 + x) = 2 artanh(r), whose first term leaves
    x − 2r = x·r; the rest is a short series.
    """
    near = x.clamp(-0.3, 0.3)
    r = near / (2 + near)
    tail = torch.zeros_like(r)
    for k in range(10, 0, -1):
        tail = (tail + 1 / (2 * k + 1)) * (r * r)
    return torch.where(x.abs() < 0.3, near * r - 2 * r * tail, x - torch.log1p(x))
