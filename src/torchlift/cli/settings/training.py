"""Phases, losses and what is added to the objective, from settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from torchlift.cli.settings.settings import Configuration, PhaseSettings, TrainingSettings
from torchlift.cli.settings.solvers import OPTIMISERS, OPTIONS, RENAMED, SOLVERS, make_solver, options_of
from torchlift.core.checks import check_choice, check_number, check_positive
from torchlift.core.errors import TorchliftError, invalid_value
from torchlift.functions.losses import LOSSES, Loss
from torchlift.functions.regularisers import REGULARISERS, Regulariser
from torchlift.liftings import LIFTINGS, Conventional, Lifting
from torchlift.training import Phase
from torchlift.training.options import PhaseOptions


def build_phases(configuration: Configuration) -> list[Phase]:
    """The phases of a run; each `[[phase]]` overrides what [training] says.

    A phase that names its lifting takes neither μ nor solver from [training],
    one that names its solver none of the solver's options, one that says how
    long it lasts neither epochs nor steps.
    """
    training = configuration.training
    if not configuration.phase:
        return [_phase(PhaseSettings(**_shared(training)), "[training]")]
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
    shared = _shared(training)
    missing = [name for name in shared if getattr(phase, name) is None and name not in dropped]
    return replace(phase, **{name: shared[name] for name in missing})


def _shared(training: TrainingSettings) -> dict[str, Any]:
    """What [training] says about phases."""
    return {field.name: getattr(training, field.name) for field in fields(PhaseSettings)}


def _phase(settings: PhaseSettings, section: str) -> Phase:
    solver, lifting = _solver(settings, section), _lifting(settings, section)
    if lifting is None and settings.solver in OPTIMISERS:
        lifting = Conventional()  # an optimiser of torch has no other use
    return Phase(
        lifting=lifting,
        solver=solver,
        **{field.name: getattr(settings, field.name) for field in fields(PhaseOptions)},
        states=settings.states or "forward",
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


def _solver(settings: PhaseSettings, section: str) -> Any:
    name = settings.solver
    if name in RENAMED:
        invalid_value(f"{section} solver", "a name of this version", repr(name), f"It is {RENAMED[name]!r} now.")
    if name is not None:
        check_choice(f"{section} solver", name, SOLVERS)
    options = {option: value for option in OPTIONS if (value := getattr(settings, option)) is not None}
    for option, value in options.items():
        if name is None or option not in options_of(name):
            expected = "a solver to go with it" if name is None else f"nothing for {name}"
            able = ", ".join(solver for solver in SOLVERS if option in options_of(solver))
            invalid_value(f"{section} {option}", expected, value, f"It is an option of {able}.")
        if option in ("lr", "tau"):
            check_positive(f"{section} {option}", value)
        elif option in ("momentum", "weight_decay"):
            check_number(f"{section} {option}", value, minimum=0)
    return None if name is None else make_solver(name, options)


def objective_terms(settings: TrainingSettings) -> dict[str, Any]:
    """The options of `train` that change the objective."""
    states = _named("state_regularisers", settings.state_regularisers)
    layers: Any = states[""] if list(states) == [""] else {_layer(place): r for place, r in states.items()}
    parameters = _named("parameter_regularisers", settings.parameter_regularisers)
    if "" in parameters:
        hint = "Write '*: …' for all parameters."
        invalid_value("[training] parameter_regularisers", "'NAMES: REGULARISER NUMBERS'", "no names", hint)
    return {
        "coupling": settings.coupling,
        "coordinates": settings.coordinates,
        "state_regularisers": layers or None,
        "parameter_regularisers": parameters or None,
    }


def _named(key: str, texts: Sequence[str]) -> dict[str, Regulariser]:
    """{what stands before the colon: regulariser}."""
    regularisers = {}
    for text in texts:
        place, _, written = text.rpartition(":")
        name, *numbers = written.split() or [""]
        where = f"[training] {key}"
        kind = REGULARISERS[check_choice(where, name, REGULARISERS)]
        try:
            regularisers[place.strip()] = kind(*map(_number, numbers))
        except (TypeError, ValueError) as error:
            if isinstance(error, TorchliftError):
                raise
            invalid_value(where, f"{name} with its numbers", repr(text), "Such as 'l1 0.01'.")
    return regularisers


def _layer(text: str) -> int:
    if not text.isdecimal():
        hint = "Write 'l1 0.01' for all layers, or '2: l1 0.01'."
        invalid_value("[training] state_regularisers", "a layer, counted from 1", repr(text), hint)
    return int(text)


def _number(text: str) -> float:
    return int(text) if text.lstrip("-").isdecimal() else float(text)
