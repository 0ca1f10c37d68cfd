"""A training objective on batch after batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import check_instance
from torchlift.core.errors import invalid_value
from torchlift.core.problem import Problem
from torchlift.core.tensors import Point
from torchlift.data import Batch, Batches
from torchlift.objective.error_problem import problem_class
from torchlift.objective.latent_cache import LatentCache
from torchlift.objective.objective import Objective
from torchlift.objective.problem import NetworkParameters, Split, TrainingProblem
from torchlift.solvers.implicit_sgd import StochasticProblem


class TrainingBatches(StochasticProblem):
    """The mean over samples of a loss, by batches whose lifted variables exist one batch at a time.

    With a cache they persist instead: a batch goes on from where its samples
    were left an epoch ago.

    The network's own parameters are overwritten whenever a batch or the value
    is asked for, unless the same point was asked for last and the network was
    left alone since.

    Arguments:
        objective: a lifted objective.
        batches: the data, from `as_batches`.
        split, start: how each batch's lifted variables are divided, and where they start.
        cache: keeps lifted variables between epochs; `start` then serves samples that are new to it.
    """

    def __init__(
        self,
        objective: Objective,
        batches: Batches,
        *,
        split: Split = "whole",
        start: str = "forward",
        cache: LatentCache | None = None,
    ) -> None:
        hint = "Try as_batches((y, x), batch_size=100)."
        check_instance("TrainingBatches batches", batches, Batches, "Batches", hint)
        if cache is not None:
            _check_cache(cache, objective, batches)
        self.objective, self.batches, self.cache = objective, batches, cache
        self.split: Split = split
        self.how = start
        self._parameters = NetworkParameters(objective.network)

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
        return Point({"parameters": self._parameters.clones()})

    def batch(self, count: int, parameters: Point) -> tuple[TrainingProblem, Point]:
        self._parameters.load(parameters["parameters"])
        batch = self.batches.batch(count)
        y, context = batch.y, batch.context
        problem = self.problem(count, batch)
        if self.cache is None:
            return problem, problem.start(self.how).merge(parameters)
        indices = lasting_indices(self.batches, count)
        if bool(self.cache.seen[indices].all()):
            z = self.objective.layout.allocate(len(y), y, self.objective.state_dtype)
            if self.objective.u_layout is not None:
                z.u = self.objective.u_layout.allocate(len(y), y, self.objective.state_dtype)
        else:
            z = self.objective.initialise(y, self.how, context=context)
        return problem, problem.point(parameters["parameters"], self.cache.read(indices, z)).merge(parameters)

    def problem(self, count: int, batch: Batch) -> TrainingProblem:
        """The problem of batch number `count`."""
        y, x, context = batch
        return problem_class(self.objective)(self.objective, y, x, split=self.split, context=context)

    def finish(self, count: int, problem: Problem, point: Point) -> None:
        if self.cache is not None:
            assert isinstance(problem, TrainingProblem)  # made by `batch`
            self.cache.write(lasting_indices(self.batches, count), problem.states(point))

    def publish(self, point: Point) -> None:
        """Put the parameters of a point into the network."""
        self._parameters.load(point["parameters"])

    def state_dict(self) -> Mapping[str, Any]:
        """What persists beside the parameters: the lifted variables in the cache."""
        return {} if self.cache is None else self.cache.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        if self.cache is not None:
            self.cache.load_state_dict(tensors)

    @torch.no_grad()
    def value(self, parameters: Point) -> float:
        """The mean loss of the network itself, over all samples in their own order."""
        self._parameters.load(parameters["parameters"])
        loss, samples = self.total_loss()
        return loss / samples

    def total_loss(self) -> tuple[float, int]:
        """The loss summed over all samples, and their number."""
        loss, samples = 0.0, 0
        for y, x, context in self.batches.ordered():
            loss += float(self.objective.loss.value(self.objective.network(y, context), x).sum())
            samples += len(y)
        return loss, samples


def _check_cache(cache: LatentCache, objective: Objective, batches: Batches) -> None:
    check_instance("TrainingBatches cache", cache, LatentCache)
    if cache.layout.shapes != objective.layout.shapes:
        shapes = list(objective.layout.shapes)
        invalid_value("TrainingBatches cache", f"layers of shapes {shapes}", list(cache.layout.shapes))
    if cache.u_layout != objective.u_layout:
        expected = "no room for u, which is not free" if objective.u_layout is None else "room for the free u"
        hint = "Make it with u_layout=objective.u_layout."
        invalid_value("TrainingBatches cache", expected, cache.u_layout, hint)
    if cache.samples != batches.samples:
        invalid_value("TrainingBatches cache", f"{batches.samples} samples", cache.samples)
    lasting_indices(batches, 0)


def lasting_indices(batches: Batches, count: int) -> Tensor:
    """`batches.indices`, or an error where samples are not the same in every epoch."""
    indices = batches.indices(count)
    if indices is None:
        hint = "Give (y, x) tensors, or start states by 'forward'."
        expected = "tensors, whose samples are the same in every epoch"
        invalid_value("lifted variables that persist", expected, "a loader or a drawing function", hint)
    return indices
