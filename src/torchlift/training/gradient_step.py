"""Gradients by a sweep or by back-propagation, and any optimiser of torch for the step: for every module."""

from __future__ import annotations

import math
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_instance, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.shard import WHOLE, Shard
from torchlift.core.signatures import explain
from torchlift.core.solution import Result, StepFailure
from torchlift.data import Batch, TensorBatches
from torchlift.networks import Chain
from torchlift.networks.dense_chain import DenseForm, has_hooks
from torchlift.parallel import ShardedBatches, shard_batches
from torchlift.parallel.gradients import backward
from torchlift.parallel.partition import describe
from torchlift.solvers.state import Number
from torchlift.sweeps import Centring, Perturbation, RelativeStep, sweeping
from torchlift.sweeps.centring import Mean, keep_factors
from torchlift.sweeps.dense_chain import differentiate_dense_chain
from torchlift.sweeps.module_chain import ModuleChain
from torchlift.sweeps.orthogonal import Factors, orthogonal_directions
from torchlift.training.constant_answer import constant_loss
from torchlift.training.optimiser import factory_name, load_memory, make_optimiser, memory_of, share_of_limit
from torchlift.training.step import (
    Needs,
    StateDict,
    TrainMethod,
    TrainStep,
    Work,
    load_snapshot,
    snapshot,
    tensors_of,
    under,
)

Anneal = Literal["cosine", "linear", "constant"]

#: A start counts as fitted where it leaves at most this part of the loss of the best constant answer.
FITTED = 0.9
#: Steps were too long where losses of late are so many times those of the start and of the best constant answer; the
#: weight of the past among them; no loss counts for more than so many times that: a few are needed.
EXPLODED, RECENT, OUTLIER = 3.0, 0.9, 2.0
#: And where what was learned is lost again: losses of late are so many times the least of them, and at least this part
#: of that of the start and of the best constant answer.
LOST, UNLEARNED = 10.0, 0.3
#: The average is kept for a retreat where losses of late are at most so many times the least of them; how often it is.
NEAR_LEAST, KEEP_EVERY = 1.2, 100


@dataclass
class LossWatch:
    """Watches the losses of a training.

    Arguments:
        ceiling: the loss beyond which steps were too long; 0 where none is known.
        learned: the loss from which on something was learned.
        recent: the sum of losses of late, with weights that fall.
        count: losses since the watch began, or began anew.
        least: the least mean of late.
    """

    ceiling: float = 0.0
    learned: float = 0.0
    recent: float = 0.0
    count: int = 0
    least: float = math.inf

    def begin(self, loss: float, constant: float) -> None:
        """Take the first loss, and that of the best constant answer (not a number where nobody knows it)."""
        self.ceiling = EXPLODED * max(loss, constant)
        self.learned = UNLEARNED * min(loss, constant)

    @property
    def limit(self) -> float:
        """The loss beyond which steps were too long, by now."""
        return min(self.ceiling, max(LOST * self.least, self.learned)) if self.learned > 0 else self.ceiling

    def allows(self, loss: float) -> bool:
        """Whether parameters with this loss may take part in an average."""
        return not 0 < self.limit < loss

    @property
    def near_least(self) -> bool:
        """Whether losses of late are about as small as they have ever been."""
        return math.isfinite(self.least) and self._mean() <= NEAR_LEAST * self.least

    def _mean(self) -> float:
        """Of losses of late."""
        return self.recent / (1 - RECENT**self.count) if self.count else math.inf

    def exploded(self, loss: float) -> bool:
        """Whether losses up to this one, which is noted, say that steps were too long; then the watch begins anew."""
        if self.ceiling == 0:
            return False
        self.recent = RECENT * self.recent + (1 - RECENT) * min(loss, OUTLIER * self.limit)
        self.count += 1
        if self.recent > self.limit:
            self.recent, self.count = 0.0, 0
            return True
        if self.count > 1 / (1 - RECENT):
            self.least = min(self.least, self._mean())
        return False

    def state_dict(self) -> dict[str, Number]:
        return {"recent": self.recent, "ceiling": self.ceiling, "learned": self.learned, "noted": self.count,
                "least": None if math.isinf(self.least) else self.least}  # fmt: skip

    def load_state_dict(self, numbers: dict[str, Number]) -> None:
        self.recent, self.ceiling, self.learned = (
            float(numbers.get(name) or 0.0) for name in ("recent", "ceiling", "learned")
        )
        self.count, least = int(numbers.get("noted") or 0), numbers.get("least")
        self.least = math.inf if least is None else float(least)


_FORMS = (DenseForm, ModuleChain, Chain, type(None))


@dataclass(frozen=True)
class GradientMethod(TrainMethod):
    """A gradient of the loss on batch after batch, and a step of an optimiser.

    Arguments:
        optimiser: makes it: `RelativeStep` from the module, which needs no learning rate, or an optimiser of torch from
            the parameters: a class, or functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9).
        anneal: how the learning rates fall to 0 over the budget; None for what suits the optimiser: "cosine" for
            `RelativeStep`, "constant" for others.
        centring: eliminate the biases of affine layers, as `RelativeStep` does by itself.
        stages: divide the layers into so many stages, whose signals arrive late, as processes along the axis "layers"
            do: see `pipeline_step`. One process goes through them in turn, which shows what lateness costs.
        recompute: repeat the way forward of a stage in place of keeping its parameters for every batch in flight.
    """

    #: Whether modules that are a chain of dense layers may be evaluated as one.
    closed_forms: ClassVar[bool] = False

    optimiser: Callable[[Any], torch.optim.Optimizer] = RelativeStep
    anneal: Anneal | None = None
    centring: bool = False
    stages: int = field(default=1, kw_only=True, repr=False)  # as little a setting of a run as its mesh
    recompute: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        name = type(self).__name__
        if isinstance(self.optimiser, torch.optim.Optimizer):
            hint = f"Try {name}(torch.optim.{type(self.optimiser).__name__})."
            invalid_type(f"{name} optimiser", "a function of the parameters", self.optimiser, hint)
        if not callable(self.optimiser):
            hint = f"Try {name}(torch.optim.Adam)."
            invalid_type(f"{name} optimiser", "a function of the parameters", self.optimiser, hint)
        if self.anneal not in ("cosine", "linear", "constant", None):
            invalid_value(f"{name} anneal", "'cosine', 'linear', 'constant' or None", repr(self.anneal))
        check_instance(f"{name} centring", self.centring, bool, "True or False")
        check_size(f"{name} stages", self.stages)
        check_instance(f"{name} recompute", self.recompute, bool, "True or False")

    @property
    def title(self) -> str:
        return f"{type(self).__name__}, {factory_name(self.optimiser)}"

    def check(self, work: Work) -> None:
        self.layout(work)

    def layout(self, work: Work) -> str:
        from torchlift.training.pipeline_step import cut, stages_of

        stages = stages_of(self, work.mesh)
        return describe(cut(work.network, work.batches.example(), stages)[1]) if stages > 1 else ""

    def init(self, work: Work) -> TrainStep:
        from torchlift.training.pipeline_step import PipelineStep, stages_of  # made of steps of this kind

        return PipelineStep(self, work) if stages_of(self, work.mesh) > 1 else GradientStep(self, work)

    @abstractmethod
    def gradients(self, work: Work, shard: Shard) -> AbstractContextManager[object]:
        """The context in which the loss is evaluated and differentiated."""

    def differentiate(
        self, work: Work, batch: Batch, shard: Shard, form: DenseForm | ModuleChain | Chain | None = None
    ) -> tuple[Tensor, Tensor]:
        """Put the gradient of the mean loss into `.grad`; returns the mean loss and the outputs.

        Where many processes share a batch, this one goes back from its own terms of the mean over all samples, so that
        signals inside the network have the size that they have on one process, and their gradients are summed
        meanwhile. The outputs are those of its own samples.
        """
        try:
            y, x, context = batch
            if not isinstance(form, _FORMS):
                invalid_type("differentiate form", "a DenseForm, a ModuleChain, a Chain or None", form)

            def loss_of(output: Tensor) -> Tensor:
                if output.shape != x.shape:  # labels, or targets that would be broadcast without a word
                    work.loss.check(tuple(output.shape), x, values=False)
                loss = work.loss.mean(output, x)
                return loss if shard.whole else loss * shard.scale

            if form is not None and context is None and (known := self.by_form(form, y, shard, loss_of)) is not None:
                return known
            _clear(work.network)
            with self.gradients(work, shard):
                arguments = (y,) if context is None else (y, context)
                output = form(y) if isinstance(form, DenseForm) else _checked(work.network(*arguments))
                loss = loss_of(output)
            _go_back(loss, work.network, shard)
            return loss.detach(), output.detach()
        except Exception as error:
            explain(error)
            raise

    def by_form(
        self, form: DenseForm | ModuleChain | Chain, y: Tensor, shard: Shard, loss: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        """The same for a chain of layers, in fewer calls into torch; None where that does not serve."""
        return None


@dataclass(frozen=True)
class SweepDescent(GradientMethod):
    """Backward sweeps instead of back-propagation: the default of `train`.

    A sweep costs the matrix products of back-propagation and tends to its
    gradient as the perturbations vanish; at finite size it also moves units whose
    activation is flat. See `torchlift.sweeps.sweeping`.

    Arguments:
        perturbation: how far layers are moved.
    """

    closed_forms: ClassVar[bool] = True
    needs = Needs(axes=frozenset({"data", "layers"}), lifting="none")

    perturbation: Perturbation = Perturbation()  # noqa: RUF009 (frozen)

    def gradients(self, work: Work, shard: Shard) -> AbstractContextManager[object]:
        if not isinstance(work, Work):
            invalid_type("SweepDescent.gradients work", "a Work", work)
        if not isinstance(shard, Shard):
            invalid_type("SweepDescent.gradients shard", "a Shard", shard)
        return sweeping(self.perturbation, mean=None if shard.whole else shard.mean)

    def by_form(
        self, form: DenseForm | ModuleChain | Chain, y: Tensor, shard: Shard, loss: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        try:
            if isinstance(form, ModuleChain):
                _clear(form.module)
                output = form(y, sweeping(self.perturbation, mean=None if shard.whole else shard.mean))
                value = loss(output)
                _go_back(value, form.module, shard)
                return value.detach(), output.detach()
            if isinstance(form, Chain):
                form.check_input(y)
            stacks = form.dense_stacks() if isinstance(form, Chain) else form.stacks()
            return differentiate_dense_chain(y, stacks, form.activations, self.perturbation, shard, loss)
        except Exception as error:
            explain(error)
            raise


@dataclass(frozen=True)
class BackPropagation(GradientMethod):
    """Conventional training in the same loop, with the same steps."""

    needs = Needs(axes=frozenset({"data", "layers"}), lifting="hard")

    def gradients(self, work: Work, shard: Shard) -> AbstractContextManager[object]:
        return nullcontext()


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
        self.optimiser = make_optimiser(method.optimiser, work.network)
        self._centring = Centring(work.network) if method.centring else None
        self._form = _form_of(work.network) if method.closed_forms else None
        self._drawn = isinstance(work.batches, TensorBatches) and not work.full  # new tensors in every step
        self._shard: Shard = WHOLE
        if isinstance(self.optimiser, RelativeStep):
            self.optimiser.limit *= share_of_limit(self.optimiser, work)
            if work.mesh.size > 1:
                own = weakref.WeakMethod(self._mean_inputs)  # no cycle: the mesh goes when its last user does
                self.optimiser.mean_inputs = lambda means: method(means) if (method := own()) is not None else None
                self.optimiser.directions = partial(work.mesh.divide, orthogonal_directions, axis="data")
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
        if self._count == 0 and isinstance(self.optimiser, RelativeStep):
            self.optimiser.keep_average()  # the start: averages of the first steps may have seen what these lead to
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
        elif self._count % KEEP_EVERY == 0 and self._watch.near_least and isinstance(self.optimiser, RelativeStep):
            self.optimiser.keep_average()
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
        if not self._drawn and not isinstance(self._form, DenseForm | Chain):
            batch = batch._replace(y=batch.y.clone())  # a module may change its inputs in place
        return batch, batches.shard(self.count) if isinstance(batches, ShardedBatches) else WHOLE

    def _gradient(self, batch: Batch, shard: Shard) -> tuple[Tensor, Tensor]:
        """The loss and the outputs; `.grad` is that of all samples."""
        with torch.enable_grad():
            if self._differentiate is not None:
                return self._differentiate(batch, shard)
            form = self._form if self._form is not None and _is_plain(self._form) else None
            return self.method.differentiate(self.work, batch, shard, form)

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
        memory = memory_of(self.optimiser)
        tensors |= {f"optimiser.{path}": tensor for path, tensor in memory[0].items()}
        numbers |= {f"optimiser.{path}": number for path, number in memory[1].items()}
        return tensors, numbers

    def load_state_dict(self, state: StateDict) -> None:
        tensors, numbers = state
        if "stages" in numbers:
            hint = "Use the mesh that the run was begun with, or a new folder."
            invalid_value("resume", f"{numbers['stages']} stages of layers, as before", "one", hint)
        load_snapshot(self.work.network, under(tensors, "network."))
        load_memory(self.optimiser, under(tensors, "optimiser."), under(numbers, "optimiser."))
        self._count, self._averaged = int(numbers["count"] or 0), False
        self._left_over = float(numbers.get("left_over") or 1.0)
        self._watch.load_state_dict(numbers)


def _checked(output: object) -> Tensor:
    """What a module returned in training mode, from which there must be a way back to its parameters."""
    if not isinstance(output, Tensor):
        hint = "In training mode too: wrap the module so that it returns the tensor that the loss looks at."
        invalid_value("train network", "a module that returns one tensor", f"a {type(output).__name__}", hint)
    if not output.requires_grad:
        hint = "Look for torch.no_grad, .detach(), .item() and numpy in its forward pass."
        invalid_value("train network", "outputs that depend on its parameters", "outputs without a gradient", hint)
    return output


def _clear(module: nn.Module) -> None:
    """As `zero_grad` of an optimiser does, which takes longer than steps of small layers."""
    for parameter in module.parameters():
        parameter.grad = None


def _form_of(module: nn.Module) -> DenseForm | ModuleChain | Chain | None:
    """A module whose layers in turn save most of the calls into torch, dense ones in closed form; None for others."""
    if not isinstance(module, Chain):
        return DenseForm.of(module) or ModuleChain.of(module)
    dense = sum(run.count for run in module.dense_runs()) == len(module.sites) and module.output_run() is not None
    return module if dense and type(module).forward is Chain.forward else None


def _is_plain(form: DenseForm | ModuleChain | Chain) -> bool:
    """Whether nobody listens to the layers but observers, which change nothing."""
    return not has_hooks(form) if isinstance(form, Chain) else form.plain


def _go_back(loss: Tensor, module: nn.Module, shard: Shard) -> None:
    """Put the gradients of all samples into `.grad`, and make the loss theirs."""
    loss.backward() if shard.whole else backward(loss, module.parameters(), shard)


def _factor(anneal: Anneal, left: float) -> float:
    if anneal == "constant":
        return 1.0
    return left if anneal == "linear" else 0.5 * (1 - math.cos(math.pi * left))


def _where(shard: Shard, output: Tensor) -> str:
    """The processes whose own outputs are not finite, where there are many."""
    names = shard.which(not bool(output.isfinite().all()))
    return f", on {names}" if names else ""
