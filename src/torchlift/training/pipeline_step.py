"""Stages of a chain that work on different batches at the same time, with signals that arrive late."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from torchlift.core.errors import invalid_value
from torchlift.core.solution import Result, StepFailure
from torchlift.data import Batch, Batches
from torchlift.io import ShardedTensor
from torchlift.networks import Chain
from torchlift.parallel import (
    LateSum,
    Mail,
    Mesh,
    MeshMail,
    ModuleRange,
    cut_sequential,
    shard_batches,
    shard_of,
    take_over,
)
from torchlift.solvers.state import Number
from torchlift.sweeps.centring import Last
from torchlift.sweeps.parameter_groups import CONVOLUTIONS, DENSE
from torchlift.training.constant_answer import constant_loss
from torchlift.training.pipeline_stage import PipelineStage, count_layers
from torchlift.training.step import StateDict, TrainStep, Work, under

if TYPE_CHECKING:
    from torchlift.parallel.mail import Way
    from torchlift.training.gradient_step import GradientMethod


def stages_of(method: GradientMethod, mesh: Mesh) -> int:
    """Processes along the layers, or stages that one process goes through in turn."""
    return mesh.layers if mesh.layers > 1 else method.stages


def as_sequential(network: nn.Module) -> nn.Sequential:
    """The modules to be divided: those of the network itself, or copies of those that a chain was read from."""
    if type(network) is nn.Sequential:
        return network
    if isinstance(network, Chain):
        return network.to_sequential()
    hint = "Lift it with tl.lift, make it an nn.Sequential, or use the axis data, which serves every network."
    invalid_value("mesh axis layers", "a chain of layers", type(network).__name__, hint)


def cut(network: nn.Module, example: Batch, stages: int) -> tuple[nn.Sequential, list[ModuleRange]]:
    """The modules of a network and which of them make a stage."""
    if example.context is not None:
        hint = "Use the axis data, which serves every network."
        invalid_value("mesh axis layers", "inputs for the first layer only", "a context that all layers read", hint)
    plain = as_sequential(network)
    # asked for by the check, by the message and by the step, from networks that have not changed meanwhile
    cuts, key = _CUTS.setdefault(network, {}), (repr(plain), tuple(example.y.shape[1:]), stages)
    if key not in cuts:
        cuts[key] = cut_sequential(plain, example.y, stages)
    return plain, cuts[key]


_CUTS: WeakKeyDictionary[nn.Module, dict[tuple[str, tuple[int, ...], int], list[ModuleRange]]] = WeakKeyDictionary()


class PipelineStep(TrainStep):
    """A gradient method whose layers are divided into stages, each with an optimiser of its own.

    In step t, stage p of P makes the way back of batch t − 2(P − 1) + p, moves its
    parameters, and takes batch t − p forward; the last stage does both with one
    batch. What it hands to its neighbours they use in step t + 1, so that all
    stages work at the same time and none is ever idle once the first batch has
    come through. The price is that signals are late: 2(P − 1 − p) − 1 updates of
    stage p lie between the two ways of a batch, none in the last stage.

    A stage keeps copies of its parameters for the batches in flight, so that the
    way back is that of the way forward (PipeDream's stashing), or, with
    `recompute`, only their inputs: then the way forward is repeated with the
    parameters of the moment (PETRA, without reversible layers).

    Either way forward is taken with the parameters that are expected when the batch comes
    back, w + τ(w − w'), with w' those before the last update and τ the updates in between
    (weights predicted by momentum, as in SpecTrain and XPipe). If updates changed as
    little as momentum makes believe, all stages would see the same parameters and
    nothing would be late.

    Nothing depends on which process is faster, and stages that one process goes
    through in turn give the same numbers.

    Arguments:
        method: its settings.
        work: what it is put to work on.
    """

    def __init__(self, method: GradientMethod, work: Work) -> None:
        self.method, self.work = method, work
        mesh, count = work.mesh, stages_of(method, work.mesh)
        self.plain, ranges = cut(work.network, work.batches.example(), count)
        batches = _Recent(work.batches, 2 * count)
        self.batches = shard_batches(batches, mesh)
        self._left: float | None = None
        stage_work = replace(
            work, batches=batches, budget=lambda count: work.budget(count) if self._left is None else self._left
        )
        last = _last_layer(self.plain)
        self.modules = [nn.Sequential(*list(self.plain)[slice(*part.modules)]) for part in ranges]
        here = range(count) if mesh.layers == 1 else [mesh.layer_rank]
        self.stages = [
            PipelineStage(number, count, self.modules[number], ranges[number], method, stage_work, last)
            for number in here
        ]
        total = sum(count_layers(stage) for stage in self.modules)
        for stage in self.stages:
            stage.share_limit(total)
        self.mail = Mail() if mesh.layers == 1 else MeshMail(mesh)
        self.losses = LateSum(mesh)
        if mesh.layers > 1:
            places = {q: str(part) for q, part in enumerate(ranges)}
            mesh.places.update({rank: places[rank % mesh.layers] for rank in range(mesh.size)})
        self._stages, self._count = count, 0

    @property
    def count(self) -> int:
        return self._count

    @property
    def learning_rate(self) -> float | None:
        return self.stages[0].update.learning_rate

    def step(self) -> float:
        """One step of all stages; returns the loss that the last stage had one step ago."""
        loss = self.losses.settle()
        if self._count >= self._stages and not math.isfinite(loss):
            raise StepFailure(Result.NOT_FINITE, f"the loss was {loss} one step before")
        self._left = self.work.budget(self._count)
        if self._count == self._stages:
            first = self.work.batches.batch(0).x  # of all processes
            constant = constant_loss(self.work.loss, first, first)
            for stage in self.stages:
                stage.update.watch(loss, constant)
        for stage in self.stages:
            stage.known_loss = loss if self._count >= self._stages else 0.0
            stage.hold_average(False)
            self._tick(stage, self._count)
        reached = self._count - (self._stages - 1) >= 0
        self.losses.exchange(sum(stage.loss for stage in self.stages) if reached else None)
        self._count += 1
        return loss

    def _tick(self, stage: PipelineStage, t: int) -> None:
        p, last = stage.number, self._stages - 1
        forward, back = t - p, t - 2 * last + p
        signal = None
        if back >= 0:
            if p == last:
                signal = stage.turn(self._input(stage, forward), self.batches.batch(back), shard_of(self.batches, back))
            else:
                signal = stage.back(self.mail.receive("back", p), shard_of(self.batches, back))
        room = self._room(back + 1, stage.range.out_shape) if p < last else None
        self.mail.exchange("back", p, signal if p else None, room)
        if back >= 0:
            stage.update.step()
        states = None
        if forward >= 0 and p < last:
            states = stage.forward(forward, self._input(stage, forward), shard_of(self.batches, forward))
        self.mail.exchange("forward", p, states, self._room(forward + 1, stage.range.in_shape) if p else None)

    def _input(self, stage: PipelineStage, number: int) -> Tensor:
        return self.batches.batch(number).y if stage.number == 0 else self.mail.receive("forward", stage.number)

    def _room(self, number: int, shape: tuple[int, ...]) -> Tensor | None:
        """For what comes from a neighbour for batch `number`; none before the first."""
        if number < 0 or self.work.mesh.layers == 1:
            return None
        some = next(self.plain.parameters())
        return torch.empty(len(self.batches.batch(number).y), *shape, dtype=some.dtype, device=some.device)

    # -- the parameters to judge --------------------------------------------------------------------------------------

    def publish(self) -> None:
        for stage in self.stages:
            stage.hold_average(True)
        self._gather()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.publish()
        try:
            yield
        finally:
            for stage in self.stages:
                stage.hold_average(False)

    def _gather(self) -> None:
        """What all stages hold now, in the network, on all processes."""
        self.mail.settle()
        for owner, module in enumerate(self.modules if self.work.mesh.layers > 1 else ()):
            take_over(self.work.mesh, module, owner, "layers")
        if isinstance(self.work.network, Chain):
            self.work.network.load(self.plain)

    # -- saving -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        for stage in self.stages:
            stage.hold_average(False)
        self._gather()
        mesh, tensors = self.work.mesh, {}
        for stage in self.stages:
            name = f"stage.{stage.number}."
            shared = {name + key: tensor for key, tensor in stage.shared().items()}
            messages = {way: ts[0] for (way, number), ts in self.mail.arrived.items() if number == stage.number and ts}
            # samples of their own on every process along the data
            own = {f"{name}{mesh.data_rank}.{key}": tensor for key, tensor in stage.in_flight(messages).items()}
            if mesh.size == 1:
                tensors |= shared | own
            else:
                tensors |= {key: ShardedTensor.whole(t, mesh.data_rank == 0) for key, t in shared.items()}
                tensors |= {key: ShardedTensor.whole(t) for key, t in own.items()}
        loss = self.losses.settle()
        return tensors, {**self._shape(), "count": self.count, "loss": loss if math.isfinite(loss) else None}

    def load_state_dict(self, state: StateDict) -> None:
        tensors, numbers = state
        for name, value in self._shape().items():
            if numbers.get(name) != value:
                hint = "Use the mesh that the run was begun with, or a new folder."
                invalid_value(f"resume on {value} {name}", f"as many {name} as before", numbers.get(name, 1), hint)
        self._count, loss = int(numbers["count"] or 0), numbers["loss"]
        self.losses.value = math.nan if loss is None else float(loss)
        self.mail.arrived.clear()
        for stage in self.stages:
            name = f"stage.{stage.number}."
            shared = under(tensors, name)
            own = under(shared, f"{self.work.mesh.data_rank}.")
            messages = stage.load(shared, own, partial(shard_of, self.batches))
            for way, tensor in messages.items():
                self.mail.deliver(cast("Way", way), stage.number, tensor)

    def _shape(self) -> dict[str, Number]:
        return {"stages": self._stages, "data processes": self.work.mesh.data}


class _Recent(Batches):
    """Batches of which the last few are kept: stages ask for each of them at different times."""

    def __init__(self, batches: Batches, room: int) -> None:
        self.batches, self.room = batches, room
        self._kept: dict[int, Batch] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batches, name)

    @property
    def sized(self) -> bool:
        return self.batches.sized

    @property
    def fresh(self) -> bool:
        return self.batches.fresh

    def batch(self, count: int) -> Batch:
        if count not in self._kept:
            self._kept[count] = self.batches.batch(count)
            for old in sorted(self._kept)[: -self.room]:
                del self._kept[old]
        return self._kept[count]

    def indices(self, count: int) -> Tensor | None:
        return self.batches.indices(count)

    def ordered(self, size: int | None = None) -> Iterator[Batch]:
        return self.batches.ordered(size)

    def example(self) -> Batch:
        return self.batches.example()


def _last_layer(plain: nn.Sequential) -> Last | None:
    layers = [part for part in plain.modules() if isinstance(part, (*DENSE, *CONVOLUTIONS))]
    return cast("Last", layers[-1]) if layers and layers[-1].bias is not None else None
