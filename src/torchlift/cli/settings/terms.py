"""What is added to the objective: coupling and regularisers from settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchlift.cli.settings.fields import check_choice
from torchlift.cli.settings.settings import TrainingSettings
from torchlift.core.errors import TorchliftError, invalid_value
from torchlift.functions.regularisers import REGULARISERS, Regulariser


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
