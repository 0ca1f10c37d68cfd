"""The layers of a network that one process along "layers" holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.core.shard import Shard
from torchlift.core.tensors import copy_into
from torchlift.networks import Chain
from torchlift.objective import Objective
from torchlift.objective.bounds import squared_norm, with_ones
from torchlift.objective.engine import Setting, StackedEngine, States
from torchlift.objective.fit import minimise_layers
from torchlift.objective.latent_cache import initialise
from torchlift.objective.stage import Stage
from torchlift.objective.zero_loss import ZeroLoss
from torchlift.operators import Context
from torchlift.parallel.mesh import Mesh
from torchlift.parallel.partition import cut_out, matching, partition
from torchlift.parallel.stage_engine import StageEngine


def stage_of(objective: Objective, mesh: Mesh) -> Stage:
    """The layers of this process: all of them, unless a mesh divides them."""
    return LayerStage(objective, mesh) if mesh.layers > 1 else Stage(objective)


class LayerStage(Stage):
    """Some neighbouring layers of a chain, as a network and an objective of their own.

    Arguments:
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
        self.ranges = partition(whole.network, mesh.layers)
        assert isinstance(whole.network, Chain)  # since `partition`
        self.whole, self.mesh, self.chain = whole, mesh, whole.network
        layers = self.ranges[mesh.layer_rank]
        self.first, stop = layers.layers
        self.network = cut_out(self.chain, layers)
        self.last = mesh.neighbour(1) is None
        loss = whole.loss if self.last else ZeroLoss()
        weights = whole.engine.setting.weights[self.first : stop]
        setting = Setting(replace(whole.lifting, mu=weights), loss, weights)
        self.objective = Objective(self.network, setting.lifting, loss, state_dtype=whole.state_dtype)
        pure = StackedEngine.serves(self.chain, None)
        self.engine = StageEngine(self.network, setting, mesh, pure)
        self._dense_engine = StackedEngine(self.network, setting) if pure else None
        self.objective.engine, self.objective.layout = self.engine, self.engine.layout
        if setting.lifting.contrastive:
            self.objective.free = StageEngine(self.network, replace(setting, loss=ZeroLoss()), mesh, pure)
        self.match = matching(self.chain, self.network, layers)
        mesh.places = {rank: str(self.ranges[rank % mesh.layers]) for rank in range(mesh.size)}

    @property
    def dense_engine(self) -> StackedEngine | None:
        return self._dense_engine

    def room(self, y: Tensor) -> Tensor:
        return y if self.mesh.layer_rank == 0 else y.new_zeros(len(y), *self.network.in_shape)

    def receive(self, y: Tensor) -> Tensor:
        """u_0 of this stage, once the process before has sent it; the inputs in the first stage."""
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
        """One process after the other where z follow the forward pass."""
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

    def sum_(self, tensor: Tensor) -> None:
        self.mesh.sum_(tensor, "layers")

    @torch.no_grad()
    def load(self) -> None:
        whole = self.chain.scatter({name: p.detach() for name, p in self.chain.named_parameters()})
        local = self.network.scatter({name: p.detach() for name, p in self.network.named_parameters()})
        for name, tensor in local.items():
            tensor.copy_(whole[self.match[name]])

    def gather(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        trainable = {name: p for name, p in self.chain.named_parameters() if p.requires_grad}
        gathered = {name: torch.zeros_like(p, dtype=tensors[0].dtype) for name, p in trainable.items()}
        slots = self.chain.scatter(gathered)
        for name, local in self.network.scatter(dict(zip(self.names, tensors, strict=True))).items():
            slots[self.match[name]].copy_(local)
        self.mesh.sum_all_(list(gathered.values()), "layers")
        return list(gathered.values())

    @torch.no_grad()
    def publish(self, tensors: Sequence[Tensor]) -> None:
        targets = [p for p in self.chain.parameters() if p.requires_grad]
        copy_into(self.gather(tensors), targets)

    def parameter_bound(self, y: Tensor, z: States, context: Context, shard: Shard) -> float | None:
        """c ‖X‖²/B of every layer, X = (u, 1); the largest counts."""
        whole = self.whole
        activations, weights = whole.network.operators().activations, whole.engine.setting.weights
        inputs = self.engine.inputs(y, z, context)
        norms = [0.0] * (len(activations) + 1)
        for k, u in enumerate(inputs if self.last else inputs[:-1], start=self.first):
            if k < len(activations):
                curvature = weights[k] * whole.lifting.curvature_v(activations[k])
            else:
                curvature = whole.loss.curvature()
            norms[k] = curvature * squared_norm(with_ones(u), shard)
        bound = max(self.mesh.sum_numbers(norms, "layers")) / shard.samples(y)
        return bound if math.isfinite(bound) else None

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
        assert self.dense_engine is not None  # the caller knows
        u = self.engine.inputs(y, z, context)[0]
        states = self.dense_engine.layout.hold(z, u)
        return minimise_layers(self.objective, self.dense_engine, u, x, states, tolerance, near, strength, shard)
