"""The leaky rectifier with learned slopes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from torchlift.core.checks import check_tensor
from torchlift.core.errors import invalid_value
from torchlift.prox.base import ProximalActivation, check_step, describe


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
