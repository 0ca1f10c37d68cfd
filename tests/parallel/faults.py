"""Cases for a world of two: what goes wrong, and what must not differ."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

import torchlift as tl
from parallel import shapes
from torchlift.core.solution import StepFailure
from torchlift.functions.regularisers import Ridge
from torchlift.liftings import Bregman, Conventional
from torchlift.networks import Shallow
from torchlift.objective import Objective
from torchlift.parallel import Mesh, MeshShard, ShardedProblem, as_mesh, stage_of
from torchlift.solvers import LinearisedBCD, ProximalGradient
from training.runs import called

SOLVER = LinearisedBCD(ProximalGradient(0.05))


def cases(kind: str, folder: str = "") -> dict[str, Callable[[], Any]]:
    if kind.startswith("hang"):
        return {"hang": partial(_hang, kind.removeprefix("hang "), Path(folder) / "given up")}
    return {
        "NaN in a sample": _bad_sample,
        "NaN in a layer": _bad_layer,
        "torchlift version": lambda: _other_version("torchlift.parallel.agreement._version", lambda: "0.0.1"),
        "torch version": lambda: _other_version("torch.__version__", "1.0.0"),
        "python version": lambda: _other_version("platform.python_version", lambda: "3.1.4"),
        "settings": lambda: _train("data=2", seed=dist.get_rank()),
        "data": lambda: _train("data=2", data=shapes.data(shapes.network("mlp"), 20, seed=dist.get_rank())),
        "weights": lambda: _train("data=2", net=shapes.network("mlp", seed=dist.get_rank())),
        "buffers": _buffers,
        "callback": _stopped,
        "time limit": _limited,
        "traffic": _traffic,
        "world size": partial(as_mesh, "data=3"),
        "Shallow": lambda: _train("layers=2", net=Shallow(4, 3, dtype=torch.float64), lifting=Bregman(), solver=SOLVER),
        "sweeps": lambda: _train("layers=2", net=Shallow(4, 3, dtype=torch.float64)),
        "torch": lambda: _train(
            "layers=2",
            net=tl.networks.MLP([3, 2], dtype=torch.float64),
            lifting=Conventional(),
            solver=torch.optim.Adam,
        ),
        "too many": lambda: _train(
            "layers=2", net=tl.networks.MLP([3, 4, 2], dtype=torch.float64), lifting=Bregman(), solver=SOLVER
        ),
        "coupled": lambda: _train("layers=2", lifting=Bregman(), solver=SOLVER, coupling=0.5),
        "regularised": lambda: _train(
            "layers=2", lifting=Bregman(), solver=SOLVER, parameter_regularisers={"*weight": Ridge(1e-2)}
        ),
        "warm": lambda: _train("layers=2", lifting=Bregman(), solver=SOLVER, states="warm"),
    }


def _train(mesh: str, net: Any = None, data: Any = None, **settings: Any) -> Any:
    net = shapes.network("mlp") if net is None else net
    given = shapes.data(net, 20) if data is None else data
    options = {"steps": 4, "batch_size": 10, "progress": False, **settings}
    result = tl.train(net, given, **called({"mesh": as_mesh(mesh, timeout=30), **options}))
    return shapes.checksum(result.network)


class Shifted(shapes.Module):
    """A module with a constant of its own."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(shift, dtype=torch.float64))

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return super().forward(y + self.shift)


def _buffers() -> tuple[float, Any]:
    torch.manual_seed(dist.get_rank())
    net = Shifted(0.5 + dist.get_rank())
    found = _train("data=2", net=net)
    return float(net.shift), found


def _bad_sample() -> str:
    net = shapes.network("mlp")
    y, x = shapes.data(net, 20)
    y[-1] = 1e308  # the last sample is with rank 1
    options = {"lifting": Conventional(), "batch_size": "full", "steps": 4, "progress": False}
    mesh = tl.TrainOptions(mesh=as_mesh("data=2", timeout=30))
    return tl.train(net, (y, x), options=mesh, **options).message


def _bad_layer() -> str:
    mesh = as_mesh("layers=2", timeout=30)
    problem = _problem(mesh)
    point = problem.start()
    if mesh.rank == 1:
        point = point.merge(point.select(["parameters"]).like(t * torch.nan for t in point["parameters"]))
    try:
        SOLVER.step(problem, SOLVER.init(problem, point))
    except StepFailure as failure:
        return failure.detail
    return "no failure"


def _stopped() -> tuple[int, str]:
    net = shapes.network("mlp")
    options = {"steps": 50, "batch_size": 10, "evaluate_every": 3, "progress": False, "callback": lambda row: True}
    result = tl.train(net, shapes.data(net, 20), **called({"mesh": as_mesh("data=2", timeout=30), **options}))
    return result.steps, result.result.code


def _limited() -> tuple[int, str, float]:
    """A time limit steers the steps too, so all must read one clock."""
    net = shapes.network("mlp")
    options = {"time_limit": 0.3, "batch_size": 10, "progress": False}
    result = tl.train(net, shapes.data(net, 20), **called({"mesh": as_mesh("data=2", timeout=30), **options}))
    return result.steps, result.result.code, shapes.checksum(result.network)


def _traffic() -> list[int]:
    """Bytes of one gradient: sent to neighbours along the layers, reduced along the data."""
    layers, data = as_mesh("layers=2", timeout=30), as_mesh("data=2", timeout=30)
    by_layers, by_data, net = _problem(layers), _problem(data), shapes.network("mlp")
    point, before = by_layers.start(), layers.traffic.sent
    by_layers.gradient(point)
    sent = layers.traffic.sent - before
    point, before = by_data.start(), data.traffic.reduced
    by_data.gradient(point)
    return [sent, data.traffic.reduced - before, sum(p.numel() for p in net.parameters())]


def _other_version(name: str, value: Any) -> Any:
    """Rank 1 believes to have another version."""
    with patch(name, value) if dist.get_rank() == 1 else nullcontext():
        return _train("data=2")


def _hang(spec: str, given_up: Path) -> str:
    """Rank 1 does nothing until rank 0 no longer waits for it."""
    mesh = as_mesh(spec, timeout=2)
    problem = _problem(mesh)
    point = problem.start()
    if mesh.rank == 1:
        end = time.monotonic() + 60
        while not given_up.exists() and time.monotonic() < end:
            time.sleep(0.05)
        return "slept"
    try:
        problem.gradient(point)
    finally:
        given_up.touch()
    return "no failure"


def _problem(mesh: Mesh) -> ShardedProblem:
    objective = Objective(shapes.network("mlp"))
    y, x = shapes.data(shapes.network("mlp"), 6)
    if mesh.layers > 1:
        return ShardedProblem(objective, y, x, MeshShard(mesh, (6,)), stage_of(objective, mesh))
    own = slice(3 * mesh.data_rank, 3 * mesh.data_rank + 3)
    return ShardedProblem(objective, y[own], x[own], MeshShard(mesh, (3, 3)))
