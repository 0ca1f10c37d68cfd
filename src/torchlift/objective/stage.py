"""The layers of a network that one process holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchlift.core.shard import Shard
from torchlift.objective.bounds import parameter_bound
from torchlift.objective.engine import StackedEngine, States
from torchlift.objective.fit import minimise_parameters
from torchlift.objective.objective import Objective
from torchlift.operators import Context


class Stage:
    """All layers of a network: one process is a mesh of size one. `parallel.LayerStage` holds some of them.

    Arguments:
        whole: the objective of the whole network.
    """

    def __init__(self, whole: Objective) -> None:
        self.whole = self.objective = whole
        self.network: Any = whole.network
        self.first = 0
        """The first layer here, counted from 0."""

    @property
    def names(self) -> list[str]:
        """Names of the trainable parameters here."""
        return [name for name, p in self.network.named_parameters() if p.requires_grad]

    @property
    def dense_engine(self) -> StackedEngine | None:
        """The engine of the dense layers here, if all of the network are dense."""
        return self.objective.dense_engine

    def room(self, y: Tensor) -> Tensor:
        """The inputs of the network, or a tensor for the state that the first layer here reads."""
        return y

    def initialise(self, y: Tensor, how: str, context: Context) -> States:
        """`Objective.initialise` for the layers here, given the inputs of the network."""
        return self.objective.initialise(y, how, context=context)

    @torch.no_grad()
    def forward(self, y: Tensor, context: Context) -> Tensor | None:
        """N(y), or None where the output is with another process."""
        return self.network(y, context)

    def sum_(self, tensor: Tensor) -> None:
        """Overwrite a tensor by its sum over all stages."""

    def load(self) -> None:
        """Take over the parameters of these layers from the whole network."""

    def gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors like all parameters of the network from those of all stages."""
        return list(tensors)

    def publish(self, tensors: Sequence[Tensor]) -> None:
        """Put the parameters of all stages into the whole network."""

    def parameter_bound(self, y: Tensor, z: States, context: Context, shard: Shard) -> float | None:
        """`bounds.parameter_bound` of the whole network."""
        return parameter_bound(self.objective, y, z, shard)

    def minimise(
        self,
        y: Tensor,
        x: Tensor,
        z: States,
        context: Context,
        tolerance: float,
        near: Mapping[str, Tensor],
        strength: float,
        shard: Shard,
    ) -> dict[str, Tensor] | None:
        """`fit.minimise_parameters` for the layers here."""
        return minimise_parameters(self.objective, y, x, z, tolerance, near, strength, shard)
