"""Projected L-BFGS on the composed network: how the default algorithm gets near the solution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_number, check_positive, check_size
from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.problem import InversionProblem, is_picture, square_sum
from torchlift.inversion.solver import InversionState, Nested, block_bound, length, put_back

#: A step is long enough if it takes this share of what its slope promises (Armijo's rule).
ARMIJO = 1e-4

#: The first step has length 1, which is nothing to images of values up to 65,535: there it is this part of the way on
#: which the slope would take the objective to 0, at most so long, and while it gains nearly all that the slope
#: promises, the next is so many times longer.
REACH, FURTHEST, STRAIGHT, LONGER = 2e-3, 1e5, 0.99, 10.0

#: Pairs that are kept: of most inputs, and of those of few entries, with which they cost nothing.
FEW, MANY, LITTLE = 10, 40, 128

Metric = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What is known at an input.

    Arguments:
        objective: f plus the prior: (B,).
        value: F, f plus the smoothed prior: (B,).
        gradient: ∇F, like x.
        free: ∇F, 0 where a constraint holds x.
        gap: how far the duals of the prior are from subgradients, see `InversionProblem.dual_gap`: (B,).
        pull: ‖∇f‖, 0 where the network is flat: (B,).
    """

    objective: Tensor
    value: Tensor
    gradient: Tensor
    free: Tensor
    gap: Tensor
    pull: Tensor


@dataclass(frozen=True, eq=False)
class Pairs:
    """Changes of x and of the gradient, the newest last; empty ones are 0.

    Arguments:
        s, y: (B, memory, entries).
        products: ⟨s_i, y_j⟩ for i ≤ j, else 0, and 1 on the diagonal where a pair is empty: (B, memory, memory).
        scale: ⟨s, y⟩/⟨y, Py⟩ of the newest pair, with the metric P; 0 before the first: (B,).
    """

    s: Tensor
    y: Tensor
    products: Tensor
    scale: Tensor


@dataclass(frozen=True, eq=False)
class Curvature:
    """The current input, the pairs, and the next step length (B,)."""

    at: Evaluation
    pairs: Pairs
    step: Tensor


@dataclass(frozen=True, kw_only=True)
class QuasiNewton(Nested):
    """Projected L-BFGS, with pairs, step lengths and decisions of every image alone.

        x ← P(x − αH∇F(x)),   F(x) = L(N(x); y) + λ/2 ‖x − x₀‖² + ρ Σ_i (g_i)_ε(A_i x)

    P projects onto the constraints of the prior, (g)_ε is the Moreau envelope of g
    (a Huber function for total variation) or g itself where it is smooth, and H acts
    on the entries that are not held by a constraint. A step that does not decrease F is
    undone and tried again shorter. A step costs one forward and one backward pass.

    Arguments:
        patience, visible: by default an image is done when 20 steps take less than 0.02 % off its objective.
        memory: pairs that are kept; by default 10, and for inputs of up to 128 entries as many as these, 40 at most.
        smoothing: ε > 0.
        spectrum: p ≥ 0 of H before the first pair, which for images (C, height, width) divides the frequency f by
            (1 + |f|)^p: from a start that knows nothing, errors are largest where f is small.

    Reference: Liu & Nocedal, Mathematical Programming 45 (1989); Byrd, Nocedal &
    Schnabel, Mathematical Programming 63 (1994), for H in matrices; Bertsekas, SIAM
    Journal on Control and Optimization 20 (1982), for projections.
    """

    monotonic: ClassVar[bool] = True

    patience: int = 20
    visible: float = 2e-4
    memory: int | None = None
    smoothing: float = 2e-4
    spectrum: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None:
            check_size("QuasiNewton memory", self.memory)
        check_positive("QuasiNewton smoothing", self.smoothing)
        check_number("QuasiNewton spectrum", self.spectrum, minimum=0)

    def remember(self, problem: InversionProblem, state: InversionState) -> Curvature:
        x = state.x
        at, _ = self._evaluate(problem, x, state.products)
        entries = x[0].numel()
        room = self.memory or (max(FEW, min(entries, MANY)) if entries <= LITTLE else FEW)
        empty = x.new_zeros(len(x), room, entries)
        products = torch.eye(room, dtype=x.dtype, device=x.device).expand(len(x), -1, -1).clone()
        pairs = Pairs(empty, empty.clone(), products, torch.zeros_like(at.value))
        reach = REACH * at.value / length(at.free).clamp_min(1e-30)
        return Curvature(at, pairs, reach.clamp(1.0, FURTHEST))

    def value(self, problem: InversionProblem, state: InversionState) -> Tensor:
        return state.memory.at.objective

    def pull(self, state: InversionState) -> Tensor:
        return state.memory.at.pull

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        memory, x = state.memory, state.x
        at, pairs = memory.at, memory.pairs
        metric = self._metric(x)
        moved = x + along(memory.step, x) * _direction(pairs, at.free, metric, problem.constrained)
        moved = problem.split.prox(moved, 0.0) if problem.constrained else moved
        products = problem.split.products(moved)
        new, duals = self._evaluate(problem, moved, products)
        change, bend = (moved - x).flatten(1), (new.gradient - at.gradient).flatten(1)
        slope = torch.linalg.vecdot(at.gradient.flatten(1), change)
        room = 4 * torch.finfo(x.dtype).eps * at.value.abs()
        accepted = new.value <= at.value + ARMIJO * slope + room
        gained = at.value - new.value
        accepted = accepted & ((memory.step <= 1) | (gained > 0.5 * -slope))
        # so far from the solution, in the unit of x, that no curvature is seen
        straight = accepted & (pairs.scale == 0) & (gained > STRAIGHT * -slope)
        pairs = _renewed(pairs, change, bend, accepted & ~straight, metric)
        bound = block_bound(new.free, moved, problem.guess) + new.gap
        step = torch.where(straight, LONGER * memory.step, (2 * memory.step).clamp_max(1.0))
        if not bool(accepted.all()):
            # the least value of the parabola through F, its slope and the value that was refused
            shorter = (-slope / (2 * (new.value - at.value - slope))).nan_to_num(0.0).clamp(0.05, 0.5)
            step = torch.where(accepted, step, shorter * memory.step)
            refused = ~accepted
            moved, bound = put_back(refused, [x, state.bound], [moved, bound])
            duals = tuple(put_back(refused, state.duals, duals))
            products = tuple(put_back(refused, state.products, products))
            new = Evaluation(*put_back(refused, [*vars(at).values()], [*vars(new).values()]))
        memory = Curvature(new, pairs, step)
        return replace(state, x=moved, duals=duals, products=products, memory=memory, bound=bound)

    def _metric(self, x: Tensor) -> Metric | None:
        """P, H before the first pair up to a factor, for gradients (B, entries); None for the identity."""
        if not self.spectrum or not is_picture(x):
            return None
        height, width = x.shape[-2:]
        shares = _shares(height, width, self.spectrum, x.dtype, x.device)

        def metric(q: Tensor) -> Tensor:
            images = q.view(len(q), *x.shape[1:])
            return torch.fft.irfft2(torch.fft.rfft2(images) * shares, s=(height, width)).flatten(1)

        return metric

    def _evaluate(self, problem: InversionProblem, x: Tensor, products: Tensors) -> tuple[Evaluation, Tensors]:
        """f, F, ∇F, and the gradients of ρ(g_i)_ε, which are duals of the prior."""
        split, weight = problem.split, problem.weight
        smooth, gradient = problem.smooth_gradient(x)
        pull, objective, value = torch.linalg.vector_norm(gradient.flatten(1), dim=1), smooth, smooth
        gap = torch.zeros_like(smooth)
        parts = list(zip(split.terms, products, strict=True))
        if split.proximal is not None and not problem.constrained:
            parts.append((split.proximal, x))
        duals = []
        for part, w in parts:
            size = weight * part.value(w)
            objective = objective + size
            if part.function.smooth:
                dual = along(weight * part.factor, w) * part.function.grad(w)
                value = value + size
            else:
                near = part.prox(w, self.smoothing)
                rest = w - near
                bent = weight / self.smoothing * square_sum(rest)
                envelope = weight * part.value(near) + 0.5 * bent
                value = value + envelope
                dual = along(weight / self.smoothing, rest) * rest
                # p ∈ ρ∂g(near), so that Fenchel's inequality is an equality there
                gap = gap + (size - envelope - 0.5 * bent).clamp_min(0)
            gradient = gradient + part.back(dual)
            duals.append(dual)
        free = gradient
        if problem.constrained:
            # a small step against the gradient leaves entries that a constraint holds where they are
            near = split.prox(x - torch.finfo(x.dtype).eps ** 0.5 * gradient.sign(), 0.0)
            free = gradient.masked_fill(near == x, 0.0)
        return Evaluation(objective, value, gradient, free, gap, pull), tuple(duals[: len(products)])


@cache
def _shares(height: int, width: int, power: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(1 + |f|)^−p for every frequency of `rfft2`."""
    down = torch.fft.fftfreq(height, 1 / height, dtype=dtype, device=device)[:, None]
    right = torch.fft.rfftfreq(width, 1 / width, dtype=dtype, device=device)
    return (1 + torch.hypot(down, right)) ** -power


def _direction(pairs: Pairs, gradient: Tensor, metric: Metric | None, constrained: bool) -> Tensor:
    """−H∇F on the free entries; before the first pair a step of length 1 against P∇F.

    H = (I − SᵀR⁻ᵀY) γP (I − YᵀR⁻¹S) + SᵀR⁻ᵀDR⁻¹S,   R = upper triangle of SYᵀ, D its diagonal
    """
    g = gradient.flatten(1)
    R = pairs.products
    # a row times a matrix is much faster here than a matrix times a column
    a = torch.linalg.solve_triangular(R, (g[:, None] @ pairs.s.mT).mT, upper=True)
    q = torch.baddbmm(g[:, None], a.mT, pairs.y, alpha=-1)[:, 0]
    q = q if metric is None else metric(q)
    scale = pairs.scale
    if bool((scale == 0).any()):
        scale = torch.where(scale > 0, scale, 1 / torch.linalg.vector_norm(q, dim=1).clamp_min(1e-30))
    q = q * scale[:, None]
    b = R.diagonal(dim1=1, dim2=2)[:, :, None] * a - (q[:, None] @ pairs.y.mT).mT
    q = torch.baddbmm(q[:, None], torch.linalg.solve_triangular(R.mT, b, upper=False).mT, pairs.s)[:, 0]
    q = q.masked_fill(g == 0, 0.0) if constrained else q
    # where the pairs of a non-convex function give no descent, the gradient does
    uphill = torch.linalg.vecdot(q, g) <= 0
    if bool(uphill.any()):
        unit = 1 / torch.linalg.vector_norm(g, dim=1).clamp_min(1e-30)
        q = torch.where(uphill[:, None], unit[:, None] * g, q)
    return -q.view_as(gradient)


def _renewed(pairs: Pairs, s: Tensor, y: Tensor, accepted: Tensor, metric: Metric | None) -> Pairs:
    """The pairs with the newest in place of the oldest; an empty one where it was refused or has no curvature."""
    product = torch.linalg.vecdot(s, y)
    good = accepted & (product > 1e-8 * torch.linalg.vecdot(y, y))
    if not bool(good.all()):
        s, y = s.masked_fill(~good[:, None], 0.0), y.masked_fill(~good[:, None], 0.0)
        product = torch.where(good, product, 1.0)
    bent = torch.linalg.vecdot(y, y if metric is None else metric(y))
    scale = torch.where(good, product / bent.clamp_min(1e-30), pairs.scale)
    all_s, all_y = torch.cat([pairs.s[:, 1:], s[:, None]], 1), torch.cat([pairs.y[:, 1:], y[:, None]], 1)
    products = torch.nn.functional.pad(pairs.products[:, 1:, 1:], (0, 1, 0, 1))
    products[:, :-1, -1] = (y[:, None] @ all_s[:, :-1].mT)[:, 0]
    products[:, -1, -1] = product
    return Pairs(all_s, all_y, products, scale)
