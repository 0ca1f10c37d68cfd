"""Cases for a world: networks whose stages are processes, and runs that are stopped and go on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchlift as tl
from parallel.meshes import MESHES, mesh_of
from torchlift.parallel import Mesh
from torchlift.training import SweepDescent
from training import test_pipeline as networks

STEPS, STOP = 14, 6

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "dense": networks.dense,
    "chain": lambda: tl.lift(networks.dense()),
    "convolutional": networks.convolutional,
}


def train(
    name: str, *, mesh: Mesh | None = None, stages: int = 1, recompute: bool = False, **settings: Any
) -> tl.training.Training:
    method = SweepDescent(stages=stages, recompute=recompute)
    return networks.run(NETWORKS[name](), method, STEPS, evaluate_every=STOP, mesh=mesh, **settings)


def numbers(result: tl.training.Training) -> list[list[float]]:
    """All parameters and buffers, and the losses on the way, which only rank 0 keeps."""
    values = [float(entry) for t in result.network.state_dict().values() for entry in t.detach().double().flatten()]
    return [values, [row["loss"] for row in result.history]]


def cases(folder: str, processes: str) -> dict[str, Callable[[], Any]]:
    made: dict[str, Callable[[], Any]] = {}
    for spec in (spec for spec in MESHES[int(processes)] if not spec.endswith("layers=1")):
        # where samples are divided, other numbers decide which units drop out
        whole = spec.startswith("data=1")
        for name in ("convolutional", "chain") if whole else ("dense",):
            made[f"{name} {spec}"] = partial(_together, name, spec, False)
        if whole:
            made[f"recompute {spec}"] = partial(_together, "dense", spec, True)
        made[f"stopped {spec}"] = partial(_stopped, Path(folder) / spec, spec)
    return made


def _together(name: str, spec: str, recompute: bool) -> list[list[float]]:
    return numbers(train(name, mesh=mesh_of(spec), recompute=recompute))


def _stopped(folder: Path, spec: str) -> list[list[float]]:
    mesh = mesh_of(spec)
    stopped = train("chain", mesh=mesh, folder=folder, callback=lambda row: row["step"] == STOP)
    assert stopped.steps == STOP
    torch.manual_seed(99)  # nothing may depend on it
    return numbers(train("chain", mesh=mesh, folder=folder, resume=True))
