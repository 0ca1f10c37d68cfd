"""A few steps on a few samples, watched: what the memory of a large run depends on."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.memory import StorageWatch, tensors_in
from torchlift.core.solution import StepFailure
from torchlift.data import Batch, Batches, TensorBatches
from torchlift.data.base import select_samples
from torchlift.networks import Network
from torchlift.parallel import Mesh
from torchlift.training.modules import apply, in_mode, like
from torchlift.training.plan import PlannedPhase

#: Steps at most: after six an average of `SweepDescent` has memory of its own.
STEPS = 6
#: Operations after which no further step is begun: exact solvers repeat themselves for long.
OPERATIONS = 5000
#: Samples, whichever divides no size of the network: so sizes that grow with the batch are known by a division.
PRIMES = (31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101)

#: Bytes beyond which so many copies of the states of all these samples would be too much for a measurement.
LARGE, COPIES = 2 << 30, 20
#: Samples of the two runs that measure large ones instead.
FEW = (2, 3)
#: A number that divides no size.
NEVER = (1 << 61) - 1

Cost = tuple[int, int, int]
"""Bytes that are fixed, that grow with the batch, and that grow with its square."""


class SmallRun:
    """Costs seen in a few steps on a few samples, with a copy of the network.

    Attributes:
        samples: how many.
        features: the largest layer's.
        steps: what was alive at each moment of the steps.
        kept: what was alive after them.
        evaluation: what was alive beside that at each moment of a forward pass.
        persists: whether lifted variables are among what is kept.
    """

    def __init__(self, planned: PlannedPhase) -> None:
        network, batches = planned.network, planned.batches
        shapes = state_shapes(network, batches.example())
        self.features = max(map(math.prod, (tuple(batches.example().y.shape[1:]), *shapes)))
        self.persists = False
        if COPIES * PRIMES[0] * sum(map(math.prod, shapes)) * batches.example().y.element_size() <= LARGE:
            self.samples = _prime(network, shapes, batches)
            watched = self._watch(planned, self.samples, self.samples)
        else:  # two runs on very few samples tell what is fixed and what grows; squares of the batch are small here
            self.samples = 1
            runs = [self._watch(planned, n, NEVER) for n in FEW]
            watched = [_per_sample(*pair) for pair in zip(*runs, strict=True)]
        self.steps, (self.kept,), self.evaluation = watched

    def _watch(self, planned: PlannedPhase, samples: int, divisor: int) -> tuple[list[Cost], list[Cost], list[Cost]]:
        """Costs of the steps, of what is kept after them, and of a forward pass."""
        phase, twin = planned.phase, copy.deepcopy(planned.network)
        sample = _sample(planned.batches, samples)
        data = TensorBatches(*sample, batch_size=None if phase.full else samples, like=like(twin))
        if phase.states == "warm":  # what is kept of other batches does not grow with this one
            phase = replace(phase, states="forward", state_dtype=None, state_storage="memory")
        with _untouched_randomness(sample.y), _Ledger(divisor) as ledger:
            method = None
            with suppress(StepFailure):  # a solver that fails needs no more memory than one that does not
                method = replace(planned, phase=phase, network=twin, batches=data, seed=0, mesh=Mesh()).begin()
                while method.count < STEPS and ledger.operations < OPERATIONS:
                    method.step()
                method.publish()
                method.objective_value()
            steps, kept = ledger.take(), ledger.alive
            with torch.no_grad(), in_mode(twin, False):
                apply(twin, sample.y, sample.context)
            evaluation = [_minus(cost, kept) for cost in ledger.take()]
        self.persists = bool(getattr(method, "persists", False))
        return steps, [kept], evaluation

    def kept_bytes(self, batch: int) -> int:
        """What stays between steps on batches of this size."""
        return self._total(self.kept, batch)

    def peak_bytes(self, batch: int) -> int:
        """The most that steps on batches of this size have in use."""
        return max(self._total(cost, batch) for cost in self.steps)

    def forward_bytes(self, batch: int) -> int:
        """The most that a forward pass has in use by itself."""
        return max(self._total(cost, batch) for cost in self.evaluation)

    def _total(self, cost: Cost, batch: int) -> int:
        """Matrices of samples by samples are only made where features are not fewer."""
        fixed, linear, square = cost
        return math.ceil(
            fixed + linear * (batch / self.samples) + square * (min(batch, self.features) / self.samples) ** 2
        )


class _Ledger(StorageWatch):
    """Tensors alive that were made inside this context, by how they grow with a batch of `size`, a prime."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.operations = size, 0
        self.alive: Cost = (0, 0, 0)
        self._moments: list[Cost] = []

    def take(self) -> list[Cost]:
        """What was alive after each operation since the last call."""
        moments, self._moments = [*self._moments, self.alive], []
        return moments

    def made(self, size: int) -> None:
        self.alive = _plus(self.alive, self._cost(size))

    def gone(self, size: int) -> None:
        self.alive = _minus(self.alive, self._cost(size))

    def operated(self) -> None:
        self._moments.append(self.alive)
        self.operations += 1

    def _cost(self, size: int) -> Cost:
        order = 0 if size % self.size else 1 if size % self.size**2 else 2
        return size * (order == 0), size * (order == 1), size * (order == 2)


def _per_sample(two: list[Cost], three: list[Cost]) -> list[Cost]:
    """Fixed costs, and those of each sample, from the costs of two and of three samples."""
    if len(two) != len(three):  # the runs went different ways: the largest moments are compared
        two, three = [max(two)], [max(three)]
    pairs = [(a[0], max(b[0] - a[0], 0)) for a, b in zip(two, three, strict=True)]
    return [(cost - FEW[0] * slope, slope, 0) for cost, slope in pairs]


def _plus(one: Cost, other: Cost) -> Cost:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2]


def _minus(one: Cost, other: Cost) -> Cost:
    return one[0] - other[0], one[1] - other[1], one[2] - other[2]


@torch.no_grad()
def state_shapes(network: nn.Module, example: Batch) -> list[tuple[int, ...]]:
    """Shapes of what a forward pass makes of one sample: states of our networks, outputs of the parts of others."""
    if isinstance(network, Network):
        return [*network.operators().W.column_shapes, network.out_shape]
    shapes: list[tuple[int, ...]] = []

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        # transformers evaluate padded sequences as nested tensors, which have no shape
        shapes.extend(tuple(t.shape[1:]) for t in tensors_in((output,)) if not t.is_nested and t.ndim)

    leaves = [module for module in network.modules() if not list(module.children())]
    handles = [module.register_forward_hook(hook) for module in leaves]
    try:
        with in_mode(network, False), _untouched_randomness(example.y):
            apply(network, example.y, example.context)
    finally:
        for handle in handles:
            handle.remove()
    return shapes or [tuple(example.y.shape[1:])]


def _prime(network: nn.Module, states: list[tuple[int, ...]], batches: Batches) -> int:
    """A prime that divides no size of the network and the data, nor one a little larger or smaller."""
    y, x, _ = batches.example()
    shapes = [*states, y.shape[1:], x.shape[1:], (len(states),)]
    shapes += [parameter.shape for parameter in network.parameters()]
    sizes = {size + shift for shape in shapes for size in (*shape, math.prod(shape)) for shift in (-2, -1, 0, 1, 2)}
    return next((prime for prime in PRIMES if all(size == 0 or size % prime for size in sizes)), PRIMES[-1])


def _sample(batches: Batches, size: int) -> Batch:
    """The first samples, again and again if there are too few."""
    first = next(batches.ordered(size))
    return select_samples(first, torch.arange(size, device=first.y.device) % len(first.y))


@contextmanager
def _untouched_randomness(like: Tensor) -> Iterator[None]:
    with torch.random.fork_rng([like.device] if like.is_cuda else []):
        yield
