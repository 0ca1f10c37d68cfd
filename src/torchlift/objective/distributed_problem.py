"""A training objective on one batch, shared by the processes of a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from torchlift.core.tensors import Factor, Point
from torchlift.io import Piece
from torchlift.objective.bounds import (
    block_norms,
    coupled_bound,
    parameter_bound,
    squared_norm,
    state_bound,
    with_ones,
)
from torchlift.objective.engine import Layout, StackedEngine, States
from torchlift.objective.initial import coupled, initialise
from torchlift.objective.layer_part import LayerPart
from torchlift.objective.objective import Objective
from torchlift.objective.parameters import can_minimise, minimise_layers, minimise_parameters
from torchlift.objective.pieces import parameter_pieces, state_piece
from torchlift.objective.problem import (
    Split,
    TrainingProblem,
    block_rows,
    elementwise_block,
    has_bounds,
    is_free_u,
    same_tensors,
)
from torchlift.objective.report import Report
from torchlift.operators import Context, Dense
from torchlift.parallel import MeshSharing, Share

T = TypeVar("T")


class DistributedProblem(TrainingProblem):
    """`TrainingProblem`, of which each process holds its samples' and its layers' variables.

    All values are means over the samples of all processes, and all points
    carry the mesh, so that a solver computes the same numbers everywhere. Per
    gradient there is one sum of the parameters' gradients along "data", and
    along "layers" one exchange forward and one backward.

    Args:
        objective: of the whole network.
        y, x, context: this process's samples.
        share: which part of the batch they are.
        part: this process's layers; None for all of them.
        split: how the lifted variables are divided into blocks, by the layers of the whole network.
    """

    def __init__(
        self,
        objective: Objective,
        y: Tensor,
        x: Tensor,
        share: Share,
        part: LayerPart | None = None,
        *,
        split: Split = "whole",
        context: Context = None,
    ) -> None:
        local = objective if part is None else part.objective
        super().__init__(local, y if part is None else part.room(y), x, split=split, context=context)
        self.whole_objective, self.inputs, self.share, self.part = objective, y, share, part
        self.mesh = share.mesh
        self.sharing = MeshSharing(share.mesh, counted=share.count > 0)
        self.all_rows = block_rows(len(objective.layout.shapes), split, objective.coupling is not None)
        self.first = 0 if part is None else part.first
        here = range(self.first, self.first + len(local.layout.shapes))
        self.rows = {
            block: tuple(row - self.first for row in rows if row in here) for block, rows in self.all_rows.items()
        }

    # -- points -------------------------------------------------------------------------------------------------------

    def start(self, how: str = "forward", generator: torch.Generator | None = None) -> Point:
        return self.point(self._parameters.clones(), self.initial(how, generator))

    def initial(self, how: str = "forward", generator: torch.Generator | None = None) -> States:
        """Lifted variables, those of one process that knows all samples and layers."""
        if how == "random":
            return self._drawn(generator)
        if self.part is not None:
            return self.part.initialise(self.inputs, how, self.context)
        return self.objective.initialise(self.y, how, context=self.context)

    def point(self, parameters: Sequence[Tensor], z: States) -> Point:
        return self._shared(super().point(parameters, z))

    def whole(self, point: Point) -> Point:
        """The point of a single process from those of all that share the problem; on every process."""
        return Point({block: self._whole_block(block, point[block]) for block in point})

    def pieces(self, point: Point) -> list[Piece]:
        """Where this process's tensors of a point lie in those of a single process, as "block.number"."""
        return [piece for block in point for piece in self._pieces(block, point[block])]

    def publish(self, point: Point) -> None:
        super().publish(point)
        if self.part is not None:
            publish_parts(self.part, point["parameters"])

    # -- values -------------------------------------------------------------------------------------------------------

    def smooth_value(self, point: Point) -> float:
        return self._total([super().smooth_value(point)])[0]

    def nonsmooth_value(self, point: Point) -> float:
        return self._total([super().nonsmooth_value(point)])[0]

    def value(self, point: Point) -> float:
        return self._total([super().value(point)])[0]

    def report(self, point: Point) -> Report:
        own = super().report(point)
        depth = len(self.whole_objective.layout.shapes)
        zeros = [0.0] * depth
        penalties, squares = list(zeros), list(zeros)
        for row, (penalty, gap) in enumerate(zip(own.penalties, own.gaps, strict=True), start=self.first):
            penalties[row], squares[row] = penalty, gap * gap
        first = [own.loss, own.coupling, own.regularisation]
        loss, coupling, regularisation, *rest = self._total([*first, *penalties, *squares])
        gaps = tuple(math.sqrt(square) for square in rest[depth:])
        return Report(loss, coupling, tuple(rest[:depth]), regularisation, 0.0, gaps)

    @torch.no_grad()
    def mean_loss(self) -> float:
        whole = self.whole_objective
        output = whole.network(self.inputs, self.context)
        return self.share.number(float(whole.loss.value(output, self.x).mean()))

    # -- steps --------------------------------------------------------------------------------------------------------

    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        found = super().gradient(point, blocks)
        sums = self.share.start_means(*found.get("parameters", ()))
        for block in found if self.share.scale != 1.0 else ():
            for tensor in found[block] if block != "parameters" else ():
                tensor.mul_(self.share.scale)
        sums.wait()
        return self._shared(found)

    def prox(self, point: Point, steps: Mapping[str, Factor]) -> Point:
        scale = self.share.scale
        scaled = {block: step if block == "parameters" else _times(step, scale) for block, step in steps.items()}
        return self._shared(super().prox(point, scaled))

    def bound(self, point: Point, block: str) -> float | None:
        whole = self.whole_objective
        if not has_bounds(whole):
            return None
        self._load(point)
        if block == "parameters":
            fixed = tuple(tensor for name in self.rows for tensor in point[name])
            return self._once("parameters", fixed, self._parameter_bound)
        rows, samples = self.all_rows[block], self.share.total
        if whole.coupling is not None:
            blocks = self._once("norms", point["parameters"], self._block_norms)
            return coupled_bound(whole, blocks, rows, samples, is_free_u(block))
        norms = self._once("norms", point["parameters"], self._norms)
        return state_bound(whole, norms, rows, samples, joint=self.split == "whole")

    def minimise(
        self, point: Point, block: str, tolerance: float, anchor: Point | None = None, strength: float = 0.0
    ) -> Point | None:
        if block != "parameters" or not can_minimise(self.whole_objective):
            return None
        self._load(point)
        near = dict(zip(self.names, anchor[block], strict=True)) if anchor is not None and block in anchor else {}
        rest = (tolerance, near, strength if near else 0.0, self.share)
        if self.part is None:
            found = minimise_parameters(self.objective, self.y, self.x, self._states, *rest)
        else:
            found = self._minimise_part(*rest)
        assert found is not None  # since `can_minimise`
        return point.merge(Point({block: [found[name] for name in self.names]}))

    def smooth(self, block: str) -> bool:
        if block == "parameters":
            return all(r.smooth for r in self.whole_objective.parameter_regularisers.values())
        return super().smooth(block)

    def elementwise(self, block: str) -> bool:
        return elementwise_block(self.whole_objective, block, self.all_rows.get(block, ()))

    # -- details ------------------------------------------------------------------------------------------------------

    def _shared(self, blocks: Mapping[str, Sequence[Tensor]]) -> Point:
        return Point(dict(blocks), self.sharing)

    def _total(self, values: Sequence[float]) -> list[float]:
        """Means over all samples, summed over all layers."""
        weight, counted = self.share.weight, self.share.count > 0
        return self.share.mesh.sum_numbers([value * weight if counted else 0.0 for value in values])

    def _once(self, name: str, key: tuple[Tensor, ...], compute: Callable[[], T]) -> T:
        """The same, computed again on all processes if the tensors of any have changed."""
        known = self._bounds.get(name)
        changed = known is None or not same_tensors(known[0], key)
        if self.share.mesh.layers > 1 and self.share.mesh.sum_numbers([float(changed)])[0]:
            self._bounds.pop(name, None)
        return super()._once(name, key, compute)

    def _norms(self) -> list[float]:
        """‖W_1‖, …, ‖W_J‖ and ‖K‖ of the whole network."""
        engine = self.objective.engine if self.part is None else self.part.stacked
        assert isinstance(engine, StackedEngine)  # the caller knows
        found = [0.0] * (len(self.whole_objective.layout.shapes) + 1)
        weights = [W for segment in engine.segments for W in segment.weights().W]
        for row, W in enumerate(weights, start=self.first):
            found[row] = Dense(W).norm_bound()
        if engine.tail is not None:
            found[-1] = Dense(engine.tail.weights().first).norm_bound()
        return self.share.mesh.sum_numbers(found, "layers")

    def _block_norms(self) -> dict[str, Tensor]:
        """`bounds.block_norms` that hold for the samples of all processes."""
        own = block_norms(self.whole_objective, self.context)
        if self.context is None:
            return own
        mesh = self.share.mesh
        return {
            name: torch.stack(mesh.gather(norms.to(mesh.device), "data")).amax(0).cpu() for name, norms in own.items()
        }

    def _parameter_bound(self) -> float | None:
        """`bounds.parameter_bound` of the whole network and the whole batch."""
        whole = self.whole_objective
        if self.part is None:
            return parameter_bound(whole, self.y, self._states, self.share)
        states = self._inputs_of_layers(self.part)
        activations, weights = whole.network.operators().activations, whole.engine.setting.weights
        found = [0.0] * (len(activations) + 1)
        for k, u in enumerate(states, start=self.first):
            if k < len(activations):
                factor = weights[k] * whole.lifting.curvature_v(activations[k])
            else:
                factor = whole.loss.curvature()
            found[k] = factor * squared_norm(with_ones(u), self.share)
        smooth = [r.curvature() for r in whole.parameter_regularisers.values() if r.smooth]
        worst = max(self.share.mesh.sum_numbers(found, "layers")) / self.share.total + max(smooth, default=0.0)
        return worst if math.isfinite(worst) else None

    def _inputs_of_layers(self, part: LayerPart) -> list[Tensor]:
        """What the layers here read, and what the output reads in the last part."""
        u = part.engine.inputs(self.y, self._states, self.context)
        return u if part.last else u[:-1]

    def _minimise_part(
        self, tolerance: float, near: Mapping[str, Tensor], strength: float, share: Share
    ) -> dict[str, Tensor]:
        part = self.part
        assert part is not None and part.stacked is not None  # dense layers only
        u = part.engine.inputs(self.y, self._states, self.context)[0]
        z = part.stacked.layout.allocate(len(u), u)
        for slot, layer in zip(z, self._states, strict=True):
            slot.copy_(layer)
        return minimise_layers(part.objective, part.stacked, u, self.x, z, tolerance, near, strength, share)

    @torch.no_grad()
    def _drawn(self, generator: torch.Generator | None) -> States:
        """Random numbers in the order of one process, of which this one keeps its own."""
        begin = sum(self.share.counts[: self.share.mesh.data_rank])
        own = slice(begin, begin + self.share.count) if self.share.count else slice(0, 1)
        whole = self.whole_objective
        y = self.inputs.new_zeros(self.share.total, *self.inputs.shape[1:])
        drawn = initialise(whole.network, whole.layout, y, "random", generator=generator, dtype=whole.state_dtype)
        z = self.objective.layout.allocate(len(self.y), self.y, whole.state_dtype)
        for slot, layer in zip(z, drawn[self.first : self.first + len(z)], strict=True):
            slot.copy_(layer[own])
        if whole.coupling is not None:
            z.u = coupled(whole.network, self.y, list(z), self.context, whole.state_dtype)
        return z

    def _whole_block(self, block: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if block == "parameters":
            return tensors if self.part is None else self.part.gather(tensors)
        layout, dtype = self._layout(self.whole_objective, block), self._states.dtype
        shapes = layout.shapes
        layers = _layers(tensors) if self.split == "whole" else list(tensors)
        begin = sum(self.share.counts[: self.share.mesh.data_rank])
        found = {row: self.y.new_zeros(self.share.total, *shapes[row], dtype=dtype) for row in self.all_rows[block]}
        for row, layer in zip(self.rows[block], layers, strict=True):
            found[row + self.first][begin : begin + self.share.count] = layer[: self.share.count]
        self.share.mesh.sum_all_(list(found.values()))
        if self.split != "whole":
            return list(found.values())
        return [torch.stack([found[row] for row in range(first, first + count)]) for first, count in layout.runs]

    def _layout(self, objective: Objective, block: str) -> Layout:
        """Where the variables of a block lie."""
        if not is_free_u(block):
            return objective.layout
        assert objective.u_layout is not None  # since it has blocks of u
        return objective.u_layout

    def _pieces(self, block: str, tensors: Sequence[Tensor]) -> list[Piece]:
        if block == "parameters":
            return parameter_pieces(tensors, self.share.mesh, self.part)
        if self.split != "whole":
            numbers = [self.all_rows[block].index(row + self.first) for row in self.rows[block]]
            pairs = zip(numbers, tensors, strict=True)
            return [state_piece(f"{block}.{number}", tensor, self.share) for number, tensor in pairs]
        found = []
        for (start, _), tensor in zip(self._layout(self.objective, block).runs, tensors, strict=True):
            row = start + self.first
            runs = enumerate(self._layout(self.whole_objective, block).runs)
            number, first, count = next((i, first, n) for i, (first, n) in runs if first <= row < first + n)
            rows = (row - first, row - first + len(tensor), count)
            found.append(state_piece(f"{block}.{number}", tensor, self.share, rows))
        return found


def publish_parts(part: LayerPart, tensors: Sequence[Tensor]) -> None:
    """Put the parameters of all parts into the whole network of every process."""
    targets = [p for p in part.chain.parameters() if p.requires_grad]
    with torch.no_grad():
        for target, tensor in zip(targets, part.gather(tensors), strict=True):
            target.copy_(tensor)


def _layers(buffers: Sequence[Tensor]) -> list[Tensor]:
    return [layer for buffer in buffers for layer in buffer]


def _times(step: Factor, scale: float) -> Factor:
    return tuple(each * scale for each in step) if isinstance(step, tuple) else step * scale
