"""Priors and regularisers as priors of deepinv."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from torchlift.contrib.deepinv.package import part
from torchlift.contrib.deepinv.proximal_map import proximal_map
from torchlift.core.checks import check_instance, check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.functions.base import Amount, Function, Multiple, Part, Prior, Sum
from torchlift.functions.priors import PlugAndPlay

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
