"""Shared base of smooth elementwise activations whose prox has no closed form."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from torchlift.prox.base import ProximalActivation, at_least_single, check_step
from torchlift.prox.newton import solve_increasing


class SmoothActivation(ProximalActivation):
    """An elementwise σ with a continuous slope 0 ≤ σ' ≤ 1.

    Here Ψ'(u) = σ⁻¹(u) − u, so the optimality condition of prox_{sΨ}(u) reads,
    with p = σ(t),

        g(t) = σ(t) + s·(t − σ(t)) − u = 0,      min(1, s) ≤ g' ≤ max(1, s),

    one increasing equation per entry, solved by safeguarded Newton. One last
    Newton step is recorded by autograd, which by the implicit function theorem
    makes the prox differentiable once (not twice) in `u` and `step`.
    """

    @abstractmethod
    def linearise(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """σ(t) and σ'(t), to full precision."""

    def prox(self, u: Tensor, step: float | Tensor = 1.0) -> Tensor:
        wide = at_least_single(u)
        step = check_step(step, wide)
        if not isinstance(step, Tensor) and step == 1.0:
            return self(u)
        return self.linearise(self.preimage(wide, step))[0].to(u.dtype)

    def preimage(self, u: Tensor, step: float | Tensor) -> Tensor:
        """The t with σ(t) + step·(t − σ(t)) = u, so that prox(u, step) = σ(t)."""

        def equation(t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            value, slope = self.linearise(t)
            size = u.abs() + value.abs() + step * (t.abs() + value.abs())
            return (value - u) + step * (t - value), slope + step * (1 - slope), size

        least_slope = step.clamp(max=1) if isinstance(step, Tensor) else min(1.0, step)
        with torch.no_grad():
            start = u + torch.zeros_like(step) if isinstance(step, Tensor) else u
            t = solve_increasing(equation, start, least_slope)
        residual, slope, _ = equation(t)
        # σ(±∞) is the end of the range whatever the step; the equation itself would give ∞ − ∞.
        return torch.where(u.isinf(), u, t - residual / slope)
