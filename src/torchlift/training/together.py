"""What the processes of a mesh do together in a run: begin alike, keep one record, and decide as one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

import torch
from torch import nn

from torchlift.data import Batch
from torchlift.operators.context import context_tensors
from torchlift.parallel import Mesh, agreed_clock, check_agreement, on_first
from torchlift.training.step import tensors_of

T = TypeVar("T")


def begin_alike(mesh: Mesh, network: nn.Module, settings: Mapping[str, Any], example: Batch) -> None:
    """Refuse other settings, versions or data than those of rank 0; take over its weights and buffers."""
    tensors = (example.y, example.x, *context_tensors(example.context))
    data = hashlib.sha256(b"".join(tensor.cpu().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()
    check_agreement(mesh, {"torchlift version": _version(), "first sample": data, **settings})
    take_over(mesh, network)


@torch.no_grad()
def take_over(mesh: Mesh, network: nn.Module) -> None:
    """The weights and buffers of rank 0 on all processes."""
    for tensor in tensors_of(network).values():
        values = tensor.detach().clone(memory_format=torch.contiguous_format)
        tensor.copy_(mesh.broadcast_(values, 0))


class Company:
    """The processes of one run; without a mesh, one process that asks nobody.

    Args:
        mesh: the processes, or None.
        clock: this process's own clock.
    """

    def __init__(self, mesh: Mesh | None, clock: Callable[[], float]) -> None:
        self.mesh = mesh
        self.clock = clock if mesh is None else agreed_clock(mesh, clock)
        self._own = clock

    @property
    def writes(self) -> bool:
        """Whether this process keeps the records."""
        return self.mesh is None or self.mesh.first

    def pulse(self, asked: Callable[[], bool]) -> tuple[float, Callable[[], bool]]:
        """The time of rank 0, and whether any process has been asked to stop; alone, also while a step is judged."""
        if self.mesh is None:
            return self._own(), asked
        now, found = self.mesh.sum_numbers([self._own() if self.mesh.first else 0.0, float(asked())])
        return now, lambda: found > 0

    def any(self, condition: bool) -> bool:
        """Whether a condition holds on any process."""
        return condition if self.mesh is None else self.mesh.sum_numbers([float(condition)])[0] > 0

    def numbers(self, compute: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """Numbers that all compute and that must be the same everywhere: those of rank 0."""
        own = dict(compute())
        return own if self.mesh is None else json.loads(self.mesh.texts(json.dumps(own))[0])

    def write(self, function: Callable[[], T]) -> T | None:
        """Something that only rank 0 does, and has the result of; if it fails, all fail."""
        return on_first(self.mesh, function)


def _version() -> str:
    try:
        return version("torchlift")
    except PackageNotFoundError:
        return "unknown"
