"""Gradients by a sweep or by back-propagation, and any optimiser of torch for the step: for every module."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.shard import Shard
from torchlift.core.signatures import explain
from torchlift.data import Batch
from torchlift.networks.dense_chain import DenseForm
from torchlift.objective import Objective
from torchlift.objective.contrast import contrast
from torchlift.parallel import stage_of
from torchlift.parallel.partition import describe, partition
from torchlift.sweeps import Perturbation, RelativeStep, sweeping
from torchlift.sweeps.dense_chain import differentiate_dense_chain
from torchlift.sweeps.module_chain import ModuleChain
from torchlift.training.gradient_step import Anneal, GradientStep
from torchlift.training.pipeline_step import PipelineStep, cut, stages_of
from torchlift.training.step import Needs, TrainMethod, TrainStep, Work

_FORMS = (DenseForm, ModuleChain, type(None))


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
        if not isinstance(self.centring, bool):
            invalid_type(f"{name} centring", "True or False", self.centring)
        check_size(f"{name} stages", self.stages)
        if not isinstance(self.recompute, bool):
            invalid_type(f"{name} recompute", "True or False", self.recompute)

    @property
    def title(self) -> str:
        return f"{type(self).__name__}, {factory_name(self.optimiser)}"

    def check(self, work: Work) -> None:
        self.layout(work)

    def layout(self, work: Work) -> str:
        stages = stages_of(self, work.mesh)
        return describe(cut(work.network, work.batches.example(), stages)[1]) if stages > 1 else ""

    def init(self, work: Work) -> TrainStep:
        return PipelineStep(self, work) if stages_of(self, work.mesh) > 1 else GradientStep(self, work)

    @abstractmethod
    def gradients(self, work: Work, shard: Shard) -> AbstractContextManager[object]:
        """The context in which the loss is evaluated and differentiated."""

    def differentiate(
        self, work: Work, batch: Batch, shard: Shard, form: DenseForm | ModuleChain | None = None
    ) -> tuple[Tensor, Tensor]:
        """Put the gradient of the mean loss into `.grad`; returns the mean loss and the outputs.

        Where many processes share a batch: this one's terms of the mean over all samples, so that signals inside the
        network have the size that they have on one process.
        """
        try:
            y, x, context = batch
            if not isinstance(form, _FORMS):
                invalid_type("differentiate form", "a DenseForm, a ModuleChain or None", form)

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
                output = form(y) if isinstance(form, DenseForm) else work.network(*arguments)
                loss = loss_of(output)
            loss.backward()
            return loss.detach(), output.detach()
        except Exception as error:
            explain(error)
            raise

    def by_form(
        self, form: DenseForm | ModuleChain, y: Tensor, shard: Shard, loss: Callable[[Tensor], Tensor]
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
        self, form: DenseForm | ModuleChain, y: Tensor, shard: Shard, loss: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, Tensor] | None:
        try:
            mean = None if shard.whole else shard.mean
            if isinstance(form, ModuleChain):
                _clear(form.module)
                output = form(y, sweeping(self.perturbation, mean=mean))
                value = loss(output)
                value.backward()
                return value.detach(), output.detach()
            return differentiate_dense_chain(y, form.stacks(), form.activations, self.perturbation, mean, loss)
        except Exception as error:
            explain(error)
            raise


@dataclass(frozen=True)
class BackPropagation(GradientMethod):
    """Conventional training in the same loop, with the same steps."""

    needs = Needs(axes=frozenset({"data", "layers"}), lifting="hard")

    def gradients(self, work: Work, shard: Shard) -> AbstractContextManager[object]:
        return nullcontext()


@dataclass(frozen=True)
class ContrastiveDescent(GradientMethod):
    """The difference of two energies, both minimised over the lifted variables: see `objective.contrast`."""

    needs = Needs(latents=True, axes=frozenset({"data", "layers"}), settings=False, lifting="contrastive")

    def check(self, work: Work) -> None:
        if self.stages > 1:
            hint = "Its layers are divided by the mesh axis layers."
            invalid_value("ContrastiveDescent stages", "1: no signal arrives late there", self.stages, hint)
        super().check(work)

    def layout(self, work: Work) -> str:
        return describe(partition(work.network, work.mesh.layers)) if work.mesh.layers > 1 else ""  # type: ignore

    def init(self, work: Work) -> GradientStep:
        return GradientStep(self, work, _ContrastiveGradient(work))

    def gradients(self, work: Work, shard: Shard) -> AbstractContextManager[object]:
        return nullcontext()


class _ContrastiveGradient:
    """The gradient of the contrastive scheme, by layers where a mesh divides those."""

    def __init__(self, work: Work) -> None:
        self.objective = Objective(work.network, work.lifting, work.loss)  # type: ignore[arg-type]
        self.stage = stage_of(self.objective, work.mesh)

    def __call__(self, batch: Batch, shard: Shard) -> tuple[Tensor, Tensor]:
        self.stage.load()
        loss, output, gradients = contrast(self.stage, *batch, shard)
        # every process makes the whole step
        whole = self.stage.gather([gradients[name] for name in self.stage.names])
        targets = [p for p in self.objective.network.parameters() if p.requires_grad]
        for parameter, gradient in zip(targets, whole, strict=True):
            parameter.grad = gradient
        return loss, output


def _clear(module: nn.Module) -> None:
    """As `zero_grad` of an optimiser does, which takes longer than steps of small layers."""
    for parameter in module.parameters():
        parameter.grad = None


def factory_name(factory: Any) -> str:
    made = getattr(factory, "func", factory)  # of a functools.partial
    return made.__name__ if isinstance(made, type) else getattr(made, "__name__", type(made).__name__)
