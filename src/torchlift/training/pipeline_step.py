"""Stages of a chain that work on different batches at the same time, with signals that arrive late."""

from __future__ import annotations

import copy
import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from torchlift.core.errors import invalid_value
from torchlift.core.shard import Shard
from torchlift.core.solution import Result, StepFailure
from torchlift.data import Batch, Batches
from torchlift.io import ShardedTensor
from torchlift.networks import Chain
from torchlift.networks.dense_chain import DenseForm
from torchlift.parallel import LateSum, Mail, Mesh, MeshMail, ModuleRange, ShardedBatches, cut_sequential
from torchlift.solvers.state import Number
from torchlift.sweeps import Centring, RelativeStep
from torchlift.sweeps.centring import Last
from torchlift.sweeps.parameter_groups import CONVOLUTIONS, DENSE, parameter_groups
from torchlift.training.gradient_step import GradientStep
from torchlift.training.step import StateDict, TrainStep, Work, load_snapshot, tensors_of

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
    return plain, cut_sequential(plain, example.y, stages)


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
        self.batches: Batches = ShardedBatches(batches, mesh) if mesh.size > 1 else batches
        self._left = 1.0
        stage_work = replace(work, batches=batches, budget=lambda _: self._left)
        last = _last_layer(self.plain)
        self.modules = [nn.Sequential(*list(self.plain)[slice(*part.modules)]) for part in ranges]
        here = range(count) if mesh.layers == 1 else [mesh.layer_rank]
        self.stages = [
            _Stage(number, count, self.modules[number], ranges[number], method, stage_work, last) for number in here
        ]
        total = sum(_layers(stage) for stage in self.modules)
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
        for stage in self.stages:
            stage.hold_average(False)
            self._tick(stage, self._count)
        reached = self._count - (self._stages - 1) >= 0
        self.losses.exchange(sum(stage.loss for stage in self.stages) if reached else None)
        self._count += 1
        return loss

    def _tick(self, stage: _Stage, t: int) -> None:
        p, last = stage.number, self._stages - 1
        forward, back = t - p, t - 2 * last + p
        signal = None
        if back >= 0:
            if p == last:
                signal = stage.turn(self._input(stage, forward), self.batches.batch(back), self._shard(back))
            else:
                signal = stage.back(self.mail.receive("back", p), self._shard(back))
        room = self._room(back + 1, stage.range.out_shape) if p < last else None
        self.mail.exchange("back", p, signal if p else None, room)
        if back >= 0:
            stage.update.step()
        states = None
        if forward >= 0 and p < last:
            states = stage.forward(forward, self._input(stage, forward), self._shard(forward))
        self.mail.exchange("forward", p, states, self._room(forward + 1, stage.range.in_shape) if p else None)

    def _input(self, stage: _Stage, number: int) -> Tensor:
        return self.batches.batch(number).y if stage.number == 0 else self.mail.receive("forward", stage.number)

    def _shard(self, number: int) -> Shard:
        return self.batches.shard(number) if isinstance(self.batches, ShardedBatches) else Shard()

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

    @torch.no_grad()
    def _gather(self) -> None:
        """What all stages hold now, in the network, on all processes."""
        self.mail.settle()
        mesh = self.work.mesh
        if mesh.layers > 1:
            for owner, module in enumerate(self.modules):
                for tensor in tensors_of(module).values():
                    values = tensor.detach().clone(memory_format=torch.contiguous_format)
                    tensor.copy_(mesh.broadcast_(values, owner, "layers"))
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
            shared = _under(tensors, name)
            messages = stage.load(shared, _under(tensors, f"{name}{self.work.mesh.data_rank}."), self._shard)
            for way, tensor in messages.items():
                self.mail.deliver(cast("Way", way), stage.number, tensor)

    def _shape(self) -> dict[str, Number]:
        return {"stages": self._stages, "data processes": self.work.mesh.data}


@dataclass(eq=False)
class _Flight:
    """A batch between its way forward and its way back through a stage."""

    number: int
    inputs: Tensor
    replica: _Replica | None = None
    outputs: Tensor | None = None


class _Replica:
    """A copy of a stage that keeps the parameters of one batch."""

    def __init__(self, module: nn.Sequential, last: Last | None, closed_forms: bool) -> None:
        self.module = copy.deepcopy(module)
        self.parameters = list(self.module.parameters())
        self.stage = module
        self.centring = Centring(self.module, of=module, last=last)
        self.evaluate = _evaluation(self.module, closed_forms)

    def load(self) -> None:
        """The parameters and buffers of the stage as they are now."""
        load_snapshot(self.module, tensors_of(self.stage))

    @torch.no_grad()
    def hand_buffers_over(self) -> None:
        """Running statistics to the stage; autograd keeps those of this batch."""
        for buffer, own in zip(self.stage.buffers(), self.module.buffers(), strict=True):
            buffer.copy_(own)

    def take_gradients(self) -> list[Tensor | None]:
        gradients = [parameter.grad for parameter in self.parameters]
        self.module.zero_grad()
        return gradients


class _Stage:
    """One stage: its modules, its optimiser, and the batches that are in flight."""

    def __init__(
        self,
        number: int,
        count: int,
        module: nn.Sequential,
        part: ModuleRange,
        method: GradientMethod,
        work: Work,
        last: Last | None,
    ) -> None:
        self.number, self.module, self.range, self.method = number, module, part, method
        self.work, self.loss = replace(work, network=module), 0.0
        room = 0 if method.recompute or number == count - 1 else 2 * (count - 1 - number)
        # before anybody listens to the module itself, whose hooks a copy would carry along
        self.free = deque(_Replica(module, last, method.closed_forms) for _ in range(room))
        self.evaluate = _evaluation(module, method.closed_forms)
        self.flights: deque[_Flight] = deque()
        self.update = _StageUpdate(replace(method, stages=1), self.work, lambda *_: self._hand_over())
        self.update.listen(Centring(module, last=last))
        self.parameters = list(module.parameters())
        self._gradients: list[Tensor | None] = []
        self._random = any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.modules())

    def share_limit(self, total: int) -> None:
        """One step may change what the whole network amplifies by no more than without stages."""
        if isinstance(optimiser := self.update.optimiser, RelativeStep):
            optimiser.limit *= max(_layers(self.module), 2) / max(total, 2)

    def hold_average(self, wanted: bool) -> None:
        self.update.hold_average(wanted)

    def forward(self, number: int, u: Tensor, shard: Shard) -> Tensor:
        """A batch on its way forward."""
        if self.method.recompute:
            with torch.no_grad(), self._drawing(number):
                v = self.evaluate(u)
            self.flights.append(_Flight(number, u))
            return v
        replica = self.free.popleft()
        replica.load()
        flight = _Flight(number, u, replica)
        self.flights.append(flight)
        outputs = self._lift_off(flight, shard)
        replica.hand_buffers_over()
        return outputs

    def _lift_off(self, flight: _Flight, shard: Shard) -> Tensor:
        assert flight.replica is not None
        flight.outputs = self._recorded(flight.replica.evaluate, flight, shard)
        return flight.outputs.detach()

    def _recorded(self, evaluate: Callable[[Tensor], Tensor], flight: _Flight, shard: Shard) -> Tensor:
        with torch.enable_grad(), self.method.gradients(self.work, shard), self._drawing(flight.number):
            flight.inputs = flight.inputs.detach().requires_grad_(self.number > 0)
            return evaluate(flight.inputs)

    def back(self, signal: Tensor, shard: Shard) -> Tensor | None:
        """The batch that has waited longest on its way back; returns the signal for the stage before."""
        flight = self.flights.popleft()
        if flight.replica is None or flight.outputs is None:
            self.module.zero_grad()
            with self._buffers_kept():
                self._recorded(self.evaluate, flight, shard).backward(signal)
            self._gradients = [parameter.grad for parameter in self.parameters]
        else:
            flight.outputs.backward(signal)
            self.update.listen(flight.replica.centring)
            self._gradients = flight.replica.take_gradients()
            self.free.append(flight.replica)
        self._add_up(shard)
        return flight.inputs.grad

    def turn(self, u: Tensor, batch: Batch, shard: Shard) -> Tensor | None:
        """The last stage: forward to the loss and back; returns the signal for the stage before."""
        flight = _Flight(self.update.count, u)
        self.module.zero_grad()
        output = self._recorded(self.evaluate, flight, shard)
        if output.shape != batch.x.shape:
            self.work.loss.check(tuple(output.shape), batch.x, values=False)
        with torch.enable_grad(), self.method.gradients(self.work, shard):
            loss = self.work.loss.mean(output, batch.x) * shard.scale
            loss.backward()
        self.loss = float(loss.detach()) if shard.counted else 0.0
        self._gradients = [parameter.grad for parameter in self.parameters]
        self._add_up(shard)
        return flight.inputs.grad

    def _add_up(self, shard: Shard) -> None:
        if not shard.whole:
            shard.sum_(*(gradient for gradient in self._gradients if gradient is not None))

    def _hand_over(self) -> tuple[Tensor, Tensor]:
        """Gradients to the optimiser; what it is told of the loss is of no use to it."""
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return torch.zeros(()), torch.zeros(())

    def _drawing(self, number: int) -> AbstractContextManager[object]:
        """Random numbers that depend on the stage and the batch only."""
        return _seeded((self.work.seed, self.number, number)) if self._random else nullcontext()

    @contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        """Running statistics see every batch once."""
        before = [buffer.clone() for buffer in self.module.buffers()]
        yield
        with torch.no_grad():
            for buffer, value in zip(self.module.buffers(), before, strict=True):
                buffer.copy_(value)

    # -- saving -------------------------------------------------------------------------------------------------------

    def shared(self) -> dict[str, Tensor]:
        """What processes along the data have copies of."""
        tensors, numbers = self.update.state_dict()
        text = json.dumps({**numbers, "flights": [flight.number for flight in self.flights]})
        stashed = {
            f"stash.{i}.{j}": parameter.detach()
            for i, flight in enumerate(self.flights)
            if flight.replica is not None
            for j, parameter in enumerate(flight.replica.parameters)
        }
        return {"numbers": torch.tensor(list(text.encode()), dtype=torch.uint8), **tensors, **stashed}

    def in_flight(self, messages: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The samples of this process."""
        inputs = {f"inputs.{i}": flight.inputs.detach() for i, flight in enumerate(self.flights)}
        return inputs | {f"message.{way}": tensor for way, tensor in messages.items()}

    def load(
        self, shared: Mapping[str, Tensor], own: Mapping[str, Tensor], shard: Callable[[int], Shard]
    ) -> dict[str, Tensor]:
        """Go on from there; returns the messages that had arrived."""
        numbers = json.loads(bytes(shared["numbers"].tolist()).decode())
        flights = numbers.pop("flights")
        self.update.load_state_dict((shared, numbers))
        while self.flights:
            if (replica := self.flights.pop().replica) is not None:
                self.free.append(replica)
        for i, number in enumerate(flights):
            flight = _Flight(number, own[f"inputs.{i}"].clone())
            self.flights.append(flight)
            if not self.method.recompute:
                flight.replica = self.free.popleft()
                with torch.no_grad():
                    for j, parameter in enumerate(flight.replica.parameters):
                        parameter.copy_(shared[f"stash.{i}.{j}"])
                self._lift_off(flight, shard(number))
        return {way: own[f"message.{way}"].clone() for way in ("forward", "back") if f"message.{way}" in own}


class _StageUpdate(GradientStep):
    """The optimiser of a stage, whose gradients come from elsewhere."""

    def _draw(self) -> tuple[Any, Shard]:
        shard = self.batches.shard(self.count) if isinstance(self.batches, ShardedBatches) else Shard()
        return None, shard

    def listen(self, centring: Centring) -> None:
        """Where mean inputs come from in the next step."""
        if isinstance(self.optimiser, RelativeStep):
            self.optimiser.listen(centring)
        elif self._centring is not None:
            self._centring = centring


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


def _evaluation(module: nn.Sequential, closed_forms: bool) -> Callable[[Tensor], Tensor]:
    """The module, or the closed form of its dense layers, which saves most of the calls into torch."""
    if closed_forms:
        if (form := DenseForm.of(module)) is not None:
            return form
        if (form := DenseForm.of(module[:-1])) is not None:
            activation = module[-1]
            return lambda u: activation(form(u))
    return module


def _layers(module: nn.Sequential) -> int:
    """Affine layers, as `RelativeStep` counts them."""
    return sum(group.get("layers", 0) for group in parameter_groups(module))


def _last_layer(plain: nn.Sequential) -> Last | None:
    layers = [part for part in plain.modules() if isinstance(part, (*DENSE, *CONVOLUTIONS))]
    return cast("Last", layers[-1]) if layers and layers[-1].bias is not None else None


def _under(tensors: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    """Those whose names go on after the prefix, without it."""
    return {name.removeprefix(prefix): tensors[name] for name in tensors if name.startswith(prefix)}


@contextmanager
def _seeded(numbers: tuple[int, ...]) -> Iterator[None]:
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number) % (2**63)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
