"""A chain of layers divided into contiguous stages, and the one that a process along the axis "layers" holds."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.core.shard import Shard
from torchlift.core.tensors import copy_into
from torchlift.networks import Chain, Network
from torchlift.networks.reader import Reader
from torchlift.objective import Objective
from torchlift.objective.bounds import squared_norm, with_ones
from torchlift.objective.engine import Setting, StackedEngine, States
from torchlift.objective.fit import minimise_layers
from torchlift.objective.latent_cache import initialise
from torchlift.objective.stage import Stage
from torchlift.objective.zero_loss import ZeroLoss
from torchlift.operators import Context
from torchlift.parallel.mesh import Mesh
from torchlift.parallel.stage_engine import StageEngine


@dataclass(frozen=True)
class Unit:
    """Modules first, …, stop − 1 of the plain `nn.Sequential`, which no cut may separate.

    Arguments:
        first, stop: positions of the modules.
        rows: number of activation layers.
        in_shape: of one sample.
        cost: multiplications per sample of a step, and one for each entry of the input.
    """

    first: int
    stop: int
    rows: int
    in_shape: Shape
    cost: int


@dataclass(frozen=True)
class LayerRange:
    """What one process along the layers works on: modules and layers `first`, …, `stop` − 1, counted from 0.

    Arguments:
        modules, layers: (first, stop).
        in_shape: of one sample.
        share: of the multiplications of the whole network.
    """

    modules: tuple[int, int]
    layers: tuple[int, int]
    in_shape: Shape
    share: float

    def __str__(self) -> str:
        first, stop = self.layers
        return f"layer {stop}" if stop == first + 1 else f"layers {first + 1} to {stop}"


def partition(network: Network, processes: int) -> list[LayerRange]:
    """The chain cut into contiguous stages whose largest cost is as small as can be.

    The cost of a layer is counted, not timed, so that all processes find the
    same cuts: the multiplications of its linear maps per sample, in three
    products each, but two of a dense first layer, whose adjoint nobody asks
    for. The output map belongs to the last stage. A chain is cut where one state u_j is all
    that later layers read: after an activation, or after a residual block.
    """
    row, stages = 0, []
    for group, share in _divided(_units(network), processes, "parts"):
        rows = sum(unit.rows for unit in group)
        stages.append(LayerRange((group[0].first, group[-1].stop), (row, row + rows), group[0].in_shape, share))
        row += rows
    return stages


@dataclass(frozen=True)
class ModuleRange:
    """Modules `first`, …, `stop` − 1 of an `nn.Sequential`: one stage of a pipeline.

    Arguments:
        modules: (first, stop).
        in_shape, out_shape: of one sample.
        share: of the multiplications of the whole network.
    """

    modules: tuple[int, int]
    in_shape: Shape
    out_shape: Shape
    share: float

    def __str__(self) -> str:
        first, stop = self.modules
        return f"module {first}" if stop == first + 1 else f"modules {first} to {stop - 1}"


def cut_sequential(plain: nn.Sequential, example: Tensor, stages: int) -> list[ModuleRange]:
    """An `nn.Sequential` cut before modules with weights into stages whose largest cost is as small as can be.

    Arguments:
        plain: the whole network; every module hands one tensor on.
        example: inputs, of which the shape counts.
        stages: their number.
    """
    modules, shape = [copy.deepcopy(module).to("meta") for module in plain], tuple(example.shape[1:])
    starts = [k for k, module in enumerate(modules) if next(module.parameters(), None) is not None]
    cuts = [0, *starts[1:], len(modules)]
    units: list[Unit] = []
    for first, stop in pairwise(cuts):
        units.append(Unit(first, stop, 0, shape, _cost(modules[first:stop], shape, 3 if first else 2)))
        with torch.no_grad():
            out = nn.Sequential(*modules[first:stop]).eval()(torch.empty(2, *shape, device="meta"))
        shape = tuple(out.shape[1:])
    groups = _divided(units, stages, "stages")
    _refuse_shared(list(plain), cuts)
    ends = [*(group[0].in_shape for group, _ in groups[1:]), shape]
    return [
        ModuleRange((group[0].first, group[-1].stop), group[0].in_shape, end, share)
        for (group, share), end in zip(groups, ends, strict=True)
    ]


def describe(stages: Sequence[LayerRange | ModuleRange]) -> str:
    """Which process along the layers has which, and how much of the work that is."""
    work = (f"process {r}: {stage} ({stage.share:.0%})" for r, stage in enumerate(stages))
    return f"Layers by counted multiplications: {', '.join(work)}."


def _units(network: Network) -> list[Unit]:
    chain = _checked(network)
    modules = list(chain.to_sequential())
    reader = Reader(chain.in_shape)
    cuts = [(0, 0, chain.in_shape)]
    for position, module in enumerate(modules, start=1):
        reader.read([module])
        if not reader.pending and len(reader.sites) > cuts[-1][1]:
            cuts.append((position, len(reader.sites), reader.shape))
    if cuts[-1][0] < len(modules):  # the output map joins the last layers
        cuts[-1] = (len(modules), *cuts[-1][1:])
    _refuse_shared(modules, [position for position, _, _ in cuts])
    return [
        Unit(a, b, stop - first, shape, _cost(modules[a:b], shape, 2 if a == 0 and _single(modules[a:b]) else 3))
        for (a, first, shape), (b, stop, _) in pairwise(cuts)
    ]


def _checked(network: Network) -> Chain:
    if not isinstance(network, Chain):
        hint = "Use the axis data, which serves every network: mesh='data=…'."
        invalid_value("mesh axis layers", "a chain of layers", type(network).__name__, hint)
    if network.depth == 0:
        invalid_value("mesh axis layers", "a network with activations", "none", "Use the axis data.")
    return network


def _refuse_shared(modules: Sequence[nn.Module], cuts: Sequence[int]) -> None:
    owner: dict[int, int] = {}
    for position, module in enumerate(modules):
        unit = sum(cut <= position for cut in cuts)
        for parameter in module.parameters():
            if owner.setdefault(id(parameter), unit) != unit:
                hint = "Use the axis data, or copy the module."
                invalid_value("mesh axis layers", "layers with weights of their own", "a module used twice", hint)


def _single(modules: Sequence[nn.Module]) -> bool:
    """Whether this is one dense layer."""
    return [isinstance(module, nn.Linear) for module in modules if any(True for _ in module.parameters())] == [True]


def _cost(modules: Sequence[nn.Module], shape: Shape, products: int) -> int:
    """Multiplications per sample, found by a run without numbers."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import, and one process never needs it

    x = torch.empty(1, *shape, device="meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        nn.Sequential(*modules).to("meta", torch.float32).eval()(x)
    return products * counter.get_total_flops() // 2 + x.numel()


def _divided(units: Sequence[Unit], count: int, word: str) -> list[tuple[list[Unit], float]]:
    """Contiguous groups whose largest cost is as small as can be, each with its share of the cost of all."""
    if len(units) < count:
        hint = f"Use at most layers={len(units)}, and the axis data for the other processes."
        invalid_value("mesh axis layers", f"at most {len(units)} {word} of this network", count, hint)
    whole = max(sum(unit.cost for unit in units), 1)
    return [(group, sum(unit.cost for unit in group) / whole) for group in _balanced(units, count)]


def _balanced(units: Sequence[Unit], processes: int) -> list[list[Unit]]:
    """Contiguous groups with the smallest possible largest cost, each with one unit at least."""

    @cache
    def best(start: int, groups: int) -> tuple[int, int]:
        """(largest cost, end of the first group) for the units from `start` on."""
        if groups == 1:
            return sum(unit.cost for unit in units[start:]), len(units)
        ends = range(start + 1, len(units) - groups + 2)
        return min((max(sum(u.cost for u in units[start:end]), best(end, groups - 1)[0]), end) for end in ends)

    parts, start = [], 0
    for groups in range(processes, 0, -1):
        end = best(start, groups)[1]
        parts.append(list(units[start:end]))
        start = end
    return parts


def cut_out(network: Chain, layers: LayerRange) -> Chain:
    """The stage as a chain of its own, with a copy of its weights; K is the identity but in the last one."""
    modules = list(network.to_sequential())[slice(*layers.modules)]
    return Chain(nn.Sequential(*modules), layers.in_shape)


def matching(network: Chain, stage: Chain, layers: LayerRange) -> dict[str, str]:
    """{parameter of the stage's plain form: the same in the network's plain form}."""

    def renamed(name: str) -> str:
        position, _, rest = name.partition(".")
        return f"{int(position) + layers.modules[0]}.{rest}"

    names = {name: renamed(name) for name in stage.scatter(_values(stage))}
    missing = set(names.values()) - network.scatter(_values(network)).keys()
    assert not missing, missing  # both are read from the same modules
    return names


def _values(network: Chain) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in network.named_parameters()}


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
