"""Steps and processor seconds to a given objective, in lifted variables z and in errors e = z − σ(W u + b)."""

from __future__ import annotations

import time
from typing import Any

import torch

from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import ErrorProblem, Objective, TrainingProblem
from torchlift.prox import Tanh
from torchlift.solvers import Backtracking, LinearisedBCD, ProximalGradient

#: Part of the first objective that is to be reached.
TARGET = 0.1
WIDTH, BATCH = 16, 64


def compare(depth: int, *, steps: int, seconds: float, target: float = TARGET, seed: int = 0) -> dict[str, Any]:
    """Both coordinates from the same start by the same solver, until each is there or has had its steps or seconds.

    A chain of tanh with orthogonal weights, so that signals neither vanish nor grow in any
    depth, is to learn random targets, more than its output map could fit alone: Bregman lifting
    with μ = 1, linearised block coordinate descent with backtracking, full batch, lifted
    variables from the forward pass.

    Arguments:
        depth: hidden layers.
        steps: at most.
        seconds: of the processor, at most.
        target: the part of the first objective that is to be reached.
        seed: of weights and data.
    """
    rows = {}
    for name, kind in (("states", TrainingProblem), ("errors", ErrorProblem)):
        generator = torch.Generator().manual_seed(seed + 1)
        y, x = (0.3 * torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
        objective = Objective(_network(depth, seed), Bregman(), coordinates=name)  # type: ignore[arg-type]
        problem = kind(objective, y, x)
        rows[name] = _run(problem, steps, seconds, target)
    return {"depth": depth, "width": WIDTH, "batch": BATCH, "target": target, **rows}


def _run(problem: TrainingProblem, steps: int, seconds: float, target: float) -> dict[str, Any]:
    solver = LinearisedBCD(ProximalGradient(Backtracking()))
    state = solver.init(problem, problem.start())
    first = value = problem.value(state.point)
    spent, count = 0.0, 0
    while value > target * first and count < steps and spent < seconds:
        begin = time.process_time()
        state = solver.step(problem, state)
        spent, count = spent + time.process_time() - begin, count + 1
        value = problem.value(state.point)
    return {"steps": count, "seconds": spent, "part": value / first, "reached": value <= target * first}


@torch.no_grad()
def _network(depth: int, seed: int) -> MLP:
    generator = torch.Generator().manual_seed(seed)
    network = MLP([WIDTH] * (depth + 2), Tanh(), generator=generator, dtype=torch.float64)
    for name, parameter in network.named_parameters():
        if name.endswith("weight"):
            for matrix in parameter.reshape(-1, WIDTH, WIDTH):
                matrix.copy_(torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))[0])
        else:
            parameter.zero_()
    return network
