"""Cases for a world: what the processes find together, compared with what one of them finds alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

import torchlift as tl
from parallel import partitions, shapes
from parallel.meshes import mesh_of
from torchlift.core.solution import Result
from torchlift.functions.regularisers import L1, Ridge
from torchlift.liftings import MACQP, Bregman, Classical, Contrastive, Conventional, Fenchel, Lifting
from torchlift.objective import Objective, TrainingProblem
from torchlift.objective.problem import Split
from torchlift.parallel import Mesh, MeshShard, ShardedProblem, split_evenly, stage_of
from torchlift.parallel import mesh as exchanges
from torchlift.solvers import (
    FISTA,
    Backtracking,
    BlockCoordinateDescent,
    HeavyBall,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalAdam,
    ProximalGradient,
    Solution,
    Solver,
    Stopping,
    solve,
)
from torchlift.training import BackPropagation, ContrastiveDescent, SweepDescent
from training.runs import called

STEPS, LONG = 6, 15
"""Of most tasks, which differ from the first step on if at all (six go once through the batches and on), and of a few,
in which rounding could add up."""
SPLITS: tuple[Split, ...] = ("whole", "odd-even", "layers")
LIFTINGS: tuple[Lifting, ...] = (Bregman(0.5), Fenchel((0.3, 0.6, 0.4, 0.5)), Classical(0.5), MACQP(0.7))
SOLVERS: tuple[Solver[Any, Any], ...] = (
    LinearisedBCD(ProximalGradient(0.05)),
    LinearisedBCD(ProximalGradient(0.05), sweep="jacobi"),
    ProximalGradient(Backtracking()),
    FISTA(Backtracking()),
    LinearisedBCD(ProximalGradient(Backtracking()), sweep="odd-even"),
    LinearisedBCD(ProximalGradient(0.05), sweep="backward"),
    ProximalAdam(0.01),
    ProximalGradient(0.02, HeavyBall(0.5)),
)
EXACT = BlockCoordinateDescent(1e-4, inner_steps=2)

Outcome: TypeAlias = tuple[Tensor, Tensor]
"""All numbers of the answer, and a few that were recorded on the way."""


@dataclass(frozen=True, eq=False)
class Lifted:
    """Some steps of a solver on one batch, whose lifted variables persist."""

    kind: str
    lifting: Lifting
    split: Split
    solver: Solver[Any, Any]
    samples: int = 7  # no two processes can have as many
    steps: int = STEPS
    coupling: float | None = None
    start: str = "input"

    def alone(self) -> Outcome:
        y, x = self._data()
        problem = TrainingProblem(self._objective(), y, x, split=self.split)
        found = self._solved(problem)
        return _flat(found.point.tensors), _recorded(found)

    def together(self, mesh: Mesh) -> Outcome:
        y, x = self._data()
        parts = split_evenly(self.samples, mesh.data)
        shard, own = MeshShard(mesh, tuple(each.stop - each.start for each in parts)), parts[mesh.data_rank]
        objective = self._objective()
        problem = ShardedProblem(objective, y[own], x[own], shard, stage_of(objective, mesh), split=self.split)
        found = self._solved(problem)
        return _flat(problem.whole(found.point).tensors), _recorded(found)

    def _objective(self) -> Objective:
        return Objective(shapes.network(self.kind), self.lifting, coupling=self.coupling)

    def _data(self) -> tuple[Tensor, Tensor]:
        return shapes.data(shapes.network(self.kind), self.samples)

    def _solved(self, problem: TrainingProblem) -> Solution[Any]:
        stopping = Stopping(self.steps, change=None)
        start = problem.start(self.start, torch.Generator().manual_seed(0))
        return solve(problem, self.solver, start, stopping=stopping, record_every=3)


@dataclass(frozen=True, eq=False)
class Trained:
    """A run of `train`; `layered` where its layers can be shared too."""

    settings: dict[str, Any]
    kind: str = "mlp"
    samples: int = 33
    scale: float = 1.0
    layered: bool = False

    def alone(self) -> Outcome:
        return self.together(None)

    def together(self, mesh: Mesh | None) -> Outcome:
        network = shapes.network(self.kind, scale=self.scale)
        options = {"steps": STEPS, "evaluate_every": 5, "progress": False, "mesh": mesh, **self.settings}
        found = tl.train(network, shapes.data(network, self.samples), **called(options))
        loss = torch.tensor([found.history[-1]["loss"]], dtype=torch.float64)
        return _flat(p.detach() for p in found.network.parameters()), loss


Task: TypeAlias = Lifted | Trained


def cases(processes: str) -> dict[str, Callable[[], Any]]:
    """Tasks on all meshes of a world; each is done alone by one process only."""
    count, alone = int(processes), dict[str, Outcome]()
    if count > 1:
        exchanges.WORTH = 0  # these layers are all small, and are to be divided too
    known = _lifted() | _exact() | _coupled() | _runs()
    plan = _plan(count)
    tasks = {name: known[name] for name in dict.fromkeys(name for names in plan.values() for name in names)}
    found: dict[str, Callable[[], Any]] = {"alone": partial(_alone, tasks, alone)}
    for spec, names in plan.items():
        for name in names:
            owner = list(tasks).index(name) % count
            found[f"{spec}: {name}"] = partial(_compared, spec, name, tasks[name], owner, alone)
        if count > 1:
            found[f"partitions {spec}"] = partial(partitions.iterates, spec)
    if count == 2:
        found["order"] = partial(partitions.order, "data=1,layers=2")
        found["exchanged"] = partial(partitions.exchanged, "data=2,layers=1")
    return found


def _plan(processes: int) -> dict[str, list[str]]:
    """Tasks by mesh. Every mesh meets every lifting, split and network, those of two processes most of them."""
    lifted, exact, runs = list(_lifted()), list(_exact()), _runs()
    layered = [name for name, run in runs.items() if run.layered]
    # of each lifting another split on each mesh
    third = [[lifted[3 * i + (i + mesh) % 3] for i in range(len(LIFTINGS))] for mesh in range(3)]
    if processes == 1:
        return {"data=1,layers=1": lifted[::5]}
    if processes == 2:
        data = [name for name in runs if name not in ("random start", "contrastive, few steps", "contrastive, ResNet")]
        layered.remove("contrastive, convolutional")
        both = [*lifted, exact[1], *layered]
        return {"data=2,layers=1": [*third[0], *exact, *_coupled(), *data], "data=1,layers=2": both}
    uneven = ["sweeps, orthogonal steps", "batches of 1 and 2 samples"]
    return {
        "data=2,layers=2": [*third[0], exact[1], "random start", "contrastive, few steps"],
        "data=1,layers=4": third[1],
        "data=4,layers=1": [*third[2], "sweeps", "sweeps, a module", *uneven],
    }


def _alone(tasks: dict[str, Task], found: dict[str, Outcome]) -> int:
    """This process's part of what is found alone."""
    own = list(tasks.items())[dist.get_rank() :: dist.get_world_size()]
    found.update({name: task.alone() for name, task in own})
    return len(found)


def _compared(
    spec: str, name: str, task: Task, owner: int, alone: dict[str, Outcome]
) -> tuple[float, float, list[float]]:
    """The largest difference of the answers, that of the records, and numbers that all ranks must share."""
    answer, records = task.together(mesh_of(spec))
    expected = alone.get(name, (torch.empty_like(answer), torch.empty_like(records)))
    for tensor in expected:
        dist.broadcast(tensor, owner)
    distance, difference = (float((a - b).abs().max()) for a, b in zip((answer, records), expected, strict=True))
    return distance, difference, [float(answer.abs().sum()), *records.tolist()]


def _lifted() -> dict[str, Task]:
    found: dict[str, Task] = {}
    for (i, lifting), (j, split) in product(enumerate(LIFTINGS), enumerate(SPLITS)):
        # every network meets every lifting and every split
        kind, solver = shapes.NETWORKS[(i + j) % 3], SOLVERS[(3 * i + j) % len(SOLVERS)]
        steps = LONG if (i + 2 * j) % 5 == 0 else STEPS
        name = f"{kind} {type(lifting).__name__} {split} {type(solver).__name__}"
        found[name] = Lifted(kind, lifting, split, solver, steps=steps)
    return found


def _exact() -> dict[str, Task]:
    """Without a proximal term MAC-QP has no place here: its weights are not determined, nor is their limit."""
    steps = {Classical(0.5): LONG, Bregman(0.5): STEPS}
    return {
        f"exact {type(lifting).__name__}": Lifted("mlp", lifting, "odd-even", EXACT, 23, count)
        for lifting, count in steps.items()
    }


def _coupled() -> dict[str, Task]:
    """A free u, whose layers no mesh divides."""
    mixed = LinearisedBCD({"parameters": ProximalGradient(Backtracking()), "states": ProximalGradient()})
    chosen = (
        ("mlp", Bregman(0.5), "whole", FISTA(), "random"),
        ("mlp", Classical(0.5), "odd-even", EXACT, "input"),
        ("resnet", Bregman(0.5), "whole", LinearisedBCD(), "random"),
        ("resnet", MACQP(0.7), "layers", ProximalGradient(Backtracking()), "input"),
        ("convolutional", Classical(0.5), "layers", mixed, "input"),
    )
    return {
        f"coupled {kind} {type(lifting).__name__} {split}": Lifted(
            kind, lifting, split, solver, 23 if solver is EXACT else 7, coupling=1.5, start=start
        )
        for kind, lifting, split, solver, start in chosen
    }


def _runs() -> dict[str, Trained]:
    swept, back = {"batch_size": 10}, {"lifting": Conventional(), "batch_size": 10}
    lifted = {"lifting": Bregman(0.5), "batch_size": 10, "solver": LinearisedBCD(ProximalGradient(0.05))}
    full = {"lifting": Bregman(0.5), "batch_size": "full"}
    implicit = ImplicitStochasticGradient(0.1, EXACT)
    contrastive = {"lifting": Contrastive(1.0), "batch_size": 5, "weights": "keep"}
    few, adam = {**contrastive, "steps": 2}, ContrastiveDescent(partial(torch.optim.Adam, lr=2e-3))
    decay = {"*weight": Ridge(1e-2)}
    centred = SweepDescent(partial(torch.optim.Adam, lr=1e-2), centring=True)
    by_data = {
        "sweeps": Trained({**swept, "steps": LONG}),
        "sweeps, ResNet": Trained(swept, "resnet"),
        "sweeps, convolutional": Trained(swept, "convolutional"),
        "batches of 1 and 2 samples": Trained({"batch_size": 2, "weights": "keep"}, samples=7),
        "sweeps, full batch": Trained({"batch_size": "full"}),
        "sweeps, a module": Trained(swept, "module"),
        "sweeps, flat units": Trained(swept, "flat"),
        "sweeps, orthogonal steps": Trained(swept, "narrow"),
        "Adam on sweeps": Trained({**swept, "solver": centred}),
        "back-propagation": Trained(back),
        "torch": Trained({**back, "solver": partial(torch.optim.SGD, lr=0.1)}),
        "torch, centred": Trained({**back, "solver": BackPropagation(torch.optim.Adam, "cosine", True)}),
        "warm": Trained({**lifted, "states": "warm"}),
        "regularised": Trained({**lifted, "state_regularisers": L1(1e-2), "parameter_regularisers": decay}),
        "coupled": Trained({**lifted, "coupling": 0.5}),
        "coupled, full batch": Trained({**full, "coupling": 0.5}, "resnet"),
        "coupled, warm": Trained({**lifted, "coupling": 0.5, "states": "warm"}),
        "contrastive": Trained({**contrastive, "steps": 4, "solver": adam}, samples=11, scale=0.1),
    }
    by_both = {
        "batches": Trained({**lifted, "steps": LONG}),
        "random start": Trained({**lifted, "states": "random"}),
        "full batch": Trained(full),
        "FISTA by bounds": Trained({**full, "states": "random", "solver": FISTA()}),
        "implicit": Trained({**lifted, "steps": 2, "solver": implicit}),
        "implicit, MAC-QP": Trained({**lifted, "lifting": MACQP(0.7), "steps": 2, "solver": implicit}),
        "contrastive, few steps": Trained(few, samples=11, scale=0.25),
        "contrastive, ResNet": Trained(few, "resnet", 11, 0.25),
        "contrastive, convolutional": Trained(few, "convolutional", 11, 0.25),
    }
    return by_data | {name: replace(run, layered=True) for name, run in by_both.items()}


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1).double() for tensor in tensors])


def _recorded(found: Solution[Any]) -> Tensor:
    """Why it stopped, and what was seen on the way."""
    numbers = [float(list(Result).index(found.result)), float(found.state.count)]
    seen = [number for row in found.history for number in (row.value, row.residual)]
    return torch.tensor(numbers + seen, dtype=torch.float64)
