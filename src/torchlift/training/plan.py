"""A phase with all that it is about to work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from torchlift.data import Batches
from torchlift.functions.losses import Loss
from torchlift.parallel import Mesh
from torchlift.training.options import TrainOptions
from torchlift.training.phase import Phase
from torchlift.training.step import Budget, TrainStep, Work, unlimited


@dataclass(frozen=True, eq=False)
class PlannedPhase:
    """A stretch of a run before it begins: checked, measured and compared by those who need all of it.

    Arguments:
        phase: its settings.
        network: trained in place.
        batches: its data.
        loss: of the outputs.
        seed: of the run.
        options: of the run.
        mesh: the processes that share the work; one by default.
    """

    phase: Phase
    network: nn.Module
    batches: Batches
    loss: Loss
    seed: int = 0
    options: TrainOptions = field(default_factory=TrainOptions)
    mesh: Mesh = field(default_factory=Mesh)

    @cached_property
    def per_epoch(self) -> int | None:
        """Steps of an epoch; None for a stream whose length nobody knew when it was first asked for."""
        return 1 if self.phase.full else self.batches.per_epoch if self.batches.sized else None

    @cached_property
    def total_steps(self) -> int | None:
        """None where only time ends the phase."""
        return self.phase.total_steps(self.per_epoch)

    def work(self, budget: Budget = unlimited) -> Work:
        """What the method is put to work on."""
        return self.phase.work(self.network, self.loss, self.batches, budget, self.seed, self.options, self.mesh)

    def check(self) -> None:
        """Refuse what cannot be done, before anything is."""
        self.phase.check(self.work())

    def layout(self) -> str:
        """Which process has which layers, in a sentence; nothing where they are not divided."""
        return self.phase.method.layout(self.work())

    def begin(self, budget: Budget = unlimited) -> TrainStep:
        """The method at work."""
        return self.phase.method.init(self.work(budget))
