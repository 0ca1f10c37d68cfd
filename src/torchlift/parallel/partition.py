"""A chain of layers divided into contiguous stages, one per process along the axis "layers"."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor, nn

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.networks import Chain, Network
from torchlift.networks.reader import Reader


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
    units = _units(network)
    if len(units) < processes:
        hint = f"Use at most layers={len(units)}, and the axis data for the other processes."
        invalid_value("mesh axis layers", f"at most {len(units)} parts of this network", processes, hint)
    whole = sum(unit.cost for unit in units)
    row, stages = 0, []
    for group in _balanced(units, processes):
        rows = sum(unit.rows for unit in group)
        share = sum(unit.cost for unit in group) / max(whole, 1)
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
    if len(units) < stages:
        hint = f"Use at most layers={len(units)}, and the axis data for the other processes."
        invalid_value("mesh axis layers", f"at most {len(units)} stages of this network", stages, hint)
    _refuse_shared(list(plain), cuts)
    whole = max(sum(unit.cost for unit in units), 1)
    groups = _balanced(units, stages)
    ends = [*(group[0].in_shape for group in groups[1:]), shape]
    return [
        ModuleRange((group[0].first, group[-1].stop), group[0].in_shape, end, sum(unit.cost for unit in group) / whole)
        for group, end in zip(groups, ends, strict=True)
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
