"""Priors and regularisers as priors of deepinv, with proximal maps of certified accuracy."""

from __future__ import annotations

import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlift.contrib.deepinv.package import part
from torchlift.core.checks import check_instance, check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.functions.base import Amount, Function, Multiple, Part, Prior, Split, Sum
from torchlift.functions.priors import PlugAndPlay
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


DeepinvPrior = part("optim").Prior


class LiftedPrior(DeepinvPrior):
    """R as a `deepinv.optim.Prior`: `fn`, `grad`, `prox`; made by `as_prior`.

    deepinv passes a parameter of the prior on to every method; R has none, and does not look at it.
    """

    def __init__(self, prior: Prior, tolerance: float, max_steps: int) -> None:
        super().__init__()
        self.explicit_prior = _is_function(prior)
        self.prior = prior
        self.tolerance = check_positive("as_prior tolerance", tolerance)
        self.max_steps = check_size("as_prior max_steps", max_steps)

    def fn(self, x: Tensor, *parameters: Any, **kwargs: Any) -> Tensor:
        """R(x), one per image: (B,)."""
        return self.prior.value(x)

    def grad(self, x: Tensor, *parameters: Any, **kwargs: Any) -> Tensor:
        """∇R(x), at a corner the subgradient nearest to 0 of each g_i; refused for constraints and denoisers."""
        total = torch.zeros_like(x)
        for summand in self.prior.parts(tuple(x.shape[1:])):
            total = total + summand.factor * summand.back(_subgradient(summand, summand.product(x)))
        return total

    def prox(self, x: Tensor, *parameters: Any, gamma: float | Tensor = 1.0, **kwargs: Any) -> Tensor:
        """argmin_p ½‖p − x‖² + gamma·R(p), for one gamma or one per image."""
        result = proximal_map(self.prior, x, _amount(gamma, x), self.tolerance, self.max_steps)
        if result.error > self.tolerance:
            text = f"a proximal map stopped after {self.max_steps} steps with a relative error of up to"
            hint = "Raise max_steps or tolerance of torchlift.contrib.deepinv.as_prior."
            warnings.warn(f"{text} {result.error:.1e}, above {self.tolerance:.1e}. {hint}", stacklevel=2)
        return result.point


def as_prior(prior: Prior, *, tolerance: float = 1e-4, max_steps: int = 1000) -> Any:
    """A prior or regulariser R of torchlift as a `deepinv.optim.Prior`, for all of deepinv's algorithms.

    Proximal maps without a closed form (total variation, wavelets, sums) are computed until a duality gap proves the
    accuracy; a warning says so if it is not reached.

    Arguments:
        prior: such as `tl.priors.TotalVariation() + tl.priors.Box(0, 1)`, or `tl.regularisers.ElasticNet()`.
        tolerance: relative error of such a proximal map; below 1e-7 rounding hides the gap.
        max_steps: after which it stops.
    """
    hint = "Try torchlift.priors.TotalVariation()."
    check_instance("as_prior", prior, Prior, "a prior or a regulariser of torchlift", hint)
    return LiftedPrior(prior, tolerance, max_steps)


def _subgradient(summand: Part, w: Tensor) -> Tensor:
    """An element of ∂g(w)."""
    function = summand.function
    if type(function).grad is Function.grad:
        hint = "Use an algorithm that takes its prox: PGD, HQS, …"
        invalid_value("grad of a prior", "functions with a gradient", type(function).__name__, hint)
    return function.grad(w)


def _is_function(prior: Prior) -> bool:
    """Whether the values of R are known, not only its proximal map."""
    if isinstance(prior, Sum):
        return all(map(_is_function, prior.priors))
    if isinstance(prior, Multiple):
        return _is_function(prior.prior)
    return not isinstance(prior, PlugAndPlay) or prior.function is not None


def _amount(gamma: float | Tensor, x: Tensor) -> Amount:
    """deepinv's step, a number or (B, 1, …), as one number or (B,)."""
    if not isinstance(gamma, Tensor):
        return check_positive("prox gamma", gamma)
    if gamma.numel() not in (1, len(x)):
        invalid_value("prox gamma", f"one number, or one for each of {len(x)} images", f"shape {tuple(gamma.shape)}")
    return gamma.to(x).reshape(() if gamma.numel() == 1 else -1)
