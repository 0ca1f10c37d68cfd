"""Projected L-BFGS on the composed network: how the default algorithm gets near the solution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_number, check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.core.tensors import Point
from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.nested import Nested
from torchlift.inversion.problem import InversionProblem, square_sum
from torchlift.inversion.solver import block_bound
from torchlift.inversion.state import InversionState, choose

#: A step is long enough if it takes this share of what its slope promises (Armijo's rule).
ARMIJO = 1e-4


@dataclass(frozen=True, eq=False)
class Curvature:
    """What is known at the current input, and pairs of changes of x and of the gradient.

    Arguments:
        smooth: f: (B,).
        value: f plus the smoothed prior: (B,).
        gradient: of that, like x.
        s, y: the pairs, the newest last: (B, memory, entries).
        inverse: 1/⟨s, y⟩, 0 where a pair is empty: (B, memory).
        step: the next step length: (B,).
    """

    smooth: Tensor
    value: Tensor
    gradient: Tensor
    s: Tensor
    y: Tensor
    inverse: Tensor
    step: Tensor


@dataclass(frozen=True, kw_only=True)
class QuasiNewton(Nested):
    """Projected L-BFGS, with pairs, step lengths and decisions of every image alone.

        x ← P(x − αH∇F(x)),   F(x) = L(N(x); y) + λ/2 ‖x − x₀‖² + ρ Σ_i (g_i)_ε(A_i x)

    P projects onto the constraints of the prior, (g)_ε is the Moreau envelope of g
    (a Huber function for total variation), and H acts on the entries that are not
    held by a constraint. A step that does not decrease F is undone and tried again
    shorter. A step costs one forward and one backward pass.

    Arguments:
        patience, visible: by default an image is done when 20 steps take less than 0.02 % off its objective.
        memory: pairs that are kept.
        smoothing: ε > 0.
        spectrum: p ≥ 0 of H before the first pair, which for images (C, height, width) divides the frequency f by
            (1 + |f|)^p: from a start that knows nothing, errors are largest where f is small.

    Reference: Liu & Nocedal, Mathematical Programming 45 (1989); Bertsekas, SIAM
    Journal on Control and Optimization 20 (1982), for projections.
    """

    monotonic: ClassVar[bool] = True

    patience: int = 20
    visible: float = 2e-4
    memory: int = 10
    smoothing: float = 2e-4
    spectrum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("QuasiNewton memory", self.memory)
        check_positive("QuasiNewton smoothing", self.smoothing)
        if check_number("QuasiNewton spectrum", self.spectrum) < 0:
            invalid_value("QuasiNewton spectrum", "a number >= 0", self.spectrum)

    def remember(self, problem: InversionProblem, state: InversionState) -> Curvature:
        x = state.x
        smooth, value, gradient, _ = self._evaluate(problem, x, state.products)
        pairs = x.new_zeros(len(x), self.memory, x[0].numel())
        inverse = x.new_zeros(len(x), self.memory)
        return Curvature(smooth, value, gradient, pairs, pairs.clone(), inverse, torch.ones_like(value))

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        memory, x = state.memory, state.x
        held = self._held(problem, x, memory.gradient)
        free = memory.gradient.masked_fill(held, 0.0)
        direction = _direction(memory, free, self._metric(x)).masked_fill_(held, 0.0)
        moved = x + along(memory.step, x) * direction
        moved = problem.split.prox(moved, 0.0) if problem.constrained else moved
        products = problem.split.products(moved)
        smooth, value, gradient, duals = self._evaluate(problem, moved, products)
        change, bend = moved - x, gradient - memory.gradient
        slope = torch.linalg.vecdot(memory.gradient.flatten(1), change.flatten(1))
        room = 4 * torch.finfo(value.dtype).eps * memory.value.abs()
        accepted = value <= memory.value + ARMIJO * slope + room
        pairs = _renewed(memory, change, bend, accepted)
        # the least value of the parabola through F, its slope and the value that was refused
        refused = (-slope / (2 * (value - memory.value - slope))).nan_to_num(0.0).clamp(0.05, 0.5)
        step = torch.where(accepted, (2 * memory.step).clamp_max(1.0), refused * memory.step)
        bound = block_bound(self._residual(problem, moved, gradient), moved, problem.guess)
        bound = bound + problem.dual_gap(products, duals)
        if not bool(accepted.all()):
            old = (x, state.duals, state.products, memory.smooth, memory.value, memory.gradient, state.bound)
            new = (moved, duals, products, smooth, value, gradient, bound)
            moved, duals, products, smooth, value, gradient, bound = choose(accepted, new, old)
        memory = Curvature(smooth, value, gradient, *pairs, step)
        point = Point({"x": moved, "z": (), "dual": duals})
        return replace(state, point=point, products=products, memory=memory, bound=bound)

    def _metric(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """H before the first pair, up to a factor, for gradients (B, entries): the identity or the spectrum's."""
        if not self.spectrum or x.ndim < 4:
            return lambda q: q
        height, width = x.shape[-2:]
        down = torch.fft.fftfreq(height, 1 / height, dtype=x.dtype, device=x.device)[:, None]
        right = torch.fft.rfftfreq(width, 1 / width, dtype=x.dtype, device=x.device)
        shares = (1 + torch.hypot(down, right)) ** -self.spectrum

        def metric(q: Tensor) -> Tensor:
            return torch.fft.irfft2(torch.fft.rfft2(q.view_as(x)) * shares, s=(height, width)).flatten(1)

        return metric

    def _evaluate(
        self, problem: InversionProblem, x: Tensor, products: Tensors
    ) -> tuple[Tensor, Tensor, Tensor, Tensors]:
        """f, F, ∇F, and the gradients of ρ(g_i)_ε, which are duals of the prior."""
        smooth, gradient = problem.smooth_gradient(x)
        split, value = problem.split, smooth
        parts = list(zip(split.terms, products, strict=True))
        if split.proximal is not None and not problem.constrained:
            parts.append((split.proximal, x))
        duals = []
        for part, w in parts:
            near = part.prox(w, self.smoothing)
            gap = w - near
            value = value + problem.weight * (part.value(near) + square_sum(gap) / (2 * self.smoothing))
            dual = along(problem.weight / self.smoothing, gap) * gap
            gradient = gradient + part.back(dual)
            duals.append(dual)
        return smooth, value, gradient, tuple(duals[: len(products)])

    def _held(self, problem: InversionProblem, x: Tensor, gradient: Tensor) -> Tensor:
        """Entries that a constraint holds: a small step against the gradient leaves them where they are."""
        if not problem.constrained:
            return torch.zeros_like(x, dtype=torch.bool)
        size = torch.finfo(x.dtype).eps ** 0.5
        return (problem.split.prox(x - size * gradient.sign(), 0.0) == x) & (gradient != 0)

    def _residual(self, problem: InversionProblem, x: Tensor, gradient: Tensor) -> Tensor:
        """The gradient, without what the constraints take up."""
        return gradient.masked_fill(self._held(problem, x, gradient), 0.0)


def _direction(memory: Curvature, gradient: Tensor, metric: Callable[[Tensor], Tensor]) -> Tensor:
    """−H∇F by the two-loop recursion; a step of length 1 before the first pair."""
    q = gradient.flatten(1)
    used = [k for k in range(memory.inverse.shape[1]) if bool((memory.inverse[:, k] != 0).any())]
    shares = {}
    for k in reversed(used):
        shares[k] = memory.inverse[:, k] * torch.linalg.vecdot(memory.s[:, k], q)
        q = q - shares[k][:, None] * memory.y[:, k]
    # the first guess of H: the metric P times ⟨s, y⟩/⟨y, Py⟩ of the newest pair, or a step of length 1
    newest, inverse = memory.y[:, -1], memory.inverse[:, -1]
    scale = 1 / (inverse * torch.linalg.vecdot(newest, metric(newest))).clamp_min(1e-30)
    q = metric(q)
    unit = 1 / torch.linalg.vector_norm(q, dim=1).clamp_min(1e-30)
    q = q * torch.where(inverse > 0, scale, unit)[:, None]
    for k in used:
        back = memory.inverse[:, k] * torch.linalg.vecdot(memory.y[:, k], q)
        q = q + (shares[k] - back)[:, None] * memory.s[:, k]
    # where the pairs of a non-convex function give no descent, the gradient does
    uphill = torch.linalg.vecdot(q, gradient.flatten(1)) <= 0
    q = torch.where(uphill[:, None], unit[:, None] * gradient.flatten(1), q)
    return -q.view_as(gradient)


def _renewed(memory: Curvature, change: Tensor, bend: Tensor, accepted: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The pairs with the newest one, where it was accepted and has positive curvature, in place of the oldest."""
    s, y = change.flatten(1), bend.flatten(1)
    product = torch.linalg.vecdot(s, y)
    good = accepted & (product > 1e-8 * torch.linalg.vecdot(y, y))
    inverse = 1 / product.clamp_min(1e-30)
    old = (memory.s, memory.y, memory.inverse)
    renewed = (_pushed(memory.s, s), _pushed(memory.y, y), _pushed(memory.inverse, inverse))
    return renewed if bool(good.all()) else choose(good, renewed, old)


def _pushed(queue: Tensor, newest: Tensor) -> Tensor:
    """A queue (B, memory, …) without its oldest entry and with a newest one."""
    return torch.cat([queue[:, 1:], newest[:, None]], 1)
