"""Every public function, class and method of torchlift, each with a call that works.

A door is found by walking `__all__` of the packages. Its arguments are made from their annotations; the few that
are special stand in `EXAMPLES`.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import contextlib
import importlib
import inspect
import pkgutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import torchlift as tl
from torchlift.core.errors import TorchliftError
from torchlift.core.shard import Shard
from torchlift.data import Task, TensorBatches
from torchlift.functions.priors import HuberTV, TotalVariation, Wavelet
from torchlift.networks import MLP, Network
from torchlift.objective import TrainingProblem
from torchlift.operators import Dense, LinearOperator
from torchlift.solvers import CompositeProblem, Point, ProximalGradient
from torchlift.sweeps.perturbation import Activation

#: Packages whose names are no part of the library: the command, whose doors are words, and what needs a cluster.
LEFT_OUT = ("torchlift.cli", "torchlift.lab.commands", "torchlift.lab.soak", "torchlift.contrib")


@dataclass(frozen=True)
class Door:
    """Something public that can be called."""

    name: str
    function: Callable[..., Any]
    owner: type | None = None

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        parameters = list(inspect.signature(self.function).parameters.items())
        return dict(parameters[1:] if self.bound else parameters)

    @property
    def bound(self) -> bool:
        return self.owner is not None and not isinstance(inspect.getattr_static(self.owner, self.member), staticmethod)

    @property
    def member(self) -> str:
        return self.name.rpartition(".")[2]

    def required(self) -> Iterator[tuple[str, str]]:
        for name, parameter in self.parameters.items():
            if parameter.default is parameter.empty and parameter.kind not in (
                parameter.VAR_POSITIONAL,
                parameter.VAR_KEYWORD,
            ):
                yield name, str(parameter.annotation)


def packages() -> Iterator[Any]:
    yield tl
    for module in pkgutil.walk_packages(tl.__path__, "torchlift.", onerror=lambda name: None):
        if module.ispkg and not module.name.startswith(LEFT_OUT):
            yield importlib.import_module(module.name)


def doors() -> list[Door]:
    found: dict[int, Door] = {}
    for package in packages():
        for name in getattr(package, "__all__", ()):
            thing = getattr(package, name)
            if id(thing) in found or not (inspect.isclass(thing) or inspect.isfunction(thing)):
                continue
            label = f"{package.__name__}.{name}".removeprefix("torchlift.")
            found[id(thing)] = Door(label, thing)
    every: list[Door] = []
    seen: set[object] = set()  # an inherited method is tried on one object
    for door in found.values():
        thing = door.function
        if not inspect.isclass(thing):
            every.append(door)
            continue
        if inspect.isabstract(thing):
            continue
        if issubclass(thing, BaseException) or "_member_map_" in vars(thing):
            continue
        every.append(door)
        for member in dir(thing):
            method = inspect.getattr_static(thing, member)
            method = getattr(method, "__func__", method)
            if (not member.startswith("_") or member == "__call__") and inspect.isfunction(method):
                if method in seen:
                    continue
                seen.add(method)
                if method.__module__.startswith("torchlift") and len(inspect.signature(method).parameters) > 1:
                    every.append(Door(f"{door.name}.{member}", method, thing))
    return every


def _network() -> Network:
    return MLP([3, 4, 2], generator=torch.Generator().manual_seed(0))


def _batch() -> tl.data.Batch:
    return tl.data.Batch(torch.rand(2, 3), torch.rand(2, 2))


def _objective() -> tl.Objective:
    return tl.Objective(_network())


def _problem() -> CompositeProblem:
    return CompositeProblem(lambda x: 0.5 * (x**2).sum(), lambda x: x, bound=1.0)


def _saddle() -> Any:
    return tl.solvers.SaddleProblem((tl.solvers.Term(tl.functions.L1(), Dense(torch.ones(2, 3))),), g=tl.functions.L1())


def _work() -> Any:
    return tl.training.Work(
        _network(), tl.losses.SquaredError(), TensorBatches(torch.rand(4, 3), torch.rand(4, 2)), lambda count: 1.0
    )


def _record() -> Any:
    return tl.report.records.Record("name", "Title", "summary", "command", {}, {}, 1.0)


def _table() -> Any:
    return tl.report.records.Table("name", "title", ("a",), ((1,),))


def _states() -> Any:
    return _objective().initialise(torch.ones(2, 3))


#: A value for each annotation of a required argument; functions are called anew for every call.
BY_ANNOTATION: dict[str, Callable[[], Any]] = {
    "Tensor": lambda: torch.full((2, 3), 0.5),
    "ForwardRef('Tensor')": lambda: torch.full((2, 3), 0.5),
    "ForwardRef('Context')": lambda: None,
    "Context": lambda: None,
    "Tensor | None": lambda: torch.full((2, 3), 0.5),
    "int": lambda: 2,
    "float": lambda: 0.5,
    "bool": lambda: False,
    "float | None": lambda: 0.5,
    "int | None": lambda: 2,
    "bool | None": lambda: True,
    "str": lambda: "name",
    "str | None": lambda: None,
    "float | Tensor": lambda: 0.5,
    "Amount": lambda: 0.5,
    "Shape": lambda: (3,),
    "tuple[int, int, int]": lambda: (1, 6, 6),
    "Point": lambda: Point({"x": torch.ones(2, 3)}),
    "ProximalActivation": tl.ReLU,
    "LinearOperator": lambda: Dense(torch.ones(2, 3)),
    "LinearOperator | nn.Module": lambda: Dense(torch.ones(3, 3)),
    "LinearOperator | Tensor": lambda: torch.eye(3),
    "Sequence[LinearOperator]": lambda: [Dense(torch.ones(2, 3))],
    "Sequence[str]": lambda: ("name",),
    "tuple[str, ...]": lambda: ("name",),
    "Sequence[int]": lambda: [3, 2],
    "tuple[int, ...]": lambda: (1,),
    "tuple[float, ...]": lambda: (0.5,),
    "Sequence[float]": lambda: [0.5],
    "Sequence[float | None]": lambda: [0.5],
    "Sequence[Tensor]": lambda: [torch.rand(1, 8, 8)],
    "tuple[Tensor, ...]": lambda: (torch.full((2, 3), 0.5),),
    "ForwardRef('tuple[Tensor, ...]')": lambda: (torch.full((2, 3), 0.5),),
    "Mapping[str, Tensor]": lambda: {"name": torch.rand(1, 8, 8)},
    "Mapping[str, Any]": dict,
    "Mapping[str, float]": lambda: {"name": 0.5},
    "Mapping[str, Any] | None": lambda: None,
    "dict[str, Any]": dict,
    "list[dict[str, Any]]": list,
    "Sequence[Mapping[str, Any]]": list,
    "Sequence[dict[str, Any]]": list,
    "Prior": tl.functions.L1,
    "Function": tl.functions.L1,
    "tuple[Prior, ...]": lambda: (tl.functions.L1(), tl.functions.Ridge()),
    "Lifting": tl.liftings.Bregman,
    "Loss": tl.losses.SquaredError,
    "Network": _network,
    "N": _network,
    "nn.Module": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
    "Network | nn.Module | Sequence[Network]": _network,
    "Tensor | Sequence[Tensor]": lambda: torch.full((2, 2), 0.5),
    "nn.Module | Iterable[Any]": _network,
    "nn.Sequential": lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)),
    "Data": lambda: (torch.rand(4, 3), torch.rand(4, 2)),
    "Batch": _batch,
    "Iterable[Batch]": lambda: [_batch()],
    "Batches": lambda: TensorBatches(torch.rand(4, 3), torch.rand(4, 2)),
    "DataLoader[Any]": lambda: DataLoader(TensorDataset(torch.rand(4, 3), torch.rand(4, 2))),
    "Draw": lambda: lambda generator: (torch.rand(4, 3, generator=generator), torch.rand(4, 2, generator=generator)),
    "Task": tl.data.Denoising,
    "torch.Generator": torch.Generator,
    "torch.dtype": lambda: torch.float32,
    "Objective": _objective,
    "States": _states,
    "Path": lambda: Path("folder"),
    "str | Path": lambda: Path("folder"),
    "Path | str": lambda: Path("folder"),
    "Problem": _problem,
    "SaddleProblem": _saddle,
    "Any": _problem,
    "Solver[Any, Any]": lambda: ProximalGradient(0.5),
    "Solver[Any, S]": lambda: ProximalGradient(0.5),
    "Start": lambda: torch.ones(3),
    "Map": lambda: lambda x: 2 * x,
    "Callable[[Tensor], Tensor]": lambda: lambda x: 2 * x,
    "Callable[[Tensor, Tensor], Tensor]": lambda: lambda x, y: x - y,
    "Callable[[str, Tensor], Tensor]": lambda: lambda name, x: 2 * x,
    "Callable[..., Tensor | float]": lambda: lambda x: (x**2).sum(),
    "Callable[..., Tensor]": lambda: lambda x: 2 * x,
    "Callable[[], Any]": lambda: lambda: 1,
    "Callable[[], T]": lambda: lambda: 1,
    "Callable[[], float]": lambda: lambda: 1.0,
    "float | Mapping[str, float]": lambda: 0.5,
    "Mapping[str, Tensor | Sequence[Tensor]]": lambda: {"x": torch.ones(2)},
    "Point | Mapping[str, Tensor | Sequence[Tensor]] | Tensor": lambda: torch.ones(2),
    "Mesh": lambda: tl.parallel.Mesh(),
    "Mesh | str | None": lambda: "data=1",
    "Record": _record,
    "Sequence[Record]": lambda: [_record()],
    "Table": _table,
    "Cell": lambda: 1.0,
    "object": lambda: "relu",
    "Result": lambda: tl.solvers.Result.CONVERGED,
    "int | Sequence[int]": lambda: 2,
    "int | Pair": lambda: 2,
    "Tensor | Callable[[Tensor], Tensor] | None": lambda: None,
    "tuple[Shape, ...]": lambda: ((2,),),
    "tuple[Term, ...]": lambda: (tl.solvers.Term(tl.functions.L1(), Dense(torch.ones(2, 3))),),
    "NonlinearLeastSquares": lambda: tl.solvers.NonlinearLeastSquares(lambda x: x - 1),
    "Mapping[str, Factor]": lambda: {"x": 0.5},
    "Axis | None": lambda: None,
    "Axis": lambda: "data",
    "Budget": lambda: lambda count: 1.0,
    "Work": _work,
    "Shard": Shard,
    "History": lambda: _history(),
    "Scaling": tl.solvers.NoScaling,
    "Sequence[float | Tensor]": lambda: [0.5],
    "float | Tensor | Mapping[str, Tensor]": lambda: 0.5,
    "Activation": lambda: Activation(torch.relu, torch.relu_, True),
    "Centring": lambda: tl.sweeps.Centring(_network()),
    "MeshShard": lambda: tl.parallel.MeshShard(tl.parallel.Mesh(), 4),
}


def _history() -> tl.training.History:
    history = tl.training.History(Path(tempfile.mkdtemp(dir=".")) / "history.jsonl")
    history.append({"kind": "train", "step": 1, "objective": 1.0})
    return history


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return ((torch.rand(3), torch.rand(2)) for _ in range(4))


def _sharded() -> Any:
    return tl.parallel.ShardedBatches(TensorBatches(torch.rand(4, 3), torch.rand(4, 2)), tl.parallel.Mesh())


def _resnet() -> nn.Sequential:
    block = tl.networks.RungeKutta(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3, bias=False))
    return nn.Sequential(block, nn.Linear(3, 2))


def _lifted() -> dict[str, Any]:
    return {"z": _states(), "y": torch.full((2, 3), 0.5), "x": torch.full((2, 2), 0.5)}


R = tl.report.records
#: Arguments of doors that annotations do not tell enough about; "Class." stands for every method of the class.
EXAMPLES: dict[str, Callable[[], dict[str, Any]]] = {
    "prox.PReLU": lambda: {"slope": torch.tensor([0.25])},
    "Box": lambda: {"lo": -1.0, "hi": 1.0},
    "operators.AveragePool2d": lambda: {"input_shape": (1, 6, 6), "kernel_size": 2},
    "operators.BlockOperator": lambda: {
        "blocks": {(0, 0): Dense(torch.ones(2, 3))},
        "row_shapes": ((2,),),
        "column_shapes": ((3,),),
    },
    "operators.BlockVector": lambda: {"blocks": (torch.ones(2),), "shapes": ((2,),)},
    "operators.Blur": lambda: {"kernel": torch.full((3, 3), 1 / 9), "shape": (1, 6, 6)},
    "operators.Compose": lambda: {"operators": (Dense(torch.ones(4, 2)), Dense(torch.ones(2, 3)))},
    "operators.Sum": lambda: {"operators": (Dense(torch.ones(2, 3)), Dense(torch.ones(2, 3)))},
    "operators.Conv2d": lambda: {"weight": torch.ones(2, 1, 3, 3), "input_shape": (1, 6, 6)},
    "operators.ConvTranspose2d": lambda: {"weight": torch.ones(1, 2, 3, 3), "input_shape": (1, 6, 6)},
    "operators.CosineTransform": lambda: {"shape": (1, 6, 6)},
    "operators.FiniteDifference": lambda: {"shape": (1, 6, 6)},
    "operators.Diagonal": lambda: {"factor": torch.ones(3), "shape": (3,)},
    "operators.Functional": lambda: {"function": lambda x: 2 * x, "from_shape": (3,), "to_shape": (3,)},
    "operators.Mask": lambda: {"mask": torch.ones(1, 6, 6)},
    "operators.Radon": lambda: {"shape": (1, 6, 6), "angles": (0.0, 1.0)},
    "operators.Reshape": lambda: {"from_shape": (6,), "to_shape": (2, 3)},
    "operators.Separable": lambda: {"rows": torch.eye(6), "columns": torch.eye(6), "shape": (1, 6, 6)},
    "operators.WaveletTransform": lambda: {"shape": (1, 8, 8), "wavelet": "db1", "levels": 1},
    "operators.DenseRun": lambda: {
        "start": 0,
        "weight": torch.ones(1, 2, 3),
        "bias": None,
        "weight_name": "w",
        "bias_name": "b",
    },
    "operators.filter_norm": lambda: {"weight": torch.ones(2, 1, 3, 3), "grid": 8},
    "functions.GroupNorm": dict,
    "functions.LeastSquares": lambda: {"operator": Dense(torch.ones(2, 3)), "target": torch.ones(2, 2)},
    "functions.NuclearNorm": dict,
    "functions.priors.PlugAndPlay": lambda: {"denoise": lambda x, sigma: 0.9 * x},
    "liftings.weighted": lambda: {"activation": tl.ReLU(), "terms": torch.ones(2, 3), "weight": 0.5},
    "networks.LISTA": lambda: {"H": Dense(torch.ones(3, 3)), "dictionary": torch.eye(3), "iterations": 2},
    "networks.Residual": lambda: {"modules": (nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))},
    "networks.RungeKutta": lambda: {"inner": nn.Linear(3, 4), "activation": nn.ReLU(), "outer": nn.Linear(4, 3)},
    "networks.ResNet": lambda: {"features": 3, "inner": [4], "out_features": 2},
    "networks.GraphNetwork": lambda: {"module": nn.Sequential(nn.Linear(3, 2), nn.ReLU()), "in_shape": (3,)},
    "networks.Tableau": lambda: {"a": ((),), "b": (1.0,)},
    "networks.DDFB": lambda: {"shape": (1, 6, 6), "iterations": 2, "features": 2, "size": 3},
    "networks.FirmDenoiser": lambda: {"shape": (1, 6, 6), "iterations": 2, "features": 2, "size": 3},
    "networks.ScCP": lambda: {"shape": (1, 6, 6), "iterations": 2, "features": 2, "size": 3},
    "networks.UnifiedForm": lambda: {
        name: getattr(_network().operators(), name) for name in ("K", "d", "M", "V", "W", "b", "activations")
    },
    "networks.assemble": lambda: {
        "in_shape": (3,),
        "W": {(0, 0): Dense(torch.ones(2, 3))},
        "b": [None],
        "activations": [tl.ReLU()],
        "K": {1: Dense(torch.ones(2, 2))},
    },
    "inversion.error_bound": lambda: {
        "activation": tl.ReLU(),
        "y": torch.ones(2, 3),
        "source": torch.ones(2, 3),
        "weight": 0.1,
        "discrepancy": 0.1,
    },
    "inversion.calibrate": lambda: {
        "deviation": torch.ones(40, 3),
        "x": torch.zeros(40, 3),
        "truth": torch.rand(40, 3),
    },
    "inversion.Calibration": lambda: {"scores": torch.rand(40, 3)},
    "invert": lambda: {"network": _network(), "y": torch.full((2, 2), 0.5), "max_steps": 2},
    "train": lambda: {
        "network": _network(),
        "data": (torch.rand(4, 3), torch.rand(4, 2)),
        "steps": 1,
        "weights": "keep",
        "progress": False,
    },
    "initialise_weights": lambda: {"network": _network(), "data": (torch.rand(4, 3), torch.rand(4, 2))},
    "check_activation": lambda: {"activation": tl.ReLU(), "examples": 1},
    "check_function": lambda: {"function": tl.functions.L1(), "examples": 1},
    "check_lifting": lambda: {"lifting": tl.liftings.Bregman(), "examples": 1},
    "check_loss": lambda: {"loss": tl.losses.SquaredError(), "examples": 1},
    "check_solver": lambda: {"solver": ProximalGradient(0.5), "problem": _problem(), "start": torch.ones(3)},
    "solvers.solve": lambda: {"problem": _problem(), "solver": ProximalGradient(0.5), "start": torch.ones(3)},
    "solvers.ridge_least_squares": lambda: {"inputs": torch.rand(5, 3), "targets": torch.rand(5, 2)},
    "solvers.conjugate_gradient": lambda: {"apply": lambda x: 2 * x, "b": torch.ones(3)},
    "solvers.power_iteration": lambda: {"apply": lambda x: 2 * x, "start": torch.ones(3)},
    "solvers.state_to_parts": lambda: {"state": ProximalGradient(0.5).init(_problem(), Point({"x": torch.ones(2)}))},
    "solvers.Matrix": lambda: {"matrix": torch.eye(2)},
    "solvers.Cosine": lambda: {"start": 1.0, "steps": 5, "end": 0.1},
    "solvers.check_problem": lambda: {
        "where": "name",
        "problem": _problem(),
        "point": Point({"x": torch.ones(2)}),
    },
    "data.TensorBatches": lambda: {"y": torch.rand(4, 3), "x": torch.rand(4, 2)},
    "data.Patches": lambda: {
        "images": [torch.rand(1, 8, 8)],
        "task": tl.data.Denoising(),
        "size": 4,
        "count": 3,
    },
    "data.apply_in_tiles": lambda: {"function": lambda x: 2 * x, "images": torch.rand(1, 1, 8, 8), "size": 20},
    "data.psnr": lambda: {"images": torch.rand(2, 1, 12, 12), "reference": torch.rand(2, 1, 12, 12)},
    "data.ssim": lambda: {"images": torch.rand(2, 1, 12, 12), "reference": torch.rand(2, 1, 12, 12)},
    "data.tiles": lambda: {"images": [torch.rand(1, 8, 8)], "size": 4},
    "data.load_digits": lambda: {"split": "test"},
    "data.scale_warning": lambda: {"batch": _batch()},
    "io.save_model": lambda: {"folder": "model", "network": _network()},
    "io.load_model": lambda: {"folder": tl.io.save_model("saved", _network())},
    "io.save_tensors": lambda: {"path": "pair", "tensors": {"x": torch.ones(2)}, "record": {}},
    "io.load_tensors": lambda: {"path": tl.io.save_tensors("tensors", {"x": torch.ones(2)}, {})},
    "io.Checkpoints": lambda: {"folder": "checkpoints"},
    "io.LocalShard": lambda: {"slices": ((0, 2),), "tensor": torch.ones(2)},
    "parallel.parse_mesh": lambda: {"text": "data=1"},
    "parallel.as_mesh": lambda: {"spec": "data=1"},
    "parallel.sync": lambda: {"mesh": tl.parallel.Mesh(), "clock": lambda: 1.0, "asked": False},
    "report.html": lambda: {"records": [_record()]},
    "report.plot.blocks": lambda: {"network": _network()},
    "report.records.network_blocks": lambda: {"network": _network()},
    "report.plot.pictures": lambda: {"rows": {"name": torch.rand(2, 1, 6, 6)}},
    "report.plot.weights": lambda: {"rows": [{"weight": 0.1, "value": 0.5}, {"weight": 0.2, "value": 0.4}]},
    "report.plot.training": lambda: {"histories": ([{"step": 0, "objective": 1.0}, {"step": 1, "objective": 0.5}],)},
    "report.plot.figure": lambda: {"shown": R.Curves("name", "title", "x", "y", (R.Series("a", (0, 1), (1, 2)),))},
    "report.records.Curves": lambda: {
        "name": "name",
        "title": "title",
        "x_label": "x",
        "y_label": "y",
        "series": (R.Series("a", (0, 1), (1, 2)),),
    },
    "report.records.Grid": lambda: {"name": "K", "rows": (("a", 1),), "columns": (("a", 1),), "cells": ((0, 0, "A"),)},
    "report.records.Blocks": lambda: {
        "name": "name",
        "title": "title",
        "grids": (R.Grid("K", (("a", 1),), (("a", 1),), ((0, 0, "A"),)),),
    },
    "report.records.HeatMap": lambda: {
        "name": "name",
        "title": "title",
        "x_label": "x",
        "y_label": "y",
        "value_label": "v",
        "x": (0.0, 1.0, 2.0),
        "y": ("a", "b"),
        "values": torch.rand(2, 3),
    },
    "report.records.Claim": lambda: {"statement": "text", "measured": "text", "outcome": "held"},
    "report.records.Pictures": lambda: {"name": "name", "title": "title", "rows": {"a": torch.rand(2, 6, 6)}},
    "report.records.Table": lambda: {"name": "name", "title": "title", "columns": ("a",), "rows": ((1,),)},
    "report.records.load_record": lambda: {"folder": R.save_record("record", _record()).parent},
    "training.Metric": lambda: {"name": "name", "function": lambda x, y: (x - y).flatten(1).mean(1)},
    "training.read_history": lambda: {"path": _history().path},
    "training.History.append": lambda: {"row": {"kind": "train", "step": 1}},
    "training.History.column": lambda: {"name": "objective"},
    "training.History.resume": lambda: {"path": _history().path, "rows": 1},
    "training.History.best": lambda: {"metric": "loss"},
    "io.Checkpoints.save": lambda: {"step": 1, "tensors": {"x": torch.ones(2)}, "record": {}},
    "networks.MLP": lambda: {"widths": [3, 4, 2]},
    "networks.ResNet.load": lambda: {"sequential": _resnet()},
    "networks.ResNet.load_back": lambda: {"module": _resnet()},
    "networks.Perceptron.load_back": lambda: {"module": nn.Sequential(nn.Linear(2, 2), nn.ReLU())},
    "networks.Perceptron.load": lambda: {"sequential": nn.Sequential(nn.Linear(2, 2), nn.ReLU())},
    "networks.GraphNetwork.load": lambda: {"module": nn.Sequential(nn.Linear(3, 2), nn.ReLU())},
    "networks.GraphNetwork.load_back": lambda: {"module": nn.Sequential(nn.Linear(3, 2), nn.ReLU())},
    "networks.GraphNetwork.up_to": lambda: {"path": "0"},
    "networks.MLP.from_pretrained": lambda: {"folder": tl.io.save_model("pretrained", _network())},
    **{
        f"objective.{name}": lambda: {
            "objective": _objective(),
            "y": torch.full((2, 3), 0.5),
            "x": torch.full((2, 2), 0.5),
        }
        for name in ("ErrorProblem", "TrainingProblem")
    },
    "functions.losses.Criterion": lambda: {"criterion": nn.MSELoss()},
    "Objective.value": _lifted,
    "Objective.gradients": _lifted,
    "Objective.report": _lifted,
    "Objective.smooth_value": _lifted,
    "operators.BlockOperator.__call__": lambda: {"x": [torch.ones(2, 3)]},
    "operators.BlockOperator.forward": lambda: {"x": [torch.ones(2, 3)]},
    "operators.BlockOperator.adjoint": lambda: {"y": [torch.ones(2, 2)]},
    "prox.indicator": lambda: {"inside": torch.ones(2, 3) > 0, "like": torch.ones(2, 3)},
    "prox.infinite_outside": lambda: {"value": torch.ones(2, 3), "inside": torch.ones(2, 3) > 0},
    "lab.planning.Machine": dict,
    **{
        f"lab.planning.{name}": lambda: {"work": tl.lab.planning.Work(4, 8, 8), "machine": tl.lab.planning.Machine()}
        for name in ("data_parallel", "lifting")
    },
    "lab.planning.plan": lambda: {
        "work": tl.lab.planning.Work(4, 8, 8),
        "machine": tl.lab.planning.Machine(),
        "devices": 2,
    },
    "lab.planning.curves": lambda: {
        "work": tl.lab.planning.Work(4, 8, 8),
        "machine": tl.lab.planning.Machine(),
        "devices": [1, 2],
    },
    "lab.planning.pipelined": lambda: {
        "work": tl.lab.planning.Work(4, 8, 8),
        "machine": tl.lab.planning.Machine(),
        "data": 1,
        "layers": 2,
        "micro_batches": 2,
    },
    "solvers.Point.like": lambda: {"tensors": [torch.ones(2)]},
    "solvers.Point.select": lambda: {"blocks": ["x"]},
    "solvers.Point.spread": lambda: {"factors": {"x": 0.5}},
    "lab.reproduction.Work": lambda: {"scale": "tiny", "seed": 0, "folder": Path("folder")},
    "io.ShardedTensor": lambda: {"shape": (2,), "local": (tl.io.LocalShard(((0, 2),), torch.ones(2)),)},
    "data.IterableBatches": lambda: {"loader": DataLoader(_Stream(), batch_size=2)},
    **{
        f"objective.engine.{name}": lambda: {
            "network": _network(),
            "setting": tl.objective.engine.Setting(tl.liftings.Bregman(), tl.losses.SquaredError(), (1.0,)),
        }
        for name in ("GeneralEngine", "StackedEngine")
    },
    "parallel.ShardedProblem": lambda: {
        "objective": _objective(),
        "y": torch.full((4, 3), 0.5),
        "x": torch.full((4, 2), 0.5),
        "shard": tl.parallel.MeshShard(tl.parallel.Mesh(), 4),
    },
    "parallel.ShardedTrainingBatches": lambda: {"objective": _objective(), "batches": _sharded()},
    "contrib.sklearn.LiftedRegressor.fit": lambda: {"X": torch.rand(6, 3).numpy(), "y": torch.rand(6).numpy()},
    "contrib.sklearn.LiftedRegressor": lambda: {"hidden_layer_sizes": (3,), "max_epochs": 1},
    "contrib.sklearn.LiftedClassifier": lambda: {"hidden_layer_sizes": (3,), "max_epochs": 1},
    "contrib.sklearn.LiftedClassifier.fit": lambda: {"X": torch.rand(6, 3).numpy(), "y": np.array([0, 1, 0, 1, 0, 1])},
}


def _images(owner: type) -> bool:
    return issubclass(owner, Task | TotalVariation | HuberTV | Wavelet)


def _by_owner(owner: type, method: str, name: str) -> Any:
    """An argument of a method whose shape depends on its object; None where it does not."""
    made = instance(owner)
    if isinstance(made, LinearOperator | Network) and name in ("x", "y", "bias"):
        if name == "bias":
            return torch.full(made.out_shape, 0.5)
        return torch.full((2, *(made.out_shape if method == "adjoint" else made.in_shape)), 0.5)
    if _images(owner) and name in ("x", "images"):
        return torch.rand(2, 1, 8, 8)
    if _images(owner) and name == "shape":
        return (1, 8, 8)
    if issubclass(owner, tl.losses.Loss) and name in ("x", "target"):
        return torch.tensor([0, 1]) if owner is tl.losses.CrossEntropy else torch.full((2, 3), 0.5)
    if isinstance(made, TrainingProblem) and name == "point":
        return made.start()
    inner = owner.__module__.startswith("torchlift.inversion")  # their problems are made by an inversion
    if isinstance(made, tl.solvers.Solver) and name == "state" and not inner:
        problem = _saddle() if isinstance(made, tl.solvers.ADMM | tl.solvers.PDHG) else _problem()
        with contextlib.suppress(TorchliftError):  # some want problems of another kind
            return made.init(problem, Point({"x": torch.ones(2, 3)}))
    return None


def instance(owner: type) -> Any:
    """An object of a class, for its methods."""
    name = next(door.name for door in ALL if door.function is owner)
    if owner is tl.objective.engine.States:
        return _states()
    if issubclass(owner, tl.inversion.Inversion):
        return tl.invert(_network(), torch.full((2, 2), 0.5), max_steps=2)
    return call(Door(name, owner))


def arguments(door: Door) -> dict[str, Any]:
    """Arguments that work; where annotations do not tell, something that is refused."""
    if door.name in EXAMPLES:
        return EXAMPLES[door.name]()
    values = {}
    for name, annotation in door.required():
        value = None if door.owner is None else _by_owner(door.owner, door.member, name)
        values[name] = BY_ANNOTATION.get(annotation, object)() if value is None else value
    return values


def call(door: Door, values: dict[str, Any] | None = None) -> Any:
    values = arguments(door) if values is None else dict(values)
    function = door.function
    if door.owner is not None:
        free = isinstance(inspect.getattr_static(door.owner, door.member), classmethod | staticmethod)
        function = getattr(door.owner if free else instance(door.owner), door.member)
    positional: list[Any] = []
    for name, parameter in door.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL and (rest := values.pop(name, ())):
            before = [each for each in door.parameters if each != name and each in values]
            ahead = before[: list(door.parameters).index(name)]
            positional = [values.pop(each) for each in ahead] + list(rest)
    return function(*positional, **values)


ALL = doors()
