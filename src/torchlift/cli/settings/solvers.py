"""Solvers by name: as in Python, in lower case with hyphens. Their options are what their signatures have."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal

import torch

from torchlift.solvers import FISTA, Backtracking, LinearisedBCD, ProximalAdam, ProximalGradient
from torchlift.solvers import SOLVERS as LIFTED
from torchlift.training import BackPropagation, SweepDescent


@dataclass(frozen=True, kw_only=True)
class SolverSettings:
    """Options of solvers; which solver has which, `options_of` says."""

    lr: float | None = None
    """Learning rate, where the solver has one."""
    momentum: float | None = None
    """Momentum, of optimisers of torch that have it."""
    weight_decay: float | None = None
    """Optimisers of torch: weight decay."""
    anneal: Literal["cosine", "linear"] | None = None
    """Optimisers of torch: how the learning rate falls to 0 over the budget; it stays without."""
    matched: bool | None = None
    """proximal-adam: scale the proximal step like the gradient."""
    prox_scale: float | None = None
    """proximal-adam: factor of the proximal step; the number of samples for the threshold that the paper prints."""
    tau: float | None = None
    """Length of implicit steps; 1."""
    inner_steps: int | None = None
    """Steps of the inner solver, where there is one."""


OPTIONS = tuple(field.name for field in fields(SolverSettings))


OPTIMISERS: dict[str, type[torch.optim.Optimizer]] = {
    name.lower(): getattr(torch.optim, name) for name in ("Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "SGD")
}
"""Optimisers of torch, for back-propagation."""

SOLVERS: dict[str, Callable[..., Any]] = {
    "sweep-descent": lambda lr=None: SweepDescent() if lr is None else SweepDescent(partial(torch.optim.Adam, lr=lr)),
    "block-coordinate-descent": LIFTED["block-coordinate-descent"],
    "linearised-bcd": lambda lr=None: LinearisedBCD(ProximalGradient(Backtracking() if lr is None else lr)),
    "implicit-stochastic-gradient": LIFTED["implicit-stochastic-gradient"],
    "proximal-gradient": lambda lr=None: ProximalGradient() if lr is None else ProximalGradient(lr),
    "fista": lambda lr=None: FISTA(lr),
    "proximal-adam": ProximalAdam,
    **OPTIMISERS,
}
"""What makes each solver from its options. A new one adds its line here."""

RENAMED = {
    "sweep": "sweep-descent",
    "bcd": "block-coordinate-descent",
    "isgm": "implicit-stochastic-gradient",
    "prox-gradient": "proximal-gradient",
    "prox-adam": "proximal-adam",
}
"""Names that files had before 0.2."""


def options_of(name: str) -> list[str]:
    """The options that a solver understands."""
    names = {*inspect.signature(SOLVERS[name]).parameters, *(["anneal"] if name in OPTIMISERS else [])}
    return [option for option in OPTIONS if option in names]


def make_solver(name: str, options: dict[str, Any]) -> Any:
    """A solver with the given options, all of which it understands."""
    if name not in OPTIMISERS:
        return SOLVERS[name](**options)
    anneal = options.pop("anneal", None)
    return BackPropagation(partial(OPTIMISERS[name], **options), anneal)
