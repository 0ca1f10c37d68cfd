"""The proximal map of any prior, to a certified accuracy."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchlift.functions.base import Amount, Prior, Split
from torchlift.solvers.momentum import next_momentum

#: Steps between two looks at the duality gap.
CHECK_EVERY = 10


class Proximal(NamedTuple):
    """A point near prox_R(x), and how near: ‖point − prox_R(x)‖ ≤ error·‖x‖ for every image."""

    point: Tensor
    error: float


def proximal_map(prior: Prior, x: Tensor, step: Amount, tolerance: float, max_steps: int) -> Proximal:
    """argmin_p ½‖p − x‖² + step·R(p), in closed form where there is one.

    With R = h + Σ g_i(A_i ·) the dual problem is solved by accelerated gradient steps of size s = 1/Σ‖A_i‖²,

        p   = prox_{step·h}(x − Σ A_iᵀ q_i)
        q_i ← prox of s·(step·g_i)* at q_i + s A_i p, with momentum.

    The duality gap at p and feasible q is Σ step·g_i(A_i p) + (step·g_i)*(q_i) − ⟨q_i, A_i p⟩, and since the
    objective is strongly convex, ½‖p − prox(x)‖² is at most that.

    Arguments:
        prior: R.
        x: images (B, …).
        step: one number ≥ 0, or one per image (B,).
        tolerance: the error at which to stop.
        max_steps: after which to stop in any case.

    Reference: Beck & Teboulle, IEEE Transactions on Image Processing 18 (2009).
    """
    split = prior.split(tuple(x.shape[1:]))
    if not split.terms:
        return Proximal(split.prox(x, step), 0.0)
    size = 1 / max(split.square_norm(), torch.finfo(x.dtype).tiny)
    old = moved = tuple(torch.zeros_like(product) for product in split.products(x))
    momentum, error = 1.0, math.inf
    for count in range(1, max_steps + 1):
        products = split.products(split.prox(x - split.back(moved, x), step))
        pairs = zip(split.terms, moved, products, strict=True)
        new = tuple(term.dual_prox(q + size * product, size, step) for term, q, product in pairs)
        following = next_momentum(momentum)
        factor = (momentum - 1) / following
        moved = tuple(q + factor * (q - before) for q, before in zip(new, old, strict=True))
        old, momentum = new, following
        if count % CHECK_EVERY == 0 or count == max_steps:
            error = _error(split, x, new, step)
            if error <= tolerance:
                break
    return Proximal(split.prox(x - split.back(old, x), step), error)


@torch.no_grad()
def _error(split: Split, x: Tensor, duals: tuple[Tensor, ...], step: Amount) -> float:
    """A bound of the relative error of the worst image, in double precision: a gap is a small difference."""
    x, step = x.double(), step.double() if isinstance(step, Tensor) else step
    feasible = tuple(term.feasible(q.double(), step) for term, q in zip(split.terms, duals, strict=True))
    products = split.products(split.prox(x - split.back(feasible, x), step))
    gap = x.new_zeros(len(x))
    for term, q, product in zip(split.terms, feasible, products, strict=True):
        gap = gap + step * term.value(product) + term.conjugate(q, step) - (q * product).flatten(1).sum(1)
    energy = x.square().flatten(1).sum(1).clamp_min(torch.finfo(x.dtype).tiny)
    return float((2 * gap.clamp_min(0) / energy).sqrt().max())
