"""Contrastive training: the gradient is a difference of two energies, and the step that of an optimiser."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.core.shard import Shard
from torchlift.data import Batch
from torchlift.objective import Objective
from torchlift.objective.contrast import contrast
from torchlift.parallel import stage_of
from torchlift.parallel.partition import describe, partition
from torchlift.training.gradient_step import GradientMethod, GradientStep
from torchlift.training.step import Needs, Work


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
        self._budget = work.budget

    def __call__(self, batch: Batch, shard: Shard) -> tuple[Tensor, Tensor]:
        self.stage.load()
        loss, output, gradients = contrast(self.stage, *batch, shard, lambda: self._budget(0) <= 0)
        # every process makes the whole step
        whole = self.stage.gather([gradients[name] for name in self.stage.names])
        targets = [p for p in self.objective.network.parameters() if p.requires_grad]
        for parameter, gradient in zip(targets, whole, strict=True):
            parameter.grad = gradient
        return loss, output
