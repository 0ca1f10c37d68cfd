"""What must agree for a checkpoint to be continued."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchlift.core.errors import invalid_value
from torchlift.data import Batches
from torchlift.networks import Network
from torchlift.training.phase import Phase
from torchlift.training.run import Settings


def configuration(
    network: Network, phases: Sequence[Phase], batches: Sequence[Batches], settings: Settings
) -> dict[str, Any]:
    """All that decides on parameters and records, as JSON values. How long to wait between checkpoints does not."""
    held_out = settings.validation
    return {
        "network": type(network).__name__,
        "parameters": {name: list(p.shape) for name, p in network.named_parameters()},
        "dtype": str(network.like.dtype) if network.like is not None else None,
        "loss": repr(settings.loss),
        "phases": [{name: _text(value) for name, value in vars(phase).items()} for phase in phases],
        "samples": batches[0].samples,
        "batch sizes": [each.batch_size for each in batches],
        "validation samples": None if held_out is None else held_out.samples,
        "metrics": [metric.name for metric in settings.metrics],
        "monitored metric": settings.monitor.name,
        "evaluate_every": settings.evaluate_every,
        "patience": settings.patience,
        "tolerance": settings.tolerance,
        "seed": settings.seed,
    }


def check_same(saved: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse another configuration than the saved one; the first setting that differs is named."""
    if (found := _difference(saved, now)) is not None:
        name, before, after = found
        hint = f"Resume with the settings of the first call, or choose another folder than {folder}."
        invalid_value(f"resumed run: {name}", before, after, hint)


def _difference(saved: Any, now: Any, name: str = "") -> tuple[str, str, str] | None:
    """Name and both values of the first setting that differs."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        for key in {**now, **saved}:
            found = _difference(saved.get(key), now.get(key), f"{name} {key}".strip())
            if found is not None:
                return found
        return None
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        pairs = enumerate(zip(saved, now, strict=True), start=1)
        return next((found for i, (a, b) in pairs if (found := _difference(a, b, f"{name} {i}"))), None)
    return None if saved == now else (name, str(saved), str(now))


def _text(value: object) -> Any:
    """A setting as JSON; where functions lie in memory says nothing about them."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
