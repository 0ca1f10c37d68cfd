"""A training objective on batches, shared by the processes of a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Factor, Point, finite_blocks
from torchlift.data import Batch, Batches
from torchlift.io import ShardedTensor
from torchlift.objective import Objective, Report, TrainingBatches, TrainingProblem
from torchlift.objective.engine import Layout, States
from torchlift.objective.error_problem import problem_class
from torchlift.objective.latent_cache import coupled, initialise
from torchlift.objective.problem import (
    NetworkParameters,
    Split,
    block_rows,
    is_free_u,
    same_tensors,
)
from torchlift.objective.stage import Stage
from torchlift.operators import Context
from torchlift.parallel.checkpoints import sharded_cache, sharded_latents, sharded_parameters
from torchlift.parallel.mesh import Mesh
from torchlift.parallel.partition import stage_of
from torchlift.parallel.shard import MeshShard, MeshSharing, ShardedBatches

T = TypeVar("T")


def training_problem(objective: Objective, batches: Batches, mesh: Mesh, *, split: Split = "whole") -> TrainingProblem:
    """All samples as one problem, divided among the processes of a mesh.

    Arguments:
        batches: of all processes together.
    """
    if mesh.size == 1:
        y, x, context = batches.batch(0)
        return problem_class(objective)(objective, y, x, split=split, context=context)
    sharded = ShardedBatches(batches, mesh)
    y, x, context = sharded.batch(0)
    stage = stage_of(objective, mesh)
    return ShardedProblem(objective, y, x, sharded.shard(0), stage, split=split, context=context)


def training_batches(
    objective: Objective, batches: Batches, mesh: Mesh, *, by_sample: bool = False, **options: Any
) -> TrainingBatches:
    """`TrainingBatches`, divided among the processes of a mesh.

    Arguments:
        batches: of all processes together.
        by_sample: whether a sample always goes to the same process.
        options: those of `TrainingBatches`.
    """
    if mesh.size == 1:
        return TrainingBatches(objective, batches, **options)
    return ShardedTrainingBatches(objective, ShardedBatches(batches, mesh, by_sample=by_sample), **options)


class ShardedTrainingBatches(TrainingBatches):
    """`TrainingBatches` of one process of a mesh."""

    batches: ShardedBatches

    def __init__(self, objective: Objective, batches: ShardedBatches, **options: Any) -> None:
        super().__init__(objective, batches, **options)
        self.mesh = batches.mesh
        self.stage = stage_of(objective, self.mesh)
        self._parameters = NetworkParameters(self.stage.network)

    def start(self) -> Point:
        return Point({"parameters": self._parameters.clones()}, MeshSharing(self.mesh))

    def batch(self, count: int, parameters: Point) -> tuple[TrainingProblem, Point]:
        problem, start = super().batch(count, parameters)
        if not all(finite_blocks(start).values()):
            raise StepFailure(Result.NOT_FINITE, "the lifted variables at the start of a batch are not finite")
        return problem, start

    def problem(self, count: int, batch: Batch) -> TrainingProblem:
        shard = self.batches.shard(count)
        y, x, context = batch
        return ShardedProblem(self.objective, y, x, shard, self.stage, split=self.split, context=context)

    def publish(self, point: Point) -> None:
        super().publish(point)
        self.stage.publish(point["parameters"])

    def state_dict(self) -> Mapping[str, ShardedTensor]:
        return sharded_cache(super().state_dict(), self.mesh)

    def sharded(self, point: Point) -> dict[str, ShardedTensor]:
        """The tensors of a point as slices of those of a single process, by "block.number"."""
        return sharded_parameters(point["parameters"], self.mesh, self.stage)

    def total_loss(self) -> tuple[float, int]:
        loss, samples = 0.0, 0
        for y, x, context in self.batches.ordered():
            output = self.stage.forward(y, context)
            if output is not None:
                loss += float(self.objective.loss.value(output, x).sum())
                samples += len(y)
        loss, count = self.mesh.sum_numbers([loss, samples])
        return loss, int(count)


class ShardedProblem(TrainingProblem):
    """`TrainingProblem`, of which each process holds its samples' and its layers' variables.

    All values are means over the samples of all processes, and all points
    carry the mesh, so that a solver computes the same numbers everywhere. Per
    gradient there is one sum of the parameters' gradients along "data", and
    along "layers" one exchange forward and one backward.

    Arguments:
        objective: of the whole network.
        y, x, context: this process's samples.
        shard: which samples of the batch they are.
        stage: this process's layers; all of them by default.
        split: how the lifted variables are divided into blocks, by the layers of the whole network.
    """

    def __init__(
        self,
        objective: Objective,
        y: Tensor,
        x: Tensor,
        shard: MeshShard,
        stage: Stage | None = None,
        *,
        split: Split = "whole",
        context: Context = None,
    ) -> None:
        stage = Stage(objective) if stage is None else stage
        super().__init__(stage.objective, stage.room(y), x, split=split, context=context)
        self.stage, self.whole_objective = stage, objective
        self.shard: MeshShard = shard  # pyright: ignore[reportIncompatibleVariableOverride]
        self.inputs, self.mesh = y, shard.mesh
        self.sharing = shard.sharing("parameters")
        self.all_rows = block_rows(len(objective.layout.shapes), split, objective.coupling is not None)
        here = range(stage.first, stage.first + len(stage.objective.layout.shapes))
        self.rows = {
            block: tuple(row - stage.first for row in rows if row in here) for block, rows in self.all_rows.items()
        }

    # -- points -------------------------------------------------------------------------------------------------------

    def start(self, how: str = "forward", generator: torch.Generator | None = None) -> Point:
        return self.point(self._parameters.clones(), self.initial(how, generator))

    def initial(self, how: str = "forward", generator: torch.Generator | None = None) -> States:
        """Lifted variables, those of one process that knows all samples and layers."""
        if how == "random":
            return self._drawn(generator)
        return self.stage.initialise(self.inputs, how, self.context)

    def point(self, parameters: Sequence[Tensor], z: States) -> Point:
        return self._shared(super().point(parameters, z))

    def whole(self, point: Point) -> Point:
        """The point of a single process from those of all that share the problem; on every process."""
        return Point({block: self._whole_block(block, point[block]) for block in point})

    def sharded(self, point: Point) -> dict[str, ShardedTensor]:
        """The tensors of a point as slices of those of a single process, by "block.number"."""
        return {name: tensor for block in point for name, tensor in self._sharded(block, point[block]).items()}

    def publish(self, point: Point) -> None:
        super().publish(point)
        self.stage.publish(point["parameters"])

    def state_dict(self) -> dict[str, Any]:
        """By the layers of the whole network, so that those of different processes never share a name."""
        sharded = {}
        for name, tensor in super().state_dict().items():
            row, _, rest = name.partition(".")
            written = self.mesh.data_rank == 0  # the others along the data have copies
            sharded[f"{int(row) + self.stage.first}.{rest}"] = ShardedTensor.whole(tensor, written)
        return sharded

    # -- values -------------------------------------------------------------------------------------------------------

    def smooth_value(self, point: Point) -> float:
        return self._total([super().smooth_value(point)])[0]

    def nonsmooth_value(self, point: Point) -> float:
        return self._total([super().nonsmooth_value(point)])[0]

    def value(self, point: Point) -> float:
        return self._total([super().value(point)])[0]

    def report(self, point: Point) -> Report:
        local = super().report(point)
        depth = len(self.whole_objective.layout.shapes)
        penalties, squares = [0.0] * depth, [0.0] * depth
        for row, (penalty, gap) in enumerate(zip(local.penalties, local.gaps, strict=True), start=self.stage.first):
            penalties[row], squares[row] = penalty, gap * gap
        first = [local.loss, local.coupling, local.regularisation]
        loss, coupling, regularisation, *rest = self._total([*first, *penalties, *squares])
        gaps = tuple(math.sqrt(square) for square in rest[depth:])
        return Report(loss, coupling, tuple(rest[:depth]), regularisation, 0.0, gaps)

    @torch.no_grad()
    def mean_loss(self) -> float:
        whole = self.whole_objective
        output = whole.network(self.inputs, self.context)
        return self.shard.mean_number(float(whole.loss.value(output, self.x).mean()))

    # -- steps --------------------------------------------------------------------------------------------------------

    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        gradient = super().gradient(point, blocks)
        sums = self.shard.start_means(*gradient.get("parameters", ()))
        for block in gradient if self.shard.scale != 1.0 else ():
            for tensor in gradient[block] if block != "parameters" else ():
                tensor.mul_(self.shard.scale)
        sums.wait()
        return self._shared(gradient)

    def prox(self, point: Point, steps: Mapping[str, Factor]) -> Point:
        scale = self.shard.scale
        scaled = {block: step if block == "parameters" else _times(step, scale) for block, step in steps.items()}
        return self._shared(super().prox(point, scaled))

    # -- details ------------------------------------------------------------------------------------------------------

    def _shared(self, blocks: Mapping[str, Sequence[Tensor]]) -> Point:
        return Point(dict(blocks), self.sharing)

    def _total(self, values: Sequence[float]) -> list[float]:
        """Means over all samples, summed over all layers."""
        return self.shard.sum([value * self.shard.weight for value in values])

    def _once(self, name: str, key: tuple[Tensor, ...], compute: Callable[[], T]) -> T:
        """The same, computed again on all processes if the tensors of any have changed."""
        cached = self._bounds.get(name)
        changed = cached is None or not same_tensors(cached[0], key)
        if self.mesh.layers > 1 and self.mesh.any(changed):
            self._bounds.pop(name, None)
        return super()._once(name, key, compute)

    def _norms(self) -> list[float]:
        local, first = super()._norms(), self.stage.first
        norms = [0.0] * (len(self.whole_objective.layout.shapes) + 1)
        norms[first : first + len(local)] = local
        return self.mesh.sum_numbers(norms, "layers")

    def _block_norms(self) -> dict[str, Tensor]:
        local, mesh = super()._block_norms(), self.mesh
        if self.context is None:
            return local
        return {
            name: torch.stack(mesh.gather(norms.to(mesh.device), "data")).amax(0).cpu() for name, norms in local.items()
        }

    @torch.no_grad()
    def _drawn(self, generator: torch.Generator | None) -> States:
        """Random numbers in the order of one process, of which this one keeps its own."""
        whole, first = self.whole_objective, self.stage.first
        y = self.inputs.new_zeros(self.shard.total, *self.inputs.shape[1:])
        drawn = initialise(whole.network, whole.layout, y, "random", generator=generator, dtype=whole.state_dtype)
        layout = self.objective.layout
        own = (layer[self.shard.rows] for layer in drawn[first : first + len(layout.shapes)])
        z = layout.hold(own, self.y, whole.state_dtype)
        if whole.coupling is not None:
            z.u = coupled(whole.network, self.y, list(z), self.context, whole.state_dtype)
        return z

    def _whole_block(self, block: str, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if block == "parameters":
            return self.stage.gather(tensors)
        layout, dtype = self._layout(self.whole_objective, block), self._states.dtype
        layers = [layer for buffer in tensors for layer in buffer] if self.split == "whole" else list(tensors)
        total, rows = self.shard.total, self.shard.rows
        whole = {row: self.y.new_zeros(total, *layout.shapes[row], dtype=dtype) for row in self.all_rows[block]}
        for row, layer in zip(self.rows[block], layers, strict=True):
            if self.shard.counted:
                whole[row + self.stage.first][rows] = layer
        self.mesh.sum_all_(list(whole.values()))
        if self.split != "whole":
            return list(whole.values())
        return [torch.stack([whole[row] for row in range(first, first + count)]) for first, count in layout.runs]

    def _layout(self, objective: Objective, block: str) -> Layout:
        """Where the variables of a block lie."""
        if not is_free_u(block):
            return objective.layout
        assert objective.u_layout is not None  # since it has blocks of u
        return objective.u_layout

    def _sharded(self, block: str, tensors: Sequence[Tensor]) -> dict[str, ShardedTensor]:
        if block == "parameters":
            return sharded_parameters(tensors, self.mesh, self.stage)
        first = self.stage.first
        if self.split != "whole":
            numbers = [self.all_rows[block].index(row + first) for row in self.rows[block]]
            pairs = zip(numbers, tensors, strict=True)
            return {f"{block}.{number}": sharded_latents(tensor, self.shard) for number, tensor in pairs}
        sharded = {}
        runs = list(enumerate(self._layout(self.whole_objective, block).runs))
        for (start, _), tensor in zip(self._layout(self.objective, block).runs, tensors, strict=True):
            number, run, count = next((i, a, n) for i, (a, n) in runs if a <= start + first < a + n)
            row = start + first - run
            sharded[f"{block}.{number}"] = sharded_latents(tensor, self.shard, (row, row + len(tensor), count))
        return sharded


def _times(step: Factor, scale: float) -> Factor:
    return tuple(factor * scale for factor in step) if isinstance(step, tuple) else step * scale
