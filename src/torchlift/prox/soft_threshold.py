"""Soft-thresholding, entry by entry or group by group."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torchlift.core.checks import check_positive, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.prox.base import (
    GroupwiseActivation,
    ProximalActivation,
    check_dim,
    check_group_step,
    check_step,
    group_norm,
)


@dataclass(frozen=True, eq=False)
class SoftThreshold(ProximalActivation):
    """Soft-thresholding, the proximal map of the ℓ1 norm.

        σ(v)  = sign(v) max(|v| − λ, 0)
        Ψ(u)  = λ|u|
        Φ*(v) = ½ max(|v| − λ, 0)²
        prox with step s is soft-thresholding at sλ.

    Arguments:
        threshold: λ > 0, a number, a 0-d tensor, or a tensor of shape (C,)
            with one threshold per channel. Tensors receive gradients.
        channel_dim: the axis of the input that a per-channel threshold runs
            along. (Not `dim`, which marks groupwise activations.)
        validate: whether to check that the entries of a tensor are finite and
            > 0. Turn this off for thresholds that are positive by
            construction: the check makes the device wait, and stops tracing.

    Reference: Daubechies, Defrise & De Mol, Communications on Pure and Applied
    Mathematics 57 (2004); Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    threshold: float | Tensor
    channel_dim: int = 1
    validate: bool = True

    def __post_init__(self) -> None:
        where = "SoftThreshold threshold"
        if not isinstance(self.threshold, Tensor):
            check_positive(where, self.threshold)
            return
        check_tensor(where, self.threshold)
        check_dim("SoftThreshold channel_dim", self.channel_dim)
        if self.threshold.ndim > 1 or self.threshold.numel() == 0:
            hint = "Give one number, or one per channel."
            invalid_value(where, "a tensor of shape () or (channels,)", tuple(self.threshold.shape), hint)
        if self.validate and not bool(((self.threshold > 0) & self.threshold.isfinite()).all()):
            hint = "Parametrise it, e.g. as torch.nn.functional.softplus(raw)."
            invalid_value(where, "finite entries > 0", f"a smallest entry of {float(self.threshold.min())}", hint)

    def __call__(self, v: Tensor) -> Tensor:
        return self._shrink(v, self._aligned(v))

    def apply_(self, v: Tensor) -> Tensor:
        if isinstance(self.threshold, Tensor):
            return super().apply_(v)
        return torch.ops.aten.softshrink.out(v, self.threshold, out=v)

    def psi(self, u: Tensor) -> Tensor:
        return self._aligned(u) * u.abs()

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        return self._shrink(u, self._aligned(u) * check_step(step, u))

    def conjugate(self, v: Tensor) -> Tensor:
        return 0.5 * self(v).square()

    def conjugate_slopes(self, v: Tensor) -> dict[str, Tensor]:
        if not isinstance(self.threshold, Tensor) or self.threshold.ndim or not self.threshold.requires_grad:
            return super().conjugate_slopes(v)
        return {"threshold": -self(v).detach().abs().sum()}  # −∂Ψ/∂λ at σ(v)

    def carried(self, z: Tensor, to: ProximalActivation) -> Tensor:
        """λz/λ', since λ'|λz/λ'| = λ|z|."""
        assert isinstance(to, SoftThreshold)  # of the same kind
        return z * (self._aligned(z) / to._aligned(z))

    def to_module(self) -> nn.Module:
        return super().to_module() if isinstance(self.threshold, Tensor) else nn.Softshrink(self.threshold)

    @classmethod
    def example(cls) -> ProximalActivation:
        return cls(0.2)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        per_channel = torch.tensor([0.1, 0.5, 2.0], dtype=torch.float64)
        return cls(0.2), cls(torch.tensor(0.7, dtype=torch.float64)), cls(per_channel, channel_dim=-1)

    def _aligned(self, v: Tensor) -> float | Tensor:
        """The threshold in a shape that broadcasts against v."""
        if not isinstance(self.threshold, Tensor):
            return self.threshold
        threshold = self.threshold.to(v)
        if threshold.ndim == 0:
            return threshold
        return threshold.view(-1, *(1,) * self._axes_after_channels(v))

    def _axes_after_channels(self, v: Tensor) -> int:
        channels, dim = len(self.threshold), self.channel_dim  # pyright: ignore[reportArgumentType]
        axis = dim if dim >= 0 else v.ndim + dim
        if not 0 <= axis < v.ndim or v.shape[axis] != channels:
            hint = "Set channel_dim to the axis that the thresholds run along."
            invalid_value("SoftThreshold input", f"{channels} channels along axis {dim}", tuple(v.shape), hint)
        return v.ndim - 1 - axis

    @staticmethod
    def _shrink(v: Tensor, threshold: float | Tensor) -> Tensor:
        if not isinstance(threshold, Tensor):
            return F.softshrink(v, threshold)
        # The same bits as F.softshrink, which takes numbers only, with a gradient for the threshold.
        if torch.is_grad_enabled():
            return v - torch.clamp(v, -threshold, threshold)
        return v - torch.minimum(torch.maximum(v, -threshold), threshold)  # twice as fast, but not on the way back


@dataclass(frozen=True)
class GroupSoftThreshold(GroupwiseActivation):
    """Group (block) soft-thresholding, the proximal map of the ℓ2 norm of each group.

        σ(v)  = v max(1 − λ/‖v‖, 0)
        Ψ(u)  = λ‖u‖
        Φ*(v) = ½ max(‖v‖ − λ, 0)²
        prox with step s is group soft-thresholding at sλ.

    Arguments:
        threshold: λ > 0.
        dim: the axis along which entries form a group.

    Reference: Yuan & Lin, Journal of the Royal Statistical Society B 68
    (2006); Parikh & Boyd, Proximal Algorithms (2014), chapter 6.
    """

    threshold: float
    dim: int = -1

    def __post_init__(self) -> None:
        check_positive("GroupSoftThreshold threshold", self.threshold)
        check_dim("GroupSoftThreshold dim", self.dim)

    def __call__(self, v: Tensor) -> Tensor:
        return self.prox(v, 1.0)

    def psi(self, u: Tensor) -> Tensor:
        return self.threshold * group_norm(u, self.dim).squeeze(self.dim)

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        threshold = self.threshold * check_group_step(step, u, self.dim)
        # Below the threshold the factor is 0 / λ, never 0 / 0.
        norm = group_norm(u, self.dim).clamp(min=threshold)
        return u * ((norm - threshold) / norm)

    def conjugate(self, v: Tensor) -> Tensor:
        return 0.5 * F.relu(group_norm(v, self.dim).squeeze(self.dim) - self.threshold).square()

    @classmethod
    def example(cls) -> ProximalActivation:
        return cls(0.7)

    @classmethod
    def examples(cls) -> tuple[ProximalActivation, ...]:
        return cls(0.7), cls(0.2, dim=0)
