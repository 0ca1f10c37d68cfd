"""The contract of a training method: settings that say what they need, and one step after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.data import Batches
from torchlift.functions.losses import Loss
from torchlift.functions.regularisers import Regulariser
from torchlift.io import Piece, Stored, whole_piece
from torchlift.liftings import Lifting
from torchlift.parallel import Mesh
from torchlift.solvers.state import Number

Budget = Callable[[int], float]
"""Step k ↦ the share of the budget that is left before it, from 1 down to 0."""

Parts = tuple[dict[str, Tensor], dict[str, Number]]
"""Tensors and numbers, by name."""


@dataclass(frozen=True)
class Needs:
    """What a method asks for.

    Arguments:
        latents: whether it moves lifted variables, and so needs a network in the unified form.
        axes: the axes of a mesh that it can be divided along.
        settings: whether it heeds what is asked of lifted variables in `LatentSettings`, where it moves them.
    """

    latents: bool = False
    axes: frozenset[str] = frozenset({"data"})
    settings: bool = True


@dataclass(frozen=True)
class LatentSettings:
    """Lifted variables and what is asked of them; of no concern to methods without.

    Arguments:
        start: "forward", "input", "random", or "warm" from the epoch before.
        dtype, folder: how "warm" ones are kept: None for the network's dtype and for memory.
        coupling: ρ of a quadratic coupling ρ/2 ‖M u − V z‖²; None for M u = V z.
        regularisers: on lifted variables, {layer: regulariser} or one for all.
        parameter_regularisers: {pattern of names: regulariser}.
    """

    start: str = "forward"
    dtype: torch.dtype | None = None
    folder: Any = None
    coupling: float | None = None
    regularisers: Regulariser | Mapping[int, Regulariser] | None = None
    parameter_regularisers: Mapping[str, Regulariser] | None = None


@dataclass(frozen=True, eq=False)
class Work:
    """What a method is put to work on.

    Arguments:
        network: trained in place.
        loss: of its outputs.
        batches: the training data.
        budget: how much of the run is left.
        seed: of random starts.
        full: whether every step sees all samples.
        lifting: what it costs when z ≠ σ(W u + b); None where there is no such cost.
        latents: settings of lifted variables.
        mesh: the processes that share the work; None for one.
    """

    network: nn.Module
    loss: Loss
    batches: Batches
    budget: Budget
    seed: int = 0
    full: bool = False
    lifting: Lifting | None = None
    latents: LatentSettings = field(default_factory=LatentSettings)
    mesh: Mesh | None = None


class TrainMethod(ABC):
    """Frozen settings of a way to train; `init` puts it to work.

    A method of one's own is one file: a dataclass derived from this one, and the
    `TrainStep` that its `init` returns. `train(network, data, solver=MyMethod())`
    then does the rest: batches, budgets, evaluations, checkpoints, resumption.
    """

    #: What the method asks for.
    needs: Needs = Needs()

    @property
    def title(self) -> str:
        """In records and progress bars."""
        return type(self).__name__

    def check(self, work: Work) -> None:
        """Refuse what cannot be done, before anything is."""
        return

    @abstractmethod
    def init(self, work: Work) -> TrainStep:
        """The method before its first step."""


class TrainStep(ABC):
    """A method at work: changes the parameters of a network by one step at a time."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Steps made so far."""

    @abstractmethod
    def step(self) -> float:
        """Make one step; returns the loss before it, or NaN where that would cost extra."""

    @abstractmethod
    def state_dict(self) -> Parts:
        """All that is needed to go on from here, the parameters included."""

    @abstractmethod
    def load_state_dict(self, parts: Parts) -> None:
        """Go on from there."""

    def publish(self) -> None:
        """Put the parameters to use into the network, after the last step; by default it holds them already."""
        return

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, the network holds the parameters to judge; afterwards training can go on."""
        self.publish()
        yield

    def pieces(self, mesh: Mesh) -> tuple[list[Piece], dict[str, Number]]:
        """`state_dict` of a single process, as pieces that the processes of a mesh hold: by default all have all."""
        tensors, numbers = self.state_dict()
        return spread(tensors, mesh), numbers

    def load_pieces(self, stored: Stored, numbers: dict[str, Number]) -> None:
        """Go on from there, whatever the mesh was; each process reads what it needs."""
        self.load_state_dict((dict(stored), numbers))

    @property
    def learning_rate(self) -> float | None:
        return None

    def objective_value(self) -> tuple[float, float | None] | None:
        """The lifted objective and the mean gap ‖z − σ(W u + b)‖, where z persist."""
        return None

    def mean_loss(self) -> float | None:
        """The mean loss of the published network over all samples, where the steps do not tell it."""
        return None


def spread(tensors: Mapping[str, Tensor], mesh: Mesh) -> list[Piece]:
    """Tensors that all processes have, of which each writes some."""
    return [whole_piece(name, tensor, i % mesh.size == mesh.rank) for i, (name, tensor) in enumerate(tensors.items())]


def snapshot(network: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and of the buffers that a state dict keeps, by name."""
    return {name: tensor.detach().clone() for name, tensor in tensors_of(network).items()}


def tensors_of(network: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers themselves."""
    return {name: tensor for name, tensor in network.state_dict(keep_vars=True).items() if isinstance(tensor, Tensor)}


@torch.no_grad()
def load_snapshot(network: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors_of(network).items():
        tensor.copy_(values[name])
