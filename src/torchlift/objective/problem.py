"""A training objective on a batch, as a `Problem` for any solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import torch
from torch import Tensor

from torchlift.core.checks import check_choice
from torchlift.core.errors import invalid_value
from torchlift.core.problem import Problem
from torchlift.core.shard import WHOLE, Shard
from torchlift.core.tensors import Factor, Point, copy_into
from torchlift.networks import Network
from torchlift.objective.bounds import block_norms, coupled_bound, layer_norms, state_bound
from torchlift.objective.coordinates import Coordinates
from torchlift.objective.engine import States, Want
from torchlift.objective.fit import can_minimise
from torchlift.objective.objective import Objective
from torchlift.objective.report import Report
from torchlift.objective.stage import Stage
from torchlift.operators import Context

T = TypeVar("T")
Split: TypeAlias = Literal["whole", "odd-even", "layers"]


class TrainingProblem(Problem):
    """min over θ and z, and over u where the coupling is quadratic, of an objective on one batch.

    Blocks are "parameters" and the lifted variables: "states" as a whole,
    "states odd" and "states even", or "states 1", …, "states J". For fixed z
    the layers' weights do not meet, so "parameters" is one convex problem per
    layer; for chains the odd layers do not meet either when the even ones are
    fixed.

    With a quadratic coupling each block of z is followed by that of u, named
    "states u", "states u odd", …, "states u 1", …. Every block of u is smooth
    and unconstrained. Where V is block diagonal, as in all networks but
    Runge–Kutta ones, the layers of z do not meet for fixed u; those of u do
    where M or a row of W reads several of them.

    Points hold z, except of layers that learn a threshold or an interval: of
    those they hold `Coordinates` in which Ψ is fixed. `point` and `states`
    translate.

    The network's own parameters are overwritten whenever a point is evaluated.

    Arguments:
        objective: a lifted objective (not Conventional, not Contrastive).
        y, x: inputs and targets.
        split: how the lifted variables are divided into blocks.
    """

    stage: Stage
    shard: Shard

    def __init__(
        self, objective: Objective, y: Tensor, x: Tensor, *, split: Split = "whole", context: Context = None
    ) -> None:
        if objective.lifting.hard or objective.lifting.contrastive:
            name = type(objective.lifting).__name__
            invalid_value("TrainingProblem", "a lifting with free states", name, "Use Bregman, for example.")
        check_choice("TrainingProblem split", split, get_args(Split))
        if not objective.loss.smooth:
            name = type(objective.loss).__name__
            invalid_value("TrainingProblem loss", "a smooth loss", name, "Use Huber or SquaredError.")
        self.objective, self.y, self.x, self.context = objective, y, x, context
        self._parameters = NetworkParameters(objective.network)
        self.names = self._parameters.names
        self.split = split
        self.rows = self.all_rows = block_rows(len(objective.layout.shapes), split, objective.coupling is not None)
        # one process has all layers and all samples; `parallel.ShardedProblem` has others
        self.stage, self.shard, self.whole_objective = Stage(objective), WHOLE, objective
        self._states = objective.initialise(y, context=context)
        self.coordinates = Coordinates(objective)
        self._loaded: dict[str, tuple[Tensor, ...]] = {}
        self._bounds: dict[str, tuple[tuple[Tensor, ...], Any]] = {}

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("parameters", *self.rows)

    def start(self, how: str = "forward", generator: torch.Generator | None = None) -> Point:
        """The network's current parameters, and lifted variables as `Objective.initialise` makes them."""
        z = self.objective.initialise(self.y, how, context=self.context, generator=generator)
        return self.point(self._parameters.clones(), z)

    def point(self, parameters: Sequence[Tensor], z: States) -> Point:
        """A point from parameters (in the order of `names`) and states, which are copied."""
        if self.coordinates.reference:
            self._parameters.load(tuple(parameters))
        z = self.coordinates.held(z)
        blocks = {block: [part.clone() for part in self._tensors(z, block)] for block in self.rows}
        return Point({"parameters": parameters, **blocks})

    def states(self, point: Point) -> States:
        """The lifted variables of a point, as states that share nothing with it."""
        self._load(point)
        return self._states.clone()

    def publish(self, point: Point) -> None:
        """Put the parameters of a point into the network."""
        self._parameters.load(point["parameters"])

    def report(self, point: Point) -> Report:
        """The objective split into its parts."""
        self._load(point)
        return self.objective.report(self.y, self.x, self._states, self.context)

    @torch.no_grad()
    def mean_loss(self) -> float:
        """The mean loss of the network itself."""
        output = self.objective.network(self.y, self.context)
        return float(self.objective.loss.value(output, self.x).mean())

    @torch.no_grad()
    def smooth_value(self, point: Point) -> float:
        self._load(point)
        return self.objective.smooth_value(self.y, self.x, self._states, self.context)

    @torch.no_grad()
    def nonsmooth_value(self, point: Point) -> float:
        self._load(point)
        return self.objective.nonsmooth_value(self._states)

    @torch.no_grad()
    def value(self, point: Point) -> float:
        self._load(point)
        return float(self.objective.value(self.y, self.x, self._states, self.context))

    def parts(self, point: Point) -> Mapping[str, float]:
        """Loss, one penalty per layer, regularisers, and the coupling where it is quadratic."""
        report = self.report(point)
        layers = {f"layer {j}": penalty for j, penalty in enumerate(report.penalties, start=1)}
        coupling = {} if self.objective.coupling is None else {"coupling": report.coupling}
        return {"loss": report.loss, **layers, "regularisation": report.regularisation, **coupling}

    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        self._load(point)
        chosen = self.blocks if blocks is None else tuple(blocks)
        want: Want = "both"
        held = self._held(point)
        if "parameters" not in chosen or (len(chosen) == 1 and not held):
            want = "parameters" if "parameters" in chosen else "states"
        gradients = self.objective.gradients(self.y, self.x, self._states, self.context, want=want)
        self.coordinates.pull_back(held, gradients)
        return self._point_of(chosen, gradients.parameters, gradients.z)

    @torch.no_grad()
    def prox(self, point: Point, steps: Mapping[str, Factor]) -> Point:
        result: dict[str, Sequence[Tensor]] = {}
        for block in point:
            if block == "parameters":
                values = dict(zip(self.names, point[block], strict=True))
                step = steps[block]
                by_name = dict(zip(self.names, step, strict=True)) if isinstance(step, tuple) else step
                result[block] = list(self.objective.prox_parameters(values, by_name).values())
            elif is_free_u(block):
                result[block] = point[block]
            else:
                result[block] = self._prox_states(point[block], self.rows[block], steps[block])
        return Point(result)

    def bound(self, point: Point, block: str) -> float | None:
        whole = self.whole_objective
        if not has_bounds(whole):
            return None
        self._load(point)
        if block == "parameters":
            fixed = tuple(tensor for name in self.rows for tensor in point[name])
            states, context = self._states, self.context
            compute = lambda: self.stage.parameter_bound(self.y, states, context, self.shard)  # noqa: E731
            return self._once("parameters", fixed, compute)
        rows, samples = self.all_rows[block], self.shard.samples(self.y)
        if whole.coupling is not None:
            blocks = self._once("norms", point["parameters"], self._block_norms)
            bound = coupled_bound(whole, blocks, rows, samples, is_free_u(block))
            stretch = 1.0 if is_free_u(block) else self.coordinates.stretch(self.rows[block], self._states)
            return None if bound is None else bound * stretch**2
        norms = self._once("norms", point["parameters"], self._norms)
        return state_bound(whole, norms, rows, samples, joint=self.split == "whole")

    def minimise(
        self, point: Point, block: str, tolerance: float, anchor: Point | None = None, strength: float = 0.0
    ) -> Point | None:
        if block != "parameters" or not can_minimise(self.whole_objective):
            return None
        self._load(point)
        near = dict(zip(self.names, anchor[block], strict=True)) if anchor is not None and block in anchor else {}
        settings = (tolerance, near, strength if near else 0.0, self.shard)
        values = self.stage.minimise(self.y, self.x, self._states, self.context, *settings)
        assert values is not None  # since `can_minimise`
        return point.merge(Point({block: [values[name] for name in self.names]}))

    def state_dict(self) -> dict[str, Tensor]:
        """What points depend on beside the data: the numbers that their coordinates belong to."""
        return self.coordinates.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        self.coordinates.load_state_dict(tensors)

    def smooth(self, block: str) -> bool:
        if block == "parameters":
            return all(r.smooth for r in self.whole_objective.parameter_regularisers.values())
        if is_free_u(block):
            return True
        smooth = all(r.smooth for r in self.objective.state_regularisers.values())
        return smooth and self.objective.lifting.smooth_in_z

    def elementwise(self, block: str) -> bool:
        return elementwise_block(self.whole_objective, block, self.all_rows.get(block, ()))

    def _norms(self) -> list[float]:
        """‖W_1‖, …, ‖W_J‖ and ‖K‖ of the whole network."""
        engine = self.stage.dense_engine
        assert engine is not None  # the caller knows
        return layer_norms(engine)

    def _block_norms(self) -> dict[str, Tensor]:
        """The norms of all blocks, for all samples."""
        return block_norms(self.whole_objective, self.context)

    def _once(self, name: str, key: tuple[Tensor, ...], compute: Callable[[], T]) -> T:
        """A bound that depends on some tensors only, computed again when they are others."""
        cached = self._bounds.get(name)
        if cached is None or not same_tensors(cached[0], key):
            cached = self._bounds[name] = (key, compute())
        return cached[1]

    def _point_of(self, blocks: Sequence[str], parameters: Mapping[str, Tensor], z: States) -> Point:
        """Parameters by name and states as some blocks of a point."""
        named = {"parameters": [parameters[name] for name in self.names]} if "parameters" in blocks else {}
        return Point({block: named.get(block) or self._tensors(z, block) for block in blocks})

    def _tensors(self, z: States, block: str) -> Sequence[Tensor]:
        states = z
        if is_free_u(block):
            assert z.u is not None  # since the problem has blocks of u
            states = z.u
        return list(states.buffers) if self.split == "whole" else [states[row] for row in self.rows[block]]

    def _prox_states(self, tensors: tuple[Tensor, ...], rows: tuple[int, ...], step: Factor) -> list[Tensor]:
        steps = step if isinstance(step, tuple) else (step,) * len(tensors)
        if self.split != "whole":
            return self.objective.prox_layers(rows, tensors, steps, self.coordinates.reference)
        layers = [layer for buffer in tensors for layer in buffer]
        counts = [len(buffer) for buffer in tensors]
        sizes = [
            entry for size, count in zip(steps, counts, strict=True)
            for entry in (size if isinstance(size, Tensor) else [size] * count)
        ]  # fmt: skip
        return stacked(self.objective.prox_layers(rows, layers, sizes, self.coordinates.reference), counts)

    def _load(self, point: Point) -> None:
        """Put a point into the network and the states."""
        self._load_blocks(point, self._states)
        self.coordinates.load(self._held(point), self._states)

    def _load_blocks(self, point: Point, states: States) -> bool:
        """Put a point into the network and given states, but for blocks that are there; whether any state was new."""
        new = False
        for block in point:
            tensors = point[block]
            if block == "parameters":
                self._parameters.load(tensors)
                continue
            loaded = self._loaded.get(block)
            if loaded is not None and same_tensors(loaded, tensors):
                continue
            copy_into(tensors, self._tensors(states, block))
            self._loaded[block], new = tensors, True
        return new

    def _held(self, point: Point) -> dict[int, Tensor]:
        """What a point holds instead of z."""
        held = {}
        for block, rows in self.rows.items() if self.coordinates.reference else ():
            if block in point and not is_free_u(block):
                layers = point[block] if self.split != "whole" else [z for buffer in point[block] for z in buffer]
                held |= dict(zip(rows, layers, strict=True))
        return {row: held[row] for row in self.coordinates.reference if row in held}


class NetworkParameters:
    """The trainable parameters of a network, as a place to put tensors into.

    `load` leaves them alone when it put the very same tensors there last and
    nobody has written to either since. Another problem or an optimiser that changes the
    network in between is noticed by the parameters' version counters, which
    every change in place raises; only writes through `.data`, and parameters
    that are replaced by others, escape them.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.names = [name for name, p in network.named_parameters() if p.requires_grad]
        self._tensors: tuple[Tensor, ...] | None = None
        self._written: list[tuple[Tensor, int]] = []

    def clones(self) -> list[Tensor]:
        """Copies, in the order of `names`."""
        return [p.detach().clone() for p in self._targets()]

    def load(self, tensors: tuple[Tensor, ...]) -> None:
        """Put tensors, in the order of `names`, into the network."""
        if self.holds(tensors):
            return
        targets = self._targets()
        copy_into(tensors, targets)
        self._tensors = tensors
        self._written = [(tensor, tensor._version) for tensor in (*targets, *tensors)]

    def holds(self, tensors: tuple[Tensor, ...]) -> bool:
        """Whether the network has these tensors already."""
        if self._tensors is None or not same_tensors(self._tensors, tensors):
            return False
        return all(tensor._version == version for tensor, version in self._written)

    def _targets(self) -> list[Tensor]:
        return [p for p in self.network.parameters() if p.requires_grad]


def stacked(layers: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """One tensor for so many layers in turn, as buffers hold those of equal shape."""
    rest = iter(layers)
    return [torch.stack([next(rest) for _ in range(count)]) for count in counts]


def same_tensors(one: tuple[Tensor, ...], other: tuple[Tensor, ...]) -> bool:
    """Whether these are the very same tensors; points are never changed in place."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def elementwise_block(objective: Objective, block: str, rows: Sequence[int]) -> bool:
    """Whether the nonsmooth part of "parameters", or of the states of some rows, is a sum over entries."""
    if is_free_u(block):
        return True
    if block == "parameters":
        regularisers = list(objective.parameter_regularisers.values())
    else:
        regularisers = [r for layer, r in objective.state_regularisers.items() if layer - 1 in rows]
        activations = objective.network.operators().activations
        if not objective.lifting.smooth_in_z and any(activations[row].dim is not None for row in rows):
            return False
    return all(regulariser.smooth or regulariser.elementwise for regulariser in regularisers)


def has_bounds(objective: Objective) -> bool:
    """Whether Lipschitz constants are known: of chains of dense layers, and of all networks whose u is free."""
    return objective.coupling is not None or objective.dense_engine is not None


def block_rows(depth: int, split: str, free_u: bool = False) -> dict[str, tuple[int, ...]]:
    """Block name → rows (layers counted from 0); each block of z is followed by that of u where u is free.

    In this order the odd blocks after "parameters" are those of z and the even ones those of u.
    """
    if split == "whole":
        parts = {"": tuple(range(depth))}
    elif split == "odd-even":
        parts = {" odd": tuple(range(0, depth, 2)), " even": tuple(range(1, depth, 2))}
    else:
        parts = {f" {j + 1}": (j,) for j in range(depth)}
    kinds = ("states", "states u") if free_u else ("states",)
    return {f"{kind}{part}": rows for part, rows in parts.items() if rows for kind in kinds}


def is_free_u(block: str) -> bool:
    """Whether a block holds u, and not z."""
    return block.startswith("states u")
