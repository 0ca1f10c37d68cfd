"""One stage of a pipeline: its modules, its optimiser, and the batches between their way forward and back."""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from torchlift.core.shard import Shard
from torchlift.core.tensors import copy_into
from torchlift.data import Batch
from torchlift.networks.dense_chain import DenseForm
from torchlift.parallel import ModuleRange, shard_of
from torchlift.sweeps import Centring, RelativeStep
from torchlift.sweeps.centring import Last
from torchlift.sweeps.parameter_groups import parameter_groups
from torchlift.training.gradient_step import GradientStep
from torchlift.training.step import Work

if TYPE_CHECKING:
    from torchlift.training.gradient_step import GradientMethod


@dataclass(eq=False)
class _Flight:
    """A batch between its way forward and its way back through a stage."""

    number: int
    inputs: Tensor
    replica: _Replica | None = None
    outputs: Tensor | None = None


class _Replica:
    """A copy of a stage that keeps the parameters of one batch."""

    def __init__(self, module: nn.Sequential, last: Last | None, closed_forms: bool, listens: bool) -> None:
        self.module = copy.deepcopy(module)
        self.parameters = list(self.module.parameters())
        self.stage, self.originals = module, list(module.parameters())
        self.centring = Centring(self.module, of=module, last=last) if listens else None
        self.evaluate = _evaluation(self.module, closed_forms)

    @torch.no_grad()
    def load(self, before: Sequence[Tensor], ahead: int) -> None:
        """The buffers of the stage as they are now, and its parameters as they will be.

        Arguments:
            before: the parameters before the last update, which is taken for the next ones too.
            ahead: updates to come.
        """
        for replica, parameter, earlier in zip(self.parameters, self.originals, before, strict=True):
            torch.lerp(earlier, parameter, 1.0 + ahead, out=replica)
        copy_into(self.stage.buffers(), self.module.buffers())

    def hand_buffers_over(self) -> None:
        """Running statistics to the stage; autograd keeps those of this batch."""
        copy_into(self.module.buffers(), self.stage.buffers())

    def take_gradients(self) -> list[Tensor | None]:
        gradients = [parameter.grad for parameter in self.parameters]
        self.module.zero_grad()
        return gradients


class PipelineStage:
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
        self.late = max(2 * (count - 1 - number) - 1, 0)
        """Updates between the two ways of a batch."""
        room = 1 if method.recompute and self.late else self.late + 1 if self.late else 0
        # before anybody listens to the module itself, whose hooks a copy would carry along
        stashing = not method.recompute
        self.free = deque(_Replica(module, last, method.closed_forms, stashing) for _ in range(room))
        self.evaluate = _evaluation(module, method.closed_forms)
        self.flights: deque[_Flight] = deque()
        self.update = _StageUpdate(method, self.work, lambda *_: self._hand_over())
        self.update.forget = self._forget
        self.known_loss = 0.0
        """The last loss that all stages know; 0 before the first."""
        self.update.listen(Centring(module, last=last))
        self.parameters = list(module.parameters())
        self.before = [parameter.detach().clone() for parameter in self.parameters] if self.late else []
        """The parameters before the last update, from which the next ones are predicted."""
        self._gradients: list[Tensor | None] = []
        self._random = any(isinstance(part, nn.modules.dropout._DropoutNd) for part in module.modules())

    def share_limit(self, total: int) -> None:
        """The steps until a signal is back may change what the network amplifies by no more than one without stages."""
        if isinstance(optimiser := self.update.optimiser, RelativeStep):
            optimiser.limit *= max(count_layers(self.module), 2) / max(total, 2) / (1 + self.late)

    def hold_average(self, wanted: bool) -> None:
        self.update.hold_average(wanted)

    def forward(self, number: int, u: Tensor, shard: Shard) -> Tensor:
        """A batch on its way forward."""
        replica = self.free.popleft()
        replica.load(self.before, self.late)
        if self.method.recompute:
            self.free.append(replica)
            with torch.no_grad(), self._drawing(number):
                v = replica.evaluate(u)
            replica.hand_buffers_over()
            self.flights.append(_Flight(number, u))
            return v
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
            assert flight.replica.centring is not None  # since it keeps the batch
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
        """Gradients to the optimiser, and a loss that is late: steps that were too long are noticed later too."""
        self._forget()
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return torch.tensor(self.known_loss, dtype=torch.float64), torch.zeros(())

    def _forget(self) -> None:
        """Predict nothing from the way that led here: what comes next is compared with the parameters of now."""
        if self.late:
            copy_into(self.parameters, self.before)

    def _drawing(self, number: int) -> AbstractContextManager[object]:
        """Random numbers that depend on the stage and the batch only."""
        return _seeded((self.work.seed, self.number, number)) if self._random else nullcontext()

    @contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        """Running statistics see every batch once."""
        before = [buffer.clone() for buffer in self.module.buffers()]
        yield
        copy_into(before, self.module.buffers())

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
        earlier = {f"before.{j}": tensor for j, tensor in enumerate(self.before)}
        return {"numbers": torch.tensor(list(text.encode()), dtype=torch.uint8), **tensors, **stashed, **earlier}

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
        for j, tensor in enumerate(self.before):
            tensor.copy_(shared[f"before.{j}"])
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

    forget: Callable[[], None]

    def retreat(self) -> None:
        super().retreat()
        self.forget()

    def _draw(self) -> tuple[Any, Shard]:
        return None, shard_of(self.batches, self.count)

    def listen(self, centring: Centring) -> None:
        """Where mean inputs come from in the next step."""
        if isinstance(self.optimiser, RelativeStep):
            self.optimiser.listen(centring)
        elif self._centring is not None:
            self._centring = centring


def _evaluation(module: nn.Sequential, closed_forms: bool) -> Callable[[Tensor], Tensor]:
    """The module, or the closed form of its dense layers, which saves most of the calls into torch."""
    if closed_forms:
        if (form := DenseForm.of(module)) is not None:
            return form
        if (form := DenseForm.of(module[:-1])) is not None:
            activation = module[-1]
            return lambda u: activation(form(u))
    return module


def count_layers(module: nn.Sequential) -> int:
    """Affine layers, as `RelativeStep` counts them."""
    return sum(group.get("layers", 0) for group in parameter_groups(module))


@contextmanager
def _seeded(numbers: tuple[int, ...]) -> Iterator[None]:
    seed = 0
    for number in numbers:
        seed = (seed * 1_000_003 + number) % (2**63)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
