"""Cases for a world: steps whose gradients are so large that they are summed where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from parallel.meshes import mesh_of
from torchlift.lab.benchmarks.distributed import Size, methods
from torchlift.lab.benchmarks.distributed.methods import Steps
from torchlift.parallel import ShardedProblem

STEPS = 5


def cases() -> dict[str, Callable[[], float]]:
    """The methods of `torchlift bench distributed` on a mesh, each with its distance from one process."""
    torch.set_default_dtype(torch.float64)
    return {
        "lifted data=2": partial(distance, methods.jacobi, "data=2"),
        "sweeps data=2": partial(distance, methods.sweeps, "data=2"),
        "lifted layers=2": partial(distance, methods.jacobi, "layers=2"),
    }


def distance(make: Callable[..., Any], spec: str) -> float:
    size = Size(3, 192, 11)
    alone, together = make(size), make(size, mesh_of(spec))
    for _ in range(STEPS):
        alone()
        together()
    pairs = zip(tensors(together), tensors(alone), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def tensors(step: Any) -> Iterable[Tensor]:
    """What the steps have moved, that of all processes."""
    if not isinstance(step, Steps):  # a sweep leaves all parameters everywhere
        return [parameter.detach() for parameter in step.__self__.work.network.parameters()]
    point, problem = step.state.point, step.problem
    return (problem.whole(point) if isinstance(problem, ShardedProblem) else point).tensors
