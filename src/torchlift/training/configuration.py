"""What must agree for a checkpoint to be continued."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from torchlift.core.errors import invalid_value
from torchlift.data import Batch, Batches, TensorBatches
from torchlift.operators.context import context_tensors
from torchlift.training.modules import like
from torchlift.training.options import TrainOptions
from torchlift.training.phase import Phase
from torchlift.training.run import Settings

#: How long a phase is, which a resumed run may change.
LENGTHS = ("epochs", "steps", "time_limit")
#: Options that change the objective.
TERMS = ("coupling", "state_regularisers", "parameter_regularisers")
#: Samples at either end of the data that a digest looks at.
ENDS = 32


def configuration(
    network: nn.Module,
    phases: Sequence[Phase],
    batches: Sequence[Batches],
    settings: Settings,
    options: TrainOptions,
) -> dict[str, Any]:
    """All that decides on parameters and records, as JSON values.

    How long to wait between checkpoints does not, and how long the run is may change: it is made longer.
    """
    held_out = settings.validation
    return {
        "network": type(network).__name__,
        "layers": _layers(network),
        "parameters": {name: list(p.shape) for name, p in network.named_parameters()},
        "dtype": None if (some := like(network)) is None else str(some.dtype),
        "loss": repr(settings.loss),
        "phases": [
            {name: _text(value) for name, value in vars(phase).items() if name not in LENGTHS} for phase in phases
        ],
        **{name: _text(getattr(options, name)) for name in TERMS},
        **({} if options.coordinates == "states" else {"coordinates": options.coordinates}),  # records have no more
        "samples": batches[0].samples if batches[0].sized else None,
        "data": _digest(batches[0]),
        "batch sizes": [source.batch_size for source in batches],
        "validation samples": None if held_out is None or not held_out.sized else held_out.samples,
        "validation data": None if held_out is None else _digest(held_out),
        "metrics": [metric.name for metric in settings.metrics],
        "monitored metric": settings.monitor.name,
        "evaluate_every": options.evaluate_every,
        "patience": options.patience,
        "tolerance": options.tolerance,
        "seed": settings.seed,
    }


def check_same(saved: Mapping[str, Any], now: Mapping[str, Any], folder: Path) -> None:
    """Refuse another configuration than the saved one; the first setting that differs is named."""
    if (difference := _difference(saved, now)) is not None:
        name, before, after = difference
        hint = f"Resume with the settings of the first call, or choose another folder than {folder}."
        invalid_value(f"resumed run: {name}", before, after, hint)


def _difference(saved: Any, now: Any, name: str = "") -> tuple[str, str, str] | None:
    """Name and both values of the first setting that differs."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        for key in {**now, **saved}:
            if (difference := _difference(saved.get(key), now.get(key), f"{name} {key}".strip())) is not None:
                return difference
        return None
    if isinstance(saved, list) and isinstance(now, list) and len(saved) == len(now):
        pairs = enumerate(zip(saved, now, strict=True), start=1)
        return next((first for i, (a, b) in pairs if (first := _difference(a, b, f"{name} {i}"))), None)
    return None if saved == now else (name, str(saved), str(now))


def _text(value: object) -> Any:
    """A setting as JSON; where functions lie in memory says nothing about them."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _layers(network: nn.Module) -> list[str]:
    """The parts of a module and its activations, as they print; learned numbers are told by their shapes."""
    activations = [_activation(activation) for activation in getattr(network, "activations", ())]
    return activations or [line.strip() for line in _text(network).splitlines()]


def _activation(activation: object) -> str:
    """Name and fixed numbers; a learned tensor may have moved since the run began."""
    numbers = {
        name: tuple(value.shape) if hasattr(value, "shape") else value for name, value in vars(activation).items()
    }
    return f"{type(activation).__name__} {numbers}" if numbers else type(activation).__name__


def _digest(batches: Batches) -> str:
    """A short name of the data: of its first and last samples, or of the first sample of what cannot be looked into."""
    source = getattr(batches, "batches", batches)
    batch = _ends(source.all) if isinstance(source, TensorBatches) else batches.example()
    tensors = (batch.y, batch.x, *context_tensors(batch.context))
    values = b"".join(tensor.detach().cpu().contiguous().double().numpy().tobytes() for tensor in tensors)
    return hashlib.sha256(values).hexdigest()[:16]


def _ends(batch: Batch) -> Batch:
    rows = [*range(min(ENDS, len(batch.y))), *range(max(0, len(batch.y) - ENDS), len(batch.y))]
    return Batch(batch.y[rows], batch.x[rows])
