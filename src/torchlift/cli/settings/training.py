"""Phases, solvers and losses from settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch

from torchlift.cli.settings.fields import check_choice
from torchlift.cli.settings.settings import Configuration, PhaseSettings, TrainingSettings
from torchlift.core.checks import check_number, check_positive
from torchlift.core.errors import invalid_value
from torchlift.functions.losses import LOSSES, Loss
from torchlift.liftings import LIFTINGS, Conventional, Lifting
from torchlift.solvers import (
    FISTA,
    Backtracking,
    BlockCoordinateDescent,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalAdam,
    ProximalGradient,
)
from torchlift.training import BackPropagation, Phase, SweepDescent


@dataclass(frozen=True)
class Recipe:
    """How a solver is made.

    Arguments:
        make: from the settings that were given.
        options: the names of those that it understands.
        torch: whether it is an optimiser of torch, for back-propagation.
    """

    make: Callable[..., Any]
    options: tuple[str, ...] = ()
    torch: bool = False


def _sweep(lr: float | None = None) -> SweepDescent:
    return SweepDescent() if lr is None else SweepDescent(partial(torch.optim.Adam, lr=lr))


def _linearised(lr: float | None = None) -> LinearisedBCD:
    return LinearisedBCD(ProximalGradient(Backtracking() if lr is None else lr))


def _optimiser(factory: type[torch.optim.Optimizer], anneal: Any = None, **options: float) -> BackPropagation:
    return BackPropagation(partial(factory, **options), anneal)


def _torch(factory: type[torch.optim.Optimizer], *more: str) -> Recipe:
    return Recipe(partial(_optimiser, factory), ("lr", "weight_decay", "anneal", *more), torch=True)


#: Solvers by name. A new one adds its line here.
SOLVERS: dict[str, Recipe] = {
    "sweep": Recipe(_sweep, ("lr",)),
    "bcd": Recipe(BlockCoordinateDescent, ("inner_steps",)),
    "linearised-bcd": Recipe(_linearised, ("lr",)),
    "isgm": Recipe(ImplicitStochasticGradient, ("tau", "inner_steps")),
    "prox-gradient": Recipe(lambda lr=None: ProximalGradient() if lr is None else ProximalGradient(lr), ("lr",)),
    "fista": Recipe(lambda lr=None: FISTA(lr), ("lr",)),
    "prox-adam": Recipe(ProximalAdam, ("lr",)),
    "adam": _torch(torch.optim.Adam),
    "adamw": _torch(torch.optim.AdamW),
    "nadam": _torch(torch.optim.NAdam),
    "radam": _torch(torch.optim.RAdam),
    "rmsprop": _torch(torch.optim.RMSprop, "momentum"),
    "sgd": _torch(torch.optim.SGD, "momentum"),
}

OPTIONS = ("lr", "momentum", "weight_decay", "anneal", "tau", "inner_steps")
"""The settings that solvers understand."""


def build_phases(configuration: Configuration) -> list[Phase]:
    """The phases of a run; each `[[phase]]` overrides what [training] says.

    A phase that names its lifting takes neither μ nor solver from [training],
    one that names its solver none of the solver's options, one that says how
    long it lasts neither epochs nor steps.
    """
    training = configuration.training
    if not configuration.phase:
        return [_phase(_as_phase(training), "[training]")]
    return [
        _phase(merged(training, phase), f"[[phase]] {number}")
        for number, phase in enumerate(configuration.phase, start=1)
    ]


def build_loss(settings: TrainingSettings) -> Loss | None:
    """None where `train` chooses."""
    if settings.loss is None:
        return None
    return LOSSES[check_choice("[training] loss", settings.loss, LOSSES)]()


def merged(training: TrainingSettings, phase: PhaseSettings) -> PhaseSettings:
    """A phase with what it takes from [training]."""
    dropped: set[str] = {"name"}
    if phase.lifting is not None:
        dropped |= {"mu", "solver", *OPTIONS}
    if phase.solver is not None:
        dropped |= set(OPTIONS)
    if phase.epochs is not None or phase.steps is not None:
        dropped |= {"epochs", "steps"}
    shared = {field.name: getattr(training, field.name) for field in fields(PhaseSettings)}
    missing = [name for name in shared if getattr(phase, name) is None and name not in dropped]
    return replace(phase, **{name: shared[name] for name in missing})


def _as_phase(training: TrainingSettings) -> PhaseSettings:
    return PhaseSettings(**{field.name: getattr(training, field.name) for field in fields(PhaseSettings)})


def _phase(settings: PhaseSettings, section: str) -> Phase:
    recipe = None
    if settings.solver is not None:
        recipe = SOLVERS[check_choice(f"{section} solver", settings.solver, SOLVERS)]
    lifting = _lifting(settings, section)
    if lifting is None and recipe is not None and recipe.torch:
        lifting = Conventional()  # an optimiser of torch has no other use
    return Phase(
        lifting=lifting,
        solver=_solver(settings, recipe, section),
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        steps=settings.steps,
        time_limit=settings.time_limit,
        weights=settings.weights,
        states=settings.states or "forward",
        name=settings.name,
        state_dtype=None if settings.state_dtype is None else getattr(torch, settings.state_dtype),
        state_storage=settings.state_storage or "memory",
    )


def _lifting(settings: PhaseSettings, section: str) -> Lifting | None:
    if settings.lifting is None:
        if settings.mu is not None:
            hint = "Name one, such as lifting = 'bregman': the default, a backward sweep, has no weight."
            invalid_value(f"{section} mu", "a lifting", "none", hint)
        return None
    kind = LIFTINGS[check_choice(f"{section} lifting", settings.lifting, LIFTINGS)]
    if settings.mu is None:
        return kind()
    if kind is Conventional:
        invalid_value(f"{section} mu", "nothing for conventional", settings.mu, "Leave it out.")
    return kind(settings.mu)


def _solver(settings: PhaseSettings, recipe: Recipe | None, section: str) -> Any:
    given = {name: getattr(settings, name) for name in OPTIONS if getattr(settings, name) is not None}
    for name in given:
        if recipe is None or name not in recipe.options:
            able = [solver for solver, other in SOLVERS.items() if name in other.options]
            what = "a solver to go with it" if recipe is None else f"nothing for {settings.solver}"
            invalid_value(f"{section} {name}", what, given[name], f"It is an option of {', '.join(able)}.")
    for name in ("lr", "tau"):
        if name in given:
            check_positive(f"{section} {name}", given[name])
    for name in ("momentum", "weight_decay"):
        if name in given and check_number(f"{section} {name}", given[name]) < 0:
            invalid_value(f"{section} {name}", "a number >= 0", given[name])
    return None if recipe is None else recipe.make(**given)
