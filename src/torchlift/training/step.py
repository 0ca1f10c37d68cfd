"""The contract of a training method: settings that say what they need, and one step after another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from torchlift.data import Batches
from torchlift.functions.losses import Loss
from torchlift.functions.regularisers import Regulariser
from torchlift.liftings import Lifting
from torchlift.objective.objective import CoordinateKind
from torchlift.parallel import Mesh
from torchlift.solvers.state import Number

T = TypeVar("T")

Budget = Callable[[int], float]
"""Step k ↦ the share of the budget that is left before it, from 1 down to 0."""


def unlimited(count: int) -> float:
    """The budget of runs without an end, whose steps stay as long as they are."""
    return 1.0


StateDict = tuple[Mapping[str, Any], dict[str, Number]]
"""Tensors and numbers, by name. On a mesh a `ShardedTensor` stands for one that processes hold slices of."""


@dataclass(frozen=True)
class Needs:
    """What a method asks for.

    Arguments:
        latents: whether it moves lifted variables, and so needs a network in the unified form.
        axes: the axes of a mesh that it can be divided along.
        settings: whether it heeds what is asked of lifted variables in `LatentSettings`, where it moves them.
        lifting: the kind of lifting it goes with: "none", "hard" (`Conventional`) or "contrastive"; None for any.
    """

    latents: bool = False
    axes: frozenset[str] = frozenset({"data"})
    settings: bool = True
    lifting: Literal["none", "hard", "contrastive"] | None = None


@dataclass(frozen=True)
class LatentSettings:
    """Lifted variables and what is asked of them; of no concern to methods without.

    Arguments:
        start: "forward", "input", "random", or "warm" from the epoch before.
        dtype, folder: how "warm" ones are kept: None for the network's dtype and for memory.
        coupling: ρ of a quadratic coupling ρ/2 ‖M u − V z‖²; None for M u = V z.
        regularisers: on lifted variables, {layer: regulariser} or one for all.
        parameter_regularisers: {pattern of names: regulariser}.
        coordinates: "states" z, or "errors" e = z − σ(W u + b).
    """

    start: str = "forward"
    dtype: torch.dtype | None = None
    folder: Any = None
    coupling: float | None = None
    regularisers: Regulariser | Mapping[int, Regulariser] | None = None
    parameter_regularisers: Mapping[str, Regulariser] | None = None
    coordinates: CoordinateKind = "states"


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
        mesh: the processes that share the work; one by default.
        gentle: whether steps from a fitted start begin short; not where starts are compared by how they take full ones.
    """

    network: nn.Module
    loss: Loss
    batches: Batches
    budget: Budget = unlimited
    seed: int = 0
    full: bool = False
    lifting: Lifting | None = None
    latents: LatentSettings = field(default_factory=LatentSettings)
    mesh: Mesh = field(default_factory=Mesh)
    gentle: bool = True


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

    def layout(self, work: Work) -> str:
        """Which process has which layers, in a sentence; nothing where they are not divided."""
        return ""

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
    def state_dict(self) -> StateDict:
        """All that is needed to go on from here, the parameters included.

        On a mesh every process gives all tensors, of which some are its copies, or a `ShardedTensor` for what it
        holds slices of.
        """

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> None:
        """Go on from there, whatever the mesh was. On a mesh each tensor is read from the disk when it is asked for."""

    def publish(self) -> None:
        """Put the parameters to use into the network, after the last step; by default it holds them already."""
        return

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, the network holds the parameters to judge; afterwards training can go on."""
        self.publish()
        yield

    def recording(self) -> AbstractContextManager[None]:
        """The same where nobody looks at the network itself; methods that can then leave it alone do so."""
        return self.evaluating()

    def snapshot(self, network: nn.Module) -> dict[str, Tensor]:
        """Copies of the parameters to judge and of the buffers of the network, inside one of these contexts."""
        return snapshot(network)

    @property
    def learning_rate(self) -> float | None:
        return None

    def objective_value(self) -> tuple[float, float | None] | None:
        """The lifted objective and the mean gap ‖z − σ(W u + b)‖, where z persist."""
        return None

    def mean_loss(self) -> float | None:
        """The mean loss of the published network over all samples, where the steps do not tell it."""
        return None


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


def under(named: Mapping[str, T], prefix: str) -> dict[str, T]:
    """Those whose names go on after the prefix, without it."""
    return {name.removeprefix(prefix): named[name] for name in named if name.startswith(prefix)}
