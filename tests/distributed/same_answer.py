"""Cases for a world: what the processes find together, compared with what one finds alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import torch

import torchlift as tl
from distributed import shapes
from torchlift.distributed import Mesh, Share, as_mesh
from torchlift.distributed import shares as slices
from torchlift.liftings import MACQP, Bregman, Classical, Conventional, Fenchel, Lifting
from torchlift.objective import GramRule, Objective, ScaledStep, SweepDescent, TrainingProblem
from torchlift.objective.distributed_problem import DistributedProblem
from torchlift.objective.layer_part import LayerPart
from torchlift.objective.problem import Split
from torchlift.solvers import (
    FISTA,
    Backtracking,
    BlockCoordinateDescent,
    HeavyBall,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalAdam,
    ProximalGradient,
    Solver,
    Stopping,
    solve,
)
from torchlift.training import TorchOptimiser

STEPS = 50
SPLITS: tuple[Split, ...] = ("whole", "odd-even", "layers")
LIFTINGS: tuple[Lifting, ...] = (Bregman(0.5), Fenchel((0.3, 0.6, 0.4, 0.5)), Classical(0.5), MACQP(0.7))
SOLVERS: tuple[Solver[Any, Any], ...] = (
    LinearisedBCD(ProximalGradient(0.05)),
    LinearisedBCD(ProximalGradient(0.05), sweep="jacobi"),
    ProximalGradient(Backtracking()),
    FISTA(Backtracking()),
    LinearisedBCD(ProximalGradient(Backtracking()), sweep="odd-even"),
    ProximalAdam(0.01),
    ProximalGradient(0.02, HeavyBall(0.5)),
)


def cases(*plans: str) -> dict[str, Callable[[], Any]]:
    """Each plan is "mesh every first runs": of all liftings and splits every so many, and so many runs of `train`."""
    found: dict[str, Callable[[], Any]] = {}
    for plan in plans:
        mesh, every, first, runs = plan.split()
        pairs = product(enumerate(LIFTINGS), enumerate(SPLITS))
        for (i, lifting), (j, split) in list(pairs)[int(first) :: int(every)]:
            # every network meets every lifting and every split
            kind, solver = shapes.NETWORKS[(i + j) % 3], SOLVERS[(3 * i + j) % len(SOLVERS)]
            name = f"{mesh} {kind} {type(lifting).__name__} {split} {type(solver).__name__}"
            found[name] = partial(_solved, mesh, kind, lifting, split, solver)
        trained = _by_data() if mesh.endswith("layers=1") else _by_layers()
        for name, settings in list(trained.items())[: int(runs)]:
            found[f"{mesh} train {name}"] = partial(_trained, mesh, settings)
    return found


def _solved(
    spec: str, kind: str, lifting: Lifting, split: Split, solver: Solver[Any, Any]
) -> tuple[float, float, bool]:
    """Distance of the points, and of the recorded values, after 50 steps; whether they stopped alike."""
    mesh = _mesh(spec)
    samples = 7  # no two processes can have as many
    y, x = shapes.data(shapes.network(kind), samples)
    stopping = Stopping(STEPS, change=None)
    alone = TrainingProblem(Objective(shapes.network(kind), lifting), y, x, split=split)
    expected = solve(alone, solver, alone.start("input"), stopping=stopping, record_every=10)
    objective = Objective(shapes.network(kind), lifting)
    part = LayerPart(objective, mesh) if mesh.layers > 1 else None
    parts = slices(samples, mesh.data)
    share, own = Share(mesh, tuple(each.stop - each.start for each in parts)), parts[mesh.data_rank]
    problem = DistributedProblem(objective, y[own], x[own], share, part, split=split)
    found = solve(problem, solver, problem.start("input"), stopping=stopping, record_every=10)
    pairs = zip(problem.whole(found.point).tensors, expected.point.tensors, strict=True)
    rows = zip(found.history, expected.history, strict=True)
    return (
        max(float((a - b).abs().max()) for a, b in pairs),
        max(abs(a.value - b.value) + abs(a.residual - b.residual) for a, b in rows),
        found.result is expected.result,
    )


def _trained(spec: str, settings: dict[str, Any]) -> tuple[float, float, float]:
    """Distance of the networks, distance of the last recorded losses, and a number that all ranks must share."""
    settings = dict(settings)
    net, samples = settings.pop("network", "mlp"), settings.pop("samples", 33)
    runs = []
    for mesh in (None, _mesh(spec)):
        chosen = shapes.network(net)
        pair = shapes.data(chosen, samples)
        options = {"steps": STEPS, "evaluate_every": 25, "progress": False, "mesh": mesh, **settings}
        runs.append(tl.train(chosen, pair, **options))
    alone, together = runs
    difference = abs(alone.history[-1]["loss"] - together.history[-1]["loss"])
    return shapes.distance(alone.network, together.network), difference, shapes.checksum(together.network)


def _by_data() -> dict[str, dict[str, Any]]:
    linearised = LinearisedBCD(ProximalGradient(0.05))
    return {
        "sweeps": {"batch_size": 10},
        "sweeps, ResNet": {"network": "resnet", "batch_size": 10},
        "sweeps, convolutional": {"network": "convolutional", "batch_size": 10},
        "batches of 1 and 2 samples": {"samples": 7, "batch_size": 2, "weights": "keep"},
        "Adam on sweeps": {"batch_size": 10, "solver": SweepDescent(ScaledStep(1e-2, centring=True))},
        "Gram": {"batch_size": 10, "solver": SweepDescent(GramRule())},
        "back-propagation": {"lifting": Conventional(), "batch_size": 10},
        "torch": {"lifting": Conventional(), "batch_size": 10, "solver": partial(torch.optim.SGD, lr=0.1)},
        "torch, centred": {
            "lifting": Conventional(), "batch_size": 10, "solver": TorchOptimiser(torch.optim.Adam, "cosine", True),
        },
        "warm": {"lifting": Bregman(), "batch_size": 10, "states": "warm", "solver": linearised},
        "full batch": {"lifting": Bregman(0.5), "batch_size": "full"},
        "FISTA by bounds": {"lifting": Bregman(0.5), "batch_size": "full", "states": "random", "solver": FISTA()},
        "implicit": {
            "lifting": Bregman(0.5), "batch_size": 10, "steps": 2,
            "solver": ImplicitStochasticGradient(0.1, BlockCoordinateDescent(inner_steps=3)),
        },
    }  # fmt: skip


def _by_layers() -> dict[str, dict[str, Any]]:
    linearised = LinearisedBCD(ProximalGradient(0.05))
    return {
        "batches": {"lifting": Bregman(0.5), "batch_size": 10, "solver": linearised},
        "random start": {"lifting": Bregman(0.5), "batch_size": 10, "states": "random", "solver": linearised},
        "full batch": {"lifting": Bregman(0.5), "batch_size": "full"},
        "FISTA by bounds": {"lifting": Bregman(0.5), "batch_size": "full", "states": "random", "solver": FISTA()},
        "implicit": {
            "lifting": Bregman(0.5), "batch_size": 10, "steps": 2,
            "solver": ImplicitStochasticGradient(0.1, BlockCoordinateDescent(inner_steps=3)),
        },
    }  # fmt: skip


_MESHES: dict[str, Mesh] = {}


def _mesh(spec: str) -> Mesh:
    """Made once: every one has groups of its own."""
    if spec not in _MESHES:
        _MESHES[spec] = as_mesh(spec, timeout=60)
    return _MESHES[spec]
