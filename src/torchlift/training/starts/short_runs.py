"""The weights that a run starts from."""

from __future__ import annotations

import copy
import json
import time
from dataclasses import replace
from functools import cached_property

import torch
from torch import nn

from torchlift.data import Batch, TensorBatches
from torchlift.data.base import select_samples
from torchlift.data.recut import join
from torchlift.networks import Chain
from torchlift.networks.chain import ChainLayer
from torchlift.parallel import Mesh, on_first, take_over
from torchlift.training.modules import like
from torchlift.training.phase import Phase
from torchlift.training.plan import PlannedPhase
from torchlift.training.safeguard import first_samples, judged_samples
from torchlift.training.starts.choose import AS_GIVEN, Choice, Trial, choose
from torchlift.training.starts.draws import weight_of, weighted
from torchlift.training.starts.initialise import initialise_weights, looks_at_loss
from torchlift.training.step import TrainStep

#: Part of the budget of a phase that its start may use: half of it for fits, half for short runs.
PART = 0.1
#: A sample of a fit (a Gram matrix, two iterations) costs as much as so many samples of a step (three products), and
#: one of a fit of the output alone.
FIT_COST, OUTPUT_COST = 2, 0.5
#: Samples of a fit at least and at most; steps of a short run at most; steps by which the time of a step is measured.
FEWEST, MOST, LONGEST, MEASURED = 50, 5000, 50, 3


def start_weights(planned: PlannedPhase) -> Choice:
    """Set the weights as the phase asks for; by default to the best start, see `choose`.

    The comparison uses at most a tenth of the budget: of the steps, or of the
    time limit. Frozen parameters, and Conventional() as the lifting, keep the
    given weights. On a mesh rank 0 decides: times and rounding differ between processes.
    """
    network, mesh = planned.network, planned.mesh
    plain = getattr(network, "_orig_mod", network)  # of a compiled module, which would be compiled for every probe
    planned = planned if plain is network else replace(planned, network=plain)
    if mesh.size == 1:
        return _set_weights(planned)
    choice = on_first(mesh, lambda: _set_weights(planned))
    take_over(mesh, plain)
    return Choice(**json.loads(mesh.texts(json.dumps(None if choice is None else choice.summary()))[0]))


def _set_weights(planned: PlannedPhase) -> Choice:
    network, phase, batches, loss, seed = planned.network, planned.phase, planned.batches, planned.loss, planned.seed
    if phase.weights is not None and phase.weights != "keep":
        y, x, _ = next(batches.ordered(batches.samples))
        generator = torch.Generator().manual_seed(seed)
        fitted = loss if loss.smooth and looks_at_loss(phase.weights) else None
        layers = initialise_weights(network, (y, x), phase.weights, generator=generator, loss=fitted)
        return Choice(phase.weights, "as asked", {}, layers)
    if not chooses(phase) or not all(parameter.requires_grad for parameter in network.parameters()):
        return Choice(AS_GIVEN, "as asked")
    with torch.random.fork_rng(devices=()):
        trial = _ShortRuns(planned)
        return choose(network, trial, torch.Generator().manual_seed(seed))


def chooses(phase: Phase) -> bool:
    """Whether the start is chosen: not where a method or the given weights were asked for, nor for baselines."""
    hard = phase.lifting is not None and phase.lifting.hard
    return phase.weights is None and not hard


class _ShortRuns(Trial):
    """Starts are compared after a few steps of the phase's own method, on samples of the training data."""

    def __init__(self, planned: PlannedPhase) -> None:
        super().__init__(self._draw, planned.loss, probe=judged_samples(planned.batches, planned.total_steps))
        self.planned, self.phase, self.batches = planned, planned.phase, planned.batches

    @cached_property
    def steps(self) -> int:
        """Steps of the whole phase; where only time ends it, by the time that some of them take."""
        total, limit = self.planned.total_steps, self.phase.time_limit
        if limit is None:
            return 0 if total is None else total
        method = self._method(copy.deepcopy(self.planned.network), self._draw(self.batches.batch_size))
        seconds = _seconds(method, 1)  # more than later ones take, which find their buffers made
        if MEASURED * seconds < 0.1 * PART * limit:
            seconds = _seconds(method, MEASURED)
        affordable = int(limit / max(seconds, 1e-9))
        return affordable if total is None else min(total, affordable)

    def samples(self, chain: Chain) -> int:
        """What half a tenth of the steps affords: fits of n inputs cost as much as S + n/3 samples with a factor."""
        inputs = max(map(_inputs_of_a_unit, weighted(chain.layers()).values()), default=0)
        affordable = int(self.affordable / FIT_COST - inputs / 3)
        return min(affordable, MOST) if affordable >= FEWEST else 0

    def output_samples(self, chain: Chain) -> int:
        """The same for a dense output layer alone; a convolution is fitted on patches, of which there are many."""
        weight = weight_of(next(reversed(weighted(chain.layers()).values())))
        if weight.ndim > 3:
            return self.samples(chain)
        return max(min(int(self.affordable / OUTPUT_COST - weight[0].numel() / 3), MOST), self.samples(chain))

    @property
    def affordable(self) -> int:
        """Half a tenth of the budget, in samples of a step."""
        size = self.batches.samples if self.phase.full else self.batches.batch_size
        return int(0.5 * PART * self.steps * size)

    @property
    def rescales(self) -> bool:
        """Solvers of lifted variables fit the output layer in their first step, to variables that start elsewhere."""
        return not self.phase.method.needs.latents

    def run(self, network: nn.Module, seen: Batch, candidates: int) -> None:
        count = min(LONGEST, int(0.5 * PART * self.steps / candidates))
        if count == 0:
            return
        method = self._method(network, seen)
        for _ in range(count):
            method.step()
        method.publish()

    def _method(self, network: nn.Module, data: Batch) -> TrainStep:
        size = None if self.phase.full else self.batches.batch_size
        batches = TensorBatches(*data, batch_size=size, seed=self.planned.seed, like=like(network))
        trial = replace(self.planned, network=network, batches=batches, mesh=Mesh())
        return self.phase.method.init(replace(trial.work(), gentle=False))

    def _draw(self, count: int) -> Batch:
        """The first samples in the order of the first epoch."""
        batches = self.batches
        if self.phase.full:
            every = next(batches.ordered(batches.samples))
            order = torch.randperm(len(every.y), generator=torch.Generator().manual_seed(self.planned.seed))
            return select_samples(every, order[:count].to(every.y.device))
        if count <= self.probe:
            return first_samples(batches, count)
        drawn: list[Batch] = []
        while sum(len(batch.y) for batch in drawn) < count:
            if batches.sized and len(drawn) == batches.per_epoch:
                break
            drawn.append(batches.batch(len(drawn)))
        return select_samples(join(drawn), slice(count))


def _seconds(method: TrainStep, count: int) -> float:
    """The time that a step takes, as a mean of so many."""
    begin = time.monotonic()
    for _ in range(count):
        method.step()
    return (time.monotonic() - begin) / count


def _inputs_of_a_unit(layer: ChainLayer) -> int:
    weight = weight_of(layer)
    return weight[0].numel()
