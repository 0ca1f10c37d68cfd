"""The convex functions that priors are made of: one value per image, proximal maps, conjugates.

A step or weight is one number or one per image, a tensor (B,).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value

Amount = float | Tensor
"""One number, or a tensor (B,) with one per image."""

#: Relative room for rounding, where a point of a ball may be outside it.
ROOM = 64


class Function(ABC):
    """A closed convex function g of a batch (B, …), separately of each sample."""

    #: Whether g takes no values but 0 and +∞, so that only a proximal step keeps it finite.
    constraint: ClassVar[bool] = False

    @abstractmethod
    def value(self, w: Tensor) -> Tensor:
        """g(w), one per image: (B,); +∞ off its domain."""

    @abstractmethod
    def prox(self, w: Tensor, step: Amount) -> Tensor:
        """argmin_p ½‖p − w‖² + step·g(p) for step ≥ 0."""

    @abstractmethod
    def conjugate(self, p: Tensor, weight: Amount = 1.0) -> Tensor:
        """(weight·g)*(p), one per image: (B,)."""

    def dual_prox(self, p: Tensor, step: Amount, weight: Amount = 1.0) -> Tensor:
        """prox of step·(weight·g)* by Moreau's identity; overridden where a projection is cheaper."""
        step, weight = along(step, p), along(weight, p)
        return p - step * self.prox(p / step, weight / step)


@dataclass(frozen=True)
class Length(Function):
    """Lengths of groups of entries, with a Huber corner: |·|₁, ‖·‖₂,₁ and their smoothed forms.

        g(w) = Σ_groups h(‖w_group‖),   h(s) = s − δ/2 if s ≥ δ, s²/2δ otherwise
        (ρg)*(p) = δ/(2ρ) ‖p‖² if every group is at most ρ long, +∞ otherwise

    Arguments:
        axes: the axes whose entries belong together, counted with the batch axis; () for single entries.
        delta: δ ≥ 0; 0 keeps the corner.
    """

    axes: tuple[int, ...] = ()
    delta: float = 0.0

    def value(self, w: Tensor) -> Tensor:
        length = self.lengths(w)
        if self.delta == 0:
            return length.flatten(1).sum(1)
        # the smaller of the two pieces left of δ, the larger one never: write both by the part below δ
        below = length.clamp_max(self.delta)
        return (length - below + below.square() / (2 * self.delta)).flatten(1).sum(1)

    def prox(self, w: Tensor, step: Amount) -> Tensor:
        step = along(step, w)
        reach = (self.lengths(w) - self.delta).clamp_min(_at_least(step, w))
        return w * (1 - step / (reach + self.delta))

    def conjugate(self, p: Tensor, weight: Amount = 1.0) -> Tensor:
        length, weight = self.lengths(p), along(weight, p)
        outside = length > weight * (1 + ROOM * torch.finfo(p.dtype).eps)
        value = 0.5 * self.delta * length.square() / _at_least(weight, p) if self.delta else torch.zeros_like(length)
        return value.masked_fill(outside, math.inf).flatten(1).sum(1)

    def dual_prox(self, p: Tensor, step: Amount, weight: Amount = 1.0) -> Tensor:
        step, weight = along(step, p), along(weight, p)
        if self.delta:
            p = p * (weight / (weight + step * self.delta))
        if not self.axes:
            return p.clamp(-weight, weight) if not isinstance(weight, Tensor) else p.maximum(-weight).minimum(weight)
        return p * (weight / self.lengths(p).clamp_min(_at_least(weight, p)))

    def lengths(self, w: Tensor) -> Tensor:
        """‖w‖ of each group, its axes kept with size 1."""
        if not self.axes:
            return w.abs()
        if self.axes == (1,) and w.shape[1] == 2:
            # much faster than a norm over an axis of two entries
            return torch.addcmul(w[:, :1].square(), w[:, 1:], w[:, 1:]).sqrt_()
        return w.square().sum(self.axes, keepdim=True).sqrt_()


@dataclass(frozen=True)
class HalfSquare(Function):
    """g(w) = ½‖w‖², (ρg)*(p) = ‖p‖²/2ρ."""

    def value(self, w: Tensor) -> Tensor:
        return 0.5 * w.square().flatten(1).sum(1)

    def prox(self, w: Tensor, step: Amount) -> Tensor:
        return w / (1 + along(step, w))

    def conjugate(self, p: Tensor, weight: Amount = 1.0) -> Tensor:
        return 0.5 * (p.square() / _at_least(along(weight, p), p)).flatten(1).sum(1)

    def dual_prox(self, p: Tensor, step: Amount, weight: Amount = 1.0) -> Tensor:
        weight = along(weight, p)
        return p * (weight / (weight + along(step, p)))


@dataclass(frozen=True)
class Interval(Function):
    """g(w) = 0 if lo ≤ w ≤ hi, +∞ otherwise; g*(p) = Σ max(lo·p, hi·p)."""

    constraint: ClassVar[bool] = True

    lo: float
    hi: float

    def value(self, w: Tensor) -> Tensor:
        inside = ((w >= self.lo) & (w <= self.hi)).flatten(1).all(1)
        return torch.zeros_like(inside, dtype=w.dtype).masked_fill(~inside, math.inf)

    def prox(self, w: Tensor, step: Amount) -> Tensor:
        return w.clamp(self.lo, self.hi)

    def conjugate(self, p: Tensor, weight: Amount = 1.0) -> Tensor:
        # 0·∞ must count as 0: an open side costs nothing where p does not point to it
        up = torch.where(p > 0, self.hi * p, 0.0)
        down = torch.where(p < 0, self.lo * p, 0.0)
        return (up + down).flatten(1).sum(1)

    def meet(self, other: Interval) -> Interval:
        """The intersection of two intervals."""
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        if not lo < hi:
            got = f"[{self.lo:g}, {self.hi:g}] and [{other.lo:g}, {other.hi:g}]"
            invalid_value("sum of constraints", "intervals that overlap", got)
        return Interval(lo, hi)


@dataclass(frozen=True)
class Implicit(Function):
    """A function known only through a map that acts as its proximal map, such as a trained denoiser."""

    map: Callable[[Tensor, Tensor], Tensor]
    function: Callable[[Tensor], Tensor] | None = None

    def value(self, w: Tensor) -> Tensor:
        return w.new_zeros(w.shape[0]) if self.function is None else self.function(w)

    def prox(self, w: Tensor, step: Amount) -> Tensor:
        steps = along(step, w)
        steps = steps if isinstance(steps, Tensor) else w.new_full((w.shape[0],) + (1,) * (w.ndim - 1), steps)
        return self.map(w, steps)

    def conjugate(self, p: Tensor, weight: Amount = 1.0) -> Tensor:
        hint = "A duality gap needs priors that are written as functions."
        invalid_value("PlugAndPlay conjugate", "a function", "a map that acts as its prox", hint)


def along(amount: Amount, w: Tensor) -> Amount:
    """An amount per image in a shape that broadcasts against w; numbers as they are."""
    if not isinstance(amount, Tensor) or amount.ndim != 1:
        return amount
    return amount.view(-1, *(1,) * (w.ndim - 1))


def _at_least(amount: Amount, w: Tensor) -> Amount:
    """The amount, or the smallest normal number where it is 0: a divisor."""
    tiny = torch.finfo(w.dtype).tiny
    return amount.clamp_min(tiny) if isinstance(amount, Tensor) else max(amount, tiny)
