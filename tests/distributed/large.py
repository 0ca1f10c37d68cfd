"""Cases for a world: steps whose gradients are so large that they are summed where they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchlift.distributed import as_mesh
from torchlift.experiments.distributed import Size, contestants
from torchlift.experiments.distributed.contestants import Steps
from torchlift.objective.distributed_problem import DistributedProblem

STEPS = 5


def cases(spec: str) -> dict[str, Callable[[], Any]]:
    """The contestants of `torchlift bench distributed` on a mesh, each with its distance from one process."""
    torch.set_default_dtype(torch.float64)
    size, mesh = Size(3, 192, 11), as_mesh_once(spec)

    def distance(make: Callable[..., Steps]) -> float:
        alone, together = make(size), make(size, mesh())
        for _ in range(STEPS):
            alone()
            together()
        found, problem = together.state.point, together.problem
        if isinstance(problem, DistributedProblem):  # a sweep leaves all parameters everywhere
            found = problem.whole(found)
        pairs = zip(found.tensors, alone.state.point.tensors, strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs)

    found = {"lifted": lambda: distance(contestants.jacobi)}
    if "data" in spec:
        found["sweeps"] = lambda: distance(contestants.sweeps)
    return found


def as_mesh_once(spec: str) -> Callable[[], Any]:
    """The process group is made after the cases."""
    made: list[Any] = []

    def mesh() -> Any:
        if not made:
            made.append(as_mesh(spec, timeout=60))
        return made[0]

    return mesh
