"""Processes that do the same: equal settings and weights, one clock, and one process that writes."""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import torch
from torch import nn

from torchlift.core.errors import TorchliftError
from torchlift.data import Batch
from torchlift.operators.context import context_tensors
from torchlift.parallel.mesh import Axis, Mesh, MeshError

T = TypeVar("T")


def agreed_clock(mesh: Mesh, clock: Callable[[], float] = time.monotonic) -> Callable[[], float]:
    """The clock of rank 0 for all, so that limits of time end all processes at the same step."""

    def now() -> float:
        return float(mesh.broadcast_(torch.tensor(clock(), dtype=torch.float64, device=mesh.device), 0))

    return clock if mesh.size == 1 else now


def sync(mesh: Mesh, clock: Callable[[], float], asked: bool) -> tuple[float, Callable[[], bool]]:
    """The time of rank 0, and whether any process was asked to stop, in one exchange."""
    now, count = mesh.sum_numbers([clock() if mesh.first else 0.0, float(asked)])
    return now, lambda: count > 0


def of_first(mesh: Mesh, numbers: Mapping[str, float]) -> dict[str, float]:
    """The numbers of rank 0, for all: rounding may differ between processes, decisions must not."""
    return dict(numbers) if mesh.size == 1 else json.loads(mesh.texts(json.dumps(dict(numbers)))[0])


def begin_alike(mesh: Mesh, network: nn.Module, settings: Mapping[str, Any], example: Batch) -> None:
    """Refuse other settings, versions or data than those of rank 0; take over its weights and buffers."""
    if mesh.size == 1:
        return
    tensors = (example.y, example.x, *context_tensors(example.context))
    data = hashlib.sha256(b"".join(tensor.cpu().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()
    check_agreement(mesh, {"torchlift version": _version(), "first sample": data, **settings})
    take_over(mesh, network)


@torch.no_grad()
def take_over(mesh: Mesh, network: nn.Module, source: int = 0, axis: Axis | None = None) -> None:
    """The weights and buffers of one process, number `source` of the axis, on all of them."""
    for tensor in network.state_dict(keep_vars=True).values():
        if isinstance(tensor, torch.Tensor):
            values = tensor.detach().clone(memory_format=torch.contiguous_format)
            tensor.copy_(mesh.broadcast_(values, source, axis))


def check_agreement(mesh: Mesh, settings: Mapping[str, Any]) -> None:
    """Refuse settings or versions that are not the same on all ranks, naming what differs and where."""
    versions = {"torch version": torch.__version__, "python version": platform.python_version()}
    texts = {name: json.dumps(value, sort_keys=True, default=str) for name, value in {**versions, **settings}.items()}
    tables = [json.loads(text) for text in mesh.texts(json.dumps(texts))]
    for name in {name: None for table in tables for name in table}:
        values = [table.get(name) for table in tables]
        odd = [rank for rank, value in enumerate(values) if value != values[0]]
        if odd:
            theirs = "; ".join(f"{values[rank]} on rank {rank}" for rank in odd)
            raise MeshError(
                f"mesh {mesh}: expected {name} to be the same on all ranks, got {values[0]} on rank 0, {theirs}. "
                "Start all processes with the same script, configuration and installation."
            )


def on_first(mesh: Mesh, function: Callable[[], T]) -> T | None:
    """Call the function on rank 0 only; its failure is raised on all ranks. Elsewhere the result is None."""
    if mesh.size == 1:
        return function()
    results: list[T] = []
    on_all(mesh, lambda: results.append(function()) if mesh.first else None)
    return results[0] if results else None


def on_all(mesh: Mesh, function: Callable[[], Any]) -> list[Any]:
    """Call the function on all ranks; returns the results, which JSON must be able to hold, by rank.

    What fails on one rank is raised there, and on the others as a MeshError that names it.
    """
    result, failure = None, None
    try:
        result = function()
    except (TorchliftError, OSError) as error:
        failure = error
    reason = None if failure is None else str(failure) or type(failure).__name__
    answers = [json.loads(text) for text in mesh.texts(json.dumps([result, reason]))]
    if failure is not None:
        raise failure
    failures = [f"{mesh.name(rank)}: {text}" for rank, (_, text) in enumerate(answers) if text is not None]
    if failures:
        raise MeshError(" | ".join(failures))
    return [answer for answer, _ in answers]


def _version() -> str:
    try:
        return version("torchlift")
    except PackageNotFoundError:
        return "unknown"
