"""The step of a gradient method: a batch, its gradient, an optimiser; annealed, averaged, saved."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.shard import WHOLE, Shard
from torchlift.core.solution import Result, StepFailure
from torchlift.data import Batch
from torchlift.networks.dense_chain import DenseForm
from torchlift.parallel import ShardedBatches, shard_batches
from torchlift.solvers.state import Number
from torchlift.sweeps import Centring, RelativeStep
from torchlift.sweeps.centring import Mean, keep_factors
from torchlift.sweeps.module_chain import ModuleChain
from torchlift.sweeps.orthogonal import Factors
from torchlift.training.constant_answer import constant_loss
from torchlift.training.step import (
    StateDict,
    TrainStep,
    Work,
    load_snapshot,
    snapshot,
    tensors_of,
)

if TYPE_CHECKING:
    from torchlift.training.gradient_method import GradientMethod

Anneal = Literal["cosine", "linear", "constant"]

#: A start counts as fitted where it leaves at most this part of the loss of the best constant answer.
FITTED = 0.9
#: Steps were too long where losses of late are so many times those of the start and of the best constant answer; the
#: weight of the past among them; no loss counts for more than so many times that: a few are needed.
EXPLODED, RECENT, OUTLIER = 3.0, 0.9, 2.0


@dataclass
class LossWatch:
    """Watches the losses of a training.

    Arguments:
        ceiling: the loss beyond which steps were too long; 0 where none is known.
        recent: the mean loss of late.
    """

    ceiling: float = 0.0
    recent: float = 0.0

    def begin(self, loss: float, constant: float) -> None:
        """Take the first loss, and that of the best constant answer (not a number where nobody knows it)."""
        self.ceiling = EXPLODED * max(loss, constant)

    def allows(self, loss: float) -> bool:
        """Whether parameters with this loss may take part in an average."""
        return not 0 < self.ceiling < loss

    def exploded(self, loss: float) -> bool:
        """Whether losses up to this one, which is noted, say that steps were too long; then the watch begins anew."""
        if self.ceiling == 0:
            return False
        self.recent = RECENT * self.recent + (1 - RECENT) * min(loss, OUTLIER * self.ceiling)
        if self.recent <= self.ceiling:
            return False
        self.recent = 0.0
        return True

    def state_dict(self) -> dict[str, Number]:
        return {"recent": self.recent, "ceiling": self.ceiling}

    def load_state_dict(self, numbers: dict[str, Number]) -> None:
        self.recent, self.ceiling = (float(numbers.get(name) or 0.0) for name in ("recent", "ceiling"))


class GradientStep(TrainStep):
    """A gradient method at work, in place.

    Arguments:
        method: its settings.
        work: what it is put to work on.
        differentiate: (batch, shard) ↦ loss and outputs, with gradients of all samples; None for those of the method.
    """

    def __init__(
        self,
        method: GradientMethod,
        work: Work,
        differentiate: Callable[[Batch, Shard], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.method, self.work, self._differentiate = method, work, differentiate
        self.batches = shard_batches(work.batches, work.mesh)
        self.optimiser = _make(method.optimiser, work.network)
        self._centring = Centring(work.network) if method.centring else None
        # Layers in turn save most of the calls into torch, and dense ones have a closed form.
        self._form: DenseForm | ModuleChain | None = None
        if method.closed_forms:
            self._form = DenseForm.of(work.network) or ModuleChain.of(work.network)
        self._shard: Shard = WHOLE
        if isinstance(self.optimiser, RelativeStep) and work.mesh.size > 1:
            own = weakref.WeakMethod(self._mean_inputs)  # no cycle: the mesh goes when its last user does
            self.optimiser.mean_inputs = lambda means: method(means) if (method := own()) is not None else None
        self.rates = [float(group["lr"]) for group in self.optimiser.param_groups]
        usual = "cosine" if isinstance(self.optimiser, RelativeStep) else "constant"
        self._anneal: Anneal = method.anneal or usual
        self._count, self._averaged = 0, False
        self._left_over, self._gentle = 1.0, work.gentle
        self._watch = LossWatch()

    @property
    def count(self) -> int:
        return self._count

    @property
    def learning_rate(self) -> float | None:
        relative = getattr(self.optimiser, "relative_size", None)
        return float(self.optimiser.param_groups[0]["lr"]) if relative is None else relative

    def step(self) -> float:
        self.hold_average(False)
        batch, self._shard = self._draw()
        shard = self._shard
        self._set_rates()
        values: list[float] = []  # some optimisers ask more than once
        lags: list[tuple[Mean, Tensor]] = []

        def closure() -> Tensor:
            loss, output = self._gradient(batch, shard)
            if self._centring is not None and not values:  # later calls come from within a step
                lags.extend(self._centred(self._centring))
            values.append(float(loss))
            if not math.isfinite(values[0]):  # a line search may well try points where it is not
                raise StepFailure(Result.NOT_FINITE, f"the loss is {values[0]}{_where(shard, output)}")
            if isinstance(self.optimiser, RelativeStep):
                if self._count == 0 and batch is not None:
                    self._look_at_start(values[0], batch, shard)
                self.optimiser.averaging = self._watch.allows(values[0])
            return loss

        self.optimiser.step(closure)  # pyright: ignore[reportArgumentType, reportCallIssue]
        with torch.no_grad():
            for mean, before in lags:
                mean.bias.sub_(mean.pull(mean.weight) - before)
        self._count += 1
        if self._watch.exploded(values[0]):
            self.retreat()
        return values[0]

    def watch(self, loss: float, constant: float) -> None:
        """Take the first loss and that of the best constant answer: by these it is known when steps were too long."""
        self._watch.begin(loss, constant)

    def retreat(self) -> None:
        """Begin anew from the average of the parameters with shorter steps, where the optimiser can."""
        if isinstance(self.optimiser, RelativeStep):
            self.optimiser.retreat()

    def _set_rates(self) -> None:
        """Annealed; those of a fitted start, not to shake it, begin with the part that is left over.

        The mean of k gradients has errors that fall as 1/√k, so steps may grow as √k.
        """
        factor = _factor(self._anneal, self.work.budget(self.count))
        factor *= min(1.0, self._left_over * math.sqrt(self.count + 1))
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor

    def _look_at_start(self, loss: float, batch: Batch, shard: Shard) -> None:
        """Compare the first loss with that of the best constant answer.

        √(loss/that) is the part of the targets that a fitted start leaves over; 1 for other starts.
        """
        constant = torch.full((), constant_loss(self.work.loss, batch.x, batch.x), dtype=torch.float64)
        if not shard.whole:
            shard.mean_(constant)
        self.watch(loss, float(constant))
        if self._gentle and 0 < loss < FITTED * float(constant):
            self._left_over = math.sqrt(loss / float(constant))
            self._set_rates()

    def _draw(self) -> tuple[Batch, Shard]:
        """The batch of this step, and which of its samples are here."""
        batch, batches = self.batches.batch(self.count), self.batches  # `shard_of`, without the call in every step
        return batch, batches.shard(self.count) if isinstance(batches, ShardedBatches) else WHOLE

    def _gradient(self, batch: Batch, shard: Shard) -> tuple[Tensor, Tensor]:
        """The loss and the outputs; `.grad` is that of all samples."""
        with torch.enable_grad():
            if self._differentiate is not None:
                return self._differentiate(batch, shard)
            form = self._form if self._form is not None and self._form.plain else None
            loss, output = self.method.differentiate(self.work, batch, shard, form)
        if not shard.whole:
            shard.sum_(loss, *(p.grad for p in self.work.network.parameters() if p.grad is not None))
        return loss, output

    def _centred(self, centring: Centring) -> list[tuple[Mean, Tensor]]:
        """Centre the gradients; returns W ū of every layer, which the optimiser's step changes."""
        means = centring.take()
        self._mean_inputs(means)
        for mean in means:
            assert mean.weight.grad is not None and mean.bias.grad is not None  # since `take`
            mean.centre_(mean.weight.grad, mean.bias.grad)
        return [(mean, mean.pull(mean.weight.detach())) for mean in means]

    def _mean_inputs(self, means: list[Mean]) -> None:
        """From mean inputs of this process's samples to those of all; factors of gradients likewise."""
        shard = self._shard
        if not shard.whole and means:
            shard.mean_(*(mean.inputs for mean in means))
            keep_factors(means, shard.samples(means[0].inputs))
            for mean in means:
                gathered = {layer: [shard.gather(part) for part in parts] for layer, parts in mean.factors.items()}
                mean.factors = {layer: Factors(*parts) for layer, parts in gathered.items()}

    # -- the parameters to judge --------------------------------------------------------------------------------------

    def publish(self) -> None:
        self.hold_average(True)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        self.hold_average(True)
        try:
            yield
        finally:
            self.hold_average(False)

    def recording(self) -> AbstractContextManager[None]:
        return nullcontext()

    def snapshot(self, network: nn.Module) -> dict[str, Tensor]:
        if self._averaged or not isinstance(self.optimiser, RelativeStep):
            return snapshot(network)
        known = self.optimiser.state
        named = tensors_of(network).items()
        return {name: known.get(tensor, {}).get("average", tensor).detach().clone() for name, tensor in named}

    def hold_average(self, wanted: bool) -> None:
        """Whether the network holds the average of the parameters, or those that the next step starts from."""
        if wanted != self._averaged and isinstance(self.optimiser, RelativeStep):
            self.optimiser.swap_average()
            self._averaged = wanted

    # -- saving -------------------------------------------------------------------------------------------------------

    def state_dict(self) -> StateDict:
        self.hold_average(False)
        tensors = {f"network.{name}": tensor.detach() for name, tensor in tensors_of(self.work.network).items()}
        numbers: dict[str, Number] = {
            "count": self.count, "left_over": self._left_over, **self._watch.state_dict(),
        }  # fmt: skip
        for index, memory in self.optimiser.state_dict()["state"].items():
            for key, value in memory.items():
                self._keep(f"optimiser.{index}.{key}", value, tensors, numbers)
        return tensors, numbers

    def load_state_dict(self, state: StateDict) -> None:
        tensors, numbers = dict(state[0]), state[1]
        if "stages" in numbers:
            hint = "Use the mesh that the run was begun with, or a new folder."
            invalid_value("resume", f"{numbers['stages']} stages of layers, as before", "one", hint)
        own = {path.removeprefix("network."): t for path, t in tensors.items() if path.startswith("network.")}
        load_snapshot(self.work.network, own)
        memory: dict[int | str, dict[str, Any]] = {}
        for path, value in (*tensors.items(), *numbers.items()):
            if path.startswith("optimiser."):
                _, index, key, *position = path.split(".")
                entries = memory.setdefault(int(index) if index.isdigit() else index, {})
                if position:
                    entries.setdefault(key, {})[position[0]] = value
                else:
                    entries[key] = value
        saved = {index: {key: _listed(value) for key, value in entries.items()} for index, entries in memory.items()}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": saved, "param_groups": groups})
        self._count, self._averaged = int(numbers["count"] or 0), False
        self._left_over = float(numbers.get("left_over") or 1.0)
        self._watch.load_state_dict(numbers)

    def _keep(self, path: str, value: object, tensors: dict[str, Tensor], numbers: dict[str, Number]) -> None:
        if isinstance(value, list):  # L-BFGS has some
            numbers[f"{path}.length"] = len(value)
            for position, entry in enumerate(value):
                self._keep(f"{path}.{position}", entry, tensors, numbers)
        elif isinstance(value, Tensor):
            tensors[path] = value
        elif value is None or isinstance(value, bool | int | float):
            numbers[path] = value
        else:
            name, hint = type(self.optimiser).__name__, "Train without a folder, or choose another optimiser."
            got = f"a {type(value).__name__} in {path!r}"
            invalid_value(f"checkpoint of {name}", "a state of tensors and numbers", got, hint)


def _make(factory: Callable[..., torch.optim.Optimizer], module: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of a module: from the module itself where it looks at it, else from the trained parameters."""
    made = getattr(factory, "func", factory)
    whole = isinstance(made, type) and issubclass(made, RelativeStep)
    optimiser = factory(module if whole else [p for p in module.parameters() if p.requires_grad])
    if not isinstance(optimiser, torch.optim.Optimizer):
        invalid_type("train solver", "a function that makes a torch optimiser", optimiser)
    return optimiser


def _factor(anneal: Anneal, left: float) -> float:
    if anneal == "constant":
        return 1.0
    return left if anneal == "linear" else 0.5 * (1 - math.cos(math.pi * left))


def _where(shard: Shard, output: Tensor) -> str:
    """The processes whose own outputs are not finite, where there are many."""
    names = shard.which(not bool(output.isfinite().all()))
    return f", on {names}" if names else ""


def _listed(value: Any) -> Any:
    """A list from its length and its entries by position; anything else as it is."""
    return [value[str(i)] for i in range(value["length"])] if isinstance(value, Mapping) else value
