"""The layers of a network that one process holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.networks import Chain
from torchlift.objective.engine import Setting, StackedEngine, States
from torchlift.objective.initial import initialise
from torchlift.objective.objective import Objective
from torchlift.objective.part_engine import Elsewhere, PartEngine
from torchlift.objective.partition import cut_out, matching, partition
from torchlift.operators import Context
from torchlift.parallel import Mesh


class LayerPart:
    """A stretch of a chain as a network and an objective of its own, at work on one process along "layers".

    Args:
        whole: the objective of the whole network, without regularisers.
        mesh: the processes.
    """

    def __init__(self, whole: Objective, mesh: Mesh) -> None:
        if whole.coupling is not None:
            hint = "Use the axis data, or leave `coupling` out."
            invalid_value("mesh axis layers", "a hard coupling", "a quadratic one", hint)
        if whole.state_regularisers or whole.parameter_regularisers:
            hint = "Use the axis data, or leave regularisers out."
            invalid_value("mesh axis layers", "an objective without regularisers", "one with them", hint)
        self.stretches = partition(whole.network, mesh.layers)
        assert isinstance(whole.network, Chain)  # since `partition`
        self.whole, self.mesh = whole, mesh
        self.chain = whole.network
        self.stretch = self.stretches[mesh.layer_rank]
        self.first, self.stop = self.stretch.layers
        self.network = cut_out(self.chain, self.stretch)
        self.last = mesh.neighbour(1) is None
        loss = whole.loss if self.last else Elsewhere()
        weights = whole.engine.setting.weights[self.first : self.stop]
        lifting = replace(whole.lifting, mu=weights)
        self.objective = Objective(self.network, lifting, loss, state_dtype=whole.state_dtype)
        pure = StackedEngine.serves(self.chain, None)
        setting = Setting(lifting, loss, weights)
        self.engine = PartEngine(self.network, setting, mesh, pure)
        self.stacked = StackedEngine(self.network, setting) if pure else None
        self.objective.engine, self.objective.layout = self.engine, self.engine.layout
        if lifting.contrastive:
            self.objective.free = PartEngine(self.network, replace(setting, loss=Elsewhere()), mesh, pure)
        self.match = matching(self.chain, self.network, self.stretch)
        mesh.places = {rank: str(self.stretches[rank % mesh.layers]) for rank in range(mesh.size)}

    def room(self, y: Tensor) -> Tensor:
        """The inputs of the network, or room for what stands for them here."""
        return y if self.mesh.layer_rank == 0 else y.new_zeros(len(y), *self.network.in_shape)

    def receive(self, y: Tensor) -> Tensor:
        """u_0 of this part, once the process before has sent it; the inputs in the first part."""
        u, before = self.room(y), self.mesh.neighbour(-1)
        if before is not None:
            self.mesh.start([], [(u, before)]).wait()
        return u

    def send(self, u: Tensor) -> None:
        """u_n to the process after."""
        after = self.mesh.neighbour(1)
        if after is not None:
            self.mesh.start([(u.contiguous(), after)], []).wait()

    @torch.no_grad()
    def initialise(self, y: Tensor, how: str, context: Context) -> States:
        """`Objective.initialise`, one process after the other where z follow the forward pass."""
        if how != "forward":
            return initialise(self.network, self.engine.layout, y, how, context, dtype=self.whole.state_dtype)
        u = self.receive(y)
        z = self.objective.initialise(u, context=context)
        layers = [layer.to(u.dtype) for layer in z]
        self.send(self.network.operators().eliminate(u, layers, context)[-1])
        return z

    @torch.no_grad()
    def forward(self, y: Tensor, context: Context) -> Tensor | None:
        """N(y) on the last process, None on the others; one after the other."""
        output = self.network(self.receive(y), context)
        self.send(output)
        return output if self.last else None

    @torch.no_grad()
    def load(self) -> None:
        """Take over this part's parameters from the whole network."""
        theirs = self.chain.scatter({name: p.detach() for name, p in self.chain.named_parameters()})
        own = self.network.scatter({name: p.detach() for name, p in self.network.named_parameters()})
        for name, tensor in own.items():
            tensor.copy_(theirs[self.match[name]])

    def gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Tensors like all parameters of the network from those of all parts, on every process."""
        some = tensors[0]
        trainable = {name: p for name, p in self.chain.named_parameters() if p.requires_grad}
        found = {name: torch.zeros_like(p, dtype=some.dtype) for name, p in trainable.items()}
        slots = self.chain.scatter(found)
        for name, part in self.network.scatter(dict(zip(self.names, tensors, strict=True))).items():
            slots[self.match[name]].copy_(part)
        self.mesh.sum_all_(list(found.values()), "layers")
        return list(found.values())

    @property
    def names(self) -> list[str]:
        """Names of the part's trainable parameters."""
        return [name for name, p in self.network.named_parameters() if p.requires_grad]
