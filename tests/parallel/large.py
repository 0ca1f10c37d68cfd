"""Cases for a world: steps whose gradients are so large that they are summed where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from torchlift.lab.benchmarks.distributed import Size, methods
from torchlift.lab.benchmarks.distributed.methods import Steps
from torchlift.parallel import ShardedProblem, as_mesh

STEPS = 5


def cases(spec: str) -> dict[str, Callable[[], Any]]:
    """The methods of `torchlift bench distributed` on a mesh, each with its distance from one process."""
    torch.set_default_dtype(torch.float64)
    size, mesh = Size(3, 192, 11), as_mesh_once(spec)

    def distance(make: Callable[..., Any]) -> float:
        alone, together = make(size), make(size, mesh())
        for _ in range(STEPS):
            alone()
            together()
        pairs = zip(tensors(together), tensors(alone), strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs)

    cases = {"lifted": lambda: distance(methods.jacobi)}
    if "data" in spec:
        cases["sweeps"] = lambda: distance(methods.sweeps)
    return cases


def tensors(step: Any) -> Iterable[Tensor]:
    """What the steps have moved, that of all processes."""
    if not isinstance(step, Steps):  # a sweep leaves all parameters everywhere
        return [parameter.detach() for parameter in step.__self__.work.network.parameters()]
    point, problem = step.state.point, step.problem
    return (problem.whole(point) if isinstance(problem, ShardedProblem) else point).tensors


def as_mesh_once(spec: str) -> Callable[[], Any]:
    """The process group is made after the cases."""
    made: list[Any] = []

    def mesh() -> Any:
        if not made:
            made.append(as_mesh(spec, timeout=60))
        return made[0]

    return mesh
