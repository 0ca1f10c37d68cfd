"""A training objective on batch after batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.problem import Problem
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point, finite_blocks
from torchlift.data import Batch, Batches
from torchlift.io import Piece
from torchlift.objective.distributed_problem import DistributedProblem, publish_parts
from torchlift.objective.layer_part import LayerPart
from torchlift.objective.objective import Objective
from torchlift.objective.pieces import kept_pieces, parameter_pieces
from torchlift.objective.problem import NetworkParameters, Split, TrainingProblem
from torchlift.objective.sharded_batches import ShardedBatches
from torchlift.objective.store import StateStore
from torchlift.parallel import Mesh, MeshSharing, Share
from torchlift.solvers.implicit_sgd import StochasticProblem


class TrainingBatches(StochasticProblem):
    """The mean over samples of a loss, by batches whose lifted variables exist one batch at a time.

    With a store they persist instead: a batch goes on from where its samples
    were left an epoch ago, and what becomes of them is kept.

    The network's own parameters are overwritten whenever a batch or the value
    is asked for, unless the same point was asked for last and the network was
    left alone since.

    Args:
        objective: a lifted objective.
        batches: the data, from `as_batches`.
        split, start: how each batch's lifted variables are divided, and where they start.
        budget: the share of a run that is left before step k, from 1 down to 0; always 1 by default.
        store: keeps lifted variables between epochs; `start` then serves samples that are new to it.
        part: this process's layers where those are shared too; `batches` are `ShardedBatches` then.
    """

    def __init__(
        self,
        objective: Objective,
        batches: Batches,
        *,
        split: Split = "whole",
        start: str = "forward",
        budget: Callable[[int], float] | None = None,
        store: StateStore | None = None,
        part: LayerPart | None = None,
    ) -> None:
        if not isinstance(batches, Batches):
            hint = "Try as_batches((y, x), batch_size=100)."
            invalid_type("TrainingBatches batches", "Batches", batches, hint)
        if store is not None:
            _check_store(store, objective, batches)
        self.objective, self.batches, self.store, self.part = objective, batches, store, part
        self.mesh: Mesh | None = batches.mesh if isinstance(batches, ShardedBatches) else None
        self.split: Split = split
        self.how = start
        self.share_left = _endless if budget is None else budget
        self._sharing = None if self.mesh is None else MeshSharing(self.mesh)
        self._parameters = NetworkParameters(objective.network if part is None else part.network)

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("parameters",)

    @property
    def names(self) -> list[str]:
        """Names of the parameters, in the order of the block."""
        return self._parameters.names

    @property
    def per_epoch(self) -> int:
        """Batches per epoch."""
        return self.batches.per_epoch

    def start(self) -> Point:
        """The network's current parameters."""
        return Point({"parameters": self._parameters.clones()}, self._sharing)

    def data(self, count: int, parameters: Point) -> Batch:
        """Batch number `count`, with the parameters put into the network."""
        self._parameters.load(parameters["parameters"])
        return self.batches.batch(count)

    def share(self, count: int) -> Share | None:
        """Which samples of batch number `count` are here, where many processes share it."""
        return self.batches.part(count)[1] if isinstance(self.batches, ShardedBatches) else None

    def batch(self, count: int, parameters: Point) -> tuple[TrainingProblem, Point]:
        problem, start = self._batch(count, parameters)
        if self.mesh is not None and not all(finite_blocks(start).values()):
            raise StepFailure(Result.NOT_FINITE, "the lifted variables at the start of a batch are not finite")
        return problem, start

    def _batch(self, count: int, parameters: Point) -> tuple[TrainingProblem, Point]:
        y, x, context = self.data(count, parameters)
        share = self.share(count)
        if share is None:
            problem = TrainingProblem(self.objective, y, x, split=self.split, context=context)
        else:
            problem = DistributedProblem(self.objective, y, x, share, self.part, split=self.split, context=context)
        if self.store is None:
            return problem, problem.start(self.how).merge(parameters)
        indices = lasting_indices(self.batches, count)
        if bool(self.store.seen[indices].all()):
            z = self.objective.layout.allocate(len(y), y, self.objective.state_dtype)
            if self.objective.u_layout is not None:
                z.u = self.objective.u_layout.allocate(len(y), y, self.objective.state_dtype)
        else:
            z = self.objective.initialise(y, self.how, context=context)
        return problem, problem.point(parameters["parameters"], self.store.read(indices, z)).merge(parameters)

    def finish(self, count: int, problem: Problem, point: Point) -> None:
        if self.store is not None:
            assert isinstance(problem, TrainingProblem)  # made by `batch`
            self.store.write(lasting_indices(self.batches, count), problem.states(point))

    def parts(self) -> dict[str, Tensor]:
        """What persists beside the parameters, for a checkpoint: the lifted variables in the store."""
        return {} if self.store is None else self.store.parts()

    def kept(self) -> list[Piece]:
        """`parts`, of the samples that belong to this process of a mesh."""
        assert self.mesh is not None  # one process keeps them all
        return kept_pieces(self.parts(), self.mesh)

    def publish(self, point: Point) -> None:
        """Put the parameters of a point into the network."""
        self._parameters.load(point["parameters"])
        if self.part is not None:
            publish_parts(self.part, point["parameters"])

    def pieces(self, point: Point) -> list[Piece]:
        """Where this process's tensors of a point lie in those of a single process, as "block.number"."""
        assert self.mesh is not None  # one process has them all
        return parameter_pieces(point["parameters"], self.mesh, self.part)

    def restore(self, parts: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        if self.store is not None:
            self.store.restore(parts)

    @torch.no_grad()
    def value(self, parameters: Point) -> float:
        """The mean loss of the network itself, over all samples in their own order."""
        self._parameters.load(parameters["parameters"])
        total, samples = 0.0, 0.0
        for y, x, context in self.batches.ordered():
            output = self.objective.network(y, context) if self.part is None else self.part.forward(y, context)
            if output is not None:
                total += float(self.objective.loss.value(output, x).sum())
                samples += len(y)
        if self.mesh is not None:
            total, samples = self.mesh.sum_numbers([total, samples])
        return total / samples


def _check_store(store: StateStore, objective: Objective, batches: Batches) -> None:
    if not isinstance(store, StateStore):
        invalid_type("TrainingBatches store", "a StateStore", store)
    if store.layout.shapes != objective.layout.shapes:
        shapes = list(objective.layout.shapes)
        invalid_value("TrainingBatches store", f"layers of shapes {shapes}", list(store.layout.shapes))
    if store.u_layout != objective.u_layout:
        expected = "no room for u, which is not free" if objective.u_layout is None else "room for the free u"
        hint = "Make it with u_layout=objective.u_layout."
        invalid_value("TrainingBatches store", expected, store.u_layout, hint)
    if store.samples != batches.samples:
        invalid_value("TrainingBatches store", f"{batches.samples} samples", store.samples)
    lasting_indices(batches, 0)


def lasting_indices(batches: Batches, count: int) -> Tensor:
    """`batches.indices`, or an error where samples are not the same in every epoch."""
    found = batches.indices(count)
    if found is None:
        hint = "Give (y, x) tensors, or start states by 'forward'."
        expected = "tensors, whose samples are the same in every epoch"
        invalid_value("lifted variables that persist", expected, "a loader or a drawing function", hint)
    return found


def _endless(count: int) -> float:
    return 1.0
