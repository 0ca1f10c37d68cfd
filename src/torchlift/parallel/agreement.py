"""Processes that do the same: equal settings, one clock, and one process that writes."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

from torchlift.core.errors import TorchliftError
from torchlift.parallel.mesh import Mesh, MeshError

T = TypeVar("T")


def agreed_clock(mesh: Mesh, clock: Callable[[], float] = time.monotonic) -> Callable[[], float]:
    """The clock of rank 0 for all, so that limits of time end all processes at the same step."""

    def now() -> float:
        return float(mesh.broadcast_(torch.tensor(clock(), dtype=torch.float64, device=mesh.device), 0))

    return now


def check_agreement(mesh: Mesh, settings: Mapping[str, Any]) -> None:
    """Refuse settings or versions that are not the same on all ranks, naming what differs and where."""
    versions = {"torch version": torch.__version__, "python version": platform.python_version()}
    own = {name: json.dumps(value, sort_keys=True, default=str) for name, value in {**versions, **settings}.items()}
    tables = [json.loads(text) for text in mesh.texts(json.dumps(own))]
    for name in {name: None for table in tables for name in table}:
        values = [table.get(name) for table in tables]
        odd = [rank for rank, value in enumerate(values) if value != values[0]]
        if odd:
            theirs = "; ".join(f"{values[rank]} on rank {rank}" for rank in odd)
            raise MeshError(
                f"mesh {mesh}: expected {name} to be the same on all ranks, got {values[0]} on rank 0, {theirs}. "
                "Start all processes with the same script, configuration and installation."
            )


def on_first(mesh: Mesh | None, function: Callable[[], T]) -> T | None:
    """Call the function on rank 0 only; its failure is raised on all ranks. Elsewhere the result is None."""
    if mesh is None:
        return function()
    found: list[T] = []
    on_all(mesh, lambda: found.append(function()) if mesh.first else None)
    return found[0] if found else None


def on_all(mesh: Mesh, function: Callable[[], Any]) -> list[Any]:
    """Call the function on all ranks; returns the results, which JSON must be able to hold, by rank.

    What fails on one rank is raised there, and on the others as a MeshError that names it.
    """
    result, failure = None, None
    try:
        result = function()
    except (TorchliftError, OSError) as error:
        failure = error
    said = None if failure is None else str(failure) or type(failure).__name__
    told = [json.loads(text) for text in mesh.texts(json.dumps([result, said]))]
    if failure is not None:
        raise failure
    failures = [f"{mesh.name(rank)}: {text}" for rank, (_, text) in enumerate(told) if text is not None]
    if failures:
        raise MeshError(" | ".join(failures))
    return [found for found, _ in told]
