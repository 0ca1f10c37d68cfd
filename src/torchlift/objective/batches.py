"""A training objective on batch after batch."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchlift.core.errors import invalid_type
from torchlift.core.tensors import Point
from torchlift.data import Batch, Batches
from torchlift.objective.objective import Objective
from torchlift.objective.problem import NetworkParameters, Split, TrainingProblem
from torchlift.solvers.implicit_sgd import StochasticProblem


class TrainingBatches(StochasticProblem):
    """The mean over samples of a loss, by batches whose lifted variables exist one batch at a time.

    The network's own parameters are overwritten whenever a batch or the value
    is asked for, unless the same point was asked for last and the network was
    left alone since.

    Args:
        objective: a lifted objective.
        batches: the data, from `as_batches`.
        split, start: how each batch's lifted variables are divided, and where they start.
        budget: the share of a run that is left before step k, from 1 down to 0; always 1 by default.
    """

    def __init__(
        self,
        objective: Objective,
        batches: Batches,
        *,
        split: Split = "whole",
        start: str = "forward",
        budget: Callable[[int], float] | None = None,
    ) -> None:
        if not isinstance(batches, Batches):
            hint = "Try as_batches((y, x), batch_size=100)."
            invalid_type("TrainingBatches batches", "Batches", batches, hint)
        self.objective, self.batches = objective, batches
        self.split: Split = split
        self.how = start
        self.share_left = _endless if budget is None else budget
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

    def data(self, count: int, parameters: Point) -> Batch:
        """Batch number `count`, with the parameters put into the network."""
        self._parameters.load(parameters["parameters"])
        return self.batches.batch(count)

    def batch(self, count: int, parameters: Point) -> tuple[TrainingProblem, Point]:
        y, x, context = self.data(count, parameters)
        problem = TrainingProblem(self.objective, y, x, split=self.split, context=context)
        return problem, problem.start(self.how).merge(parameters)

    @torch.no_grad()
    def value(self, parameters: Point) -> float:
        """The mean loss of the network itself, over all samples in their own order."""
        self._parameters.load(parameters["parameters"])
        total, samples = 0.0, 0
        for y, x, context in self.batches.ordered():
            total += float(self.objective.loss.value(self.objective.network(y, context), x).sum())
            samples += len(y)
        return total / samples


def _endless(count: int) -> float:
    return 1.0
