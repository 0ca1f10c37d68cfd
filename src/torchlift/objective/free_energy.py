"""The energies of the contrastive scheme: the classical lifted one, free (no target in it) or clamped by the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from torchlift.core.problem import Problem
from torchlift.core.shard import WHOLE, Shard
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Factor, Point, copy_into
from torchlift.objective.engine import Engine, States
from torchlift.operators import Context
from torchlift.solvers import FISTA, Backtracking, Stopping, solve


def minimise(
    engine: Engine,
    y: Tensor,
    z: States,
    context: Context = None,
    x: Tensor | None = None,
    shard: Shard = WHOLE,
    expired: Callable[[], bool] = lambda: False,
) -> States:
    """argmin_z L(K u + d) + Σ_j D_j(z_j, v_j(z)), jointly convex for the classical energy, from the given states.

    Arguments:
        engine: of a setting with `ZeroLoss` for the free energy.
        x: the target, for the clamped energy.
        shard: which samples of the batch these are. The problem is one per sample, but all processes take the same
            steps and stop together, or their minimisers would differ by what the tolerance leaves.
        expired: whether the time is up, asked before every gradient; `StepFailure` then.
    """
    problem = Energy(engine, y, y if x is None else x, z, context, shard, expired)  # ZeroLoss never reads a target
    precision = torch.finfo(y.dtype).eps ** (2 / 3)
    stopping = Stopping(max_steps=5000, change=None, residual=precision)
    start = Point({"states": z.buffers}, problem.sharing)
    solution = solve(problem, FISTA(Backtracking()), start, stopping=stopping, record_every=0)
    if solution.result is Result.TIME_LIMIT:
        raise StepFailure(solution.result, solution.message)
    return problem.load(solution.raise_if_failed().point).clone()


class Energy(Problem):
    """The energy of a batch as a problem in its states, a mean over the samples of all processes that share it."""

    def __init__(
        self,
        engine: Engine,
        y: Tensor,
        x: Tensor,
        z: States,
        context: Context,
        shard: Shard = WHOLE,
        expired: Callable[[], bool] = lambda: False,
    ) -> None:
        self.engine, self.y, self.x, self.context, self.shard, self._expired = engine, y, x, context, shard, expired
        self.sharing = shard.sharing()
        self.activations = engine.network.operators().activations
        self._states = z.clone()

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("states",)

    def load(self, point: Point) -> States:
        """The point as states, valid until the next call."""
        copy_into(point["states"], self._states.buffers)
        return self._states

    def smooth_value(self, point: Point) -> float:
        lifting, loss = self.engine.setting.lifting, self.engine.setting.loss
        seen = self.engine.evaluate(self.y, self.load(point), self.context)
        terms = (lifting.smooth_value(part.activation, part.z, part.v, part.weight) for part in seen.parts)
        total = sum(float(term.sum()) for term in terms) + float(loss.value(seen.output, self.x).sum())
        return self._mean(total)

    def nonsmooth_value(self, point: Point) -> float:
        lifting, weights = self.engine.setting.lifting, self.engine.setting.weights
        rows = zip(self.activations, self.load(point), weights, strict=True)
        return self._mean(sum(float(lifting.nonsmooth_value(*row).sum()) for row in rows))

    def gradient(self, point: Point, blocks: Sequence[str] | None = None) -> Point:
        if self._expired():
            raise StepFailure(Result.TIME_LIMIT, "while minimising over the lifted variables")
        gradients = self.engine.gradients(self.y, self.x, self.load(point), self.context, want="states")
        scale = self.shard.scale
        return point.like(gradients.z.buffers if scale == 1.0 else [buffer * scale for buffer in gradients.z.buffers])

    def prox(self, point: Point, steps: Mapping[str, Factor]) -> Point:
        step = steps["states"]
        assert not isinstance(step, tuple)  # one step for all states
        lifting, weights = self.engine.setting.lifting, self.engine.setting.weights
        states, total = self.load(point), self.shard.samples(self.y)
        rows = zip(self.activations, states, weights, strict=True)
        for activation, layer, weight in rows:
            layer.copy_(lifting.prox_z(activation, layer, step / total, weight))
        return point.like([buffer.clone() for buffer in states.buffers])

    def smooth(self, block: str) -> bool:
        return False

    def _mean(self, total: float) -> float:
        """The mean over all samples, summed over all layers, from the sum over the samples and layers here."""
        return self.shard.sum([total / self.shard.samples(self.y)])[0]
