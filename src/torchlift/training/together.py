"""What the processes of a mesh do together in a run: begin alike, keep one record, and decide as one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchlift.checkpoint import Checkpoint
from torchlift.data import Batch
from torchlift.distributed import Mesh, agreed_clock, check_agreement, on_first
from torchlift.networks import Network
from torchlift.operators.context import context_tensors


def begin_alike(mesh: Mesh, network: Network, settings: Mapping[str, Any], example: Batch) -> None:
    """Refuse other settings, versions or data than those of rank 0; take over its weights."""
    tensors = (example.y, example.x, *context_tensors(example.context))
    data = hashlib.sha256(b"".join(tensor.cpu().contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()
    check_agreement(mesh, {"torchlift version": _version(), "first sample": data, **settings})
    with torch.no_grad():
        for parameter in network.parameters():
            values = parameter.detach().clone(memory_format=torch.contiguous_format)
            parameter.copy_(mesh.broadcast_(values, 0))


def share_checkpoint(mesh: Mesh | None, found: Checkpoint | None) -> Checkpoint | None:
    """The checkpoint that rank 0 has read, on every rank."""
    if mesh is None:
        return found
    own = None
    if found is not None:
        layout = [(name, list(t.shape), str(t.dtype).removeprefix("torch.")) for name, t in found.tensors.items()]
        own = {"step": found.step, "record": found.record, "path": str(found.path), "skipped": found.skipped}
        own["layout"] = layout
    head = json.loads(mesh.texts(json.dumps(own))[0])
    if head is None:
        return None
    tensors: dict[str, Tensor] = {}
    for name, shape, dtype in head["layout"]:
        known = None if found is None else found.tensors[name]
        tensor = torch.empty(shape, dtype=getattr(torch, dtype)) if known is None else known
        tensors[name] = mesh.broadcast_(tensor.to(mesh.device), 0).to("cpu")
    return Checkpoint(head["step"], tensors, head["record"], Path(head["path"]), tuple(head["skipped"]))


class Follower:
    """Stands for the checkpoints of rank 0 on the other ranks: they take part and write nothing."""

    def save(self, step: int, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        return


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

    def write(self, function: Callable[[], object]) -> None:
        """Something that only rank 0 does; if it fails, all fail."""
        on_first(self.mesh, function)


def _version() -> str:
    try:
        return version("torchlift")
    except PackageNotFoundError:
        return "unknown"
