"""Implicit steps of dense layers in the metric of their inputs, as a rule for sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point
from torchlift.objective.fit import few_samples
from torchlift.objective.rules import BLOCK, SweepRule
from torchlift.objective.sweep import LayerStep, Sweep
from torchlift.solvers.gram import GramState, GramStep


@dataclass(frozen=True)
class GramRule(SweepRule):
    """A `GramStep` of every stack of dense layers.

    Where many processes share a batch, they sum the matrices of the step. Batches
    of fewer samples than a layer has inputs are brought together instead: the
    step is then one of B × B matrices, of products between samples.

    Arguments:
        gram: its settings.
        anneal: multiply τ by the share of the budget that is left.
    """

    gram: GramStep = field(default_factory=GramStep)
    anneal: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.gram, GramStep):
            invalid_type("GramRule gram", "a GramStep", self.gram)

    def check(self, names: Sequence[str], sweep: Sweep) -> None:
        dense = {layer.weight_name for layer in sweep.layers}
        others = [name for name in names if not name.endswith("bias") and name not in dense]
        if others:
            invalid_value("GramRule", "dense layers only", f"other parameters: {others}", "Use RelativeStep().")
        needed = dense | {layer.bias_name for layer in sweep.layers if layer.bias_name is not None}
        if frozen := sorted(needed - set(names)):
            invalid_value("GramRule", "trained dense layers", f"frozen parameters: {frozen}", "Use RelativeStep().")

    def init(self, names: Sequence[str], point: Point, sweep: Sweep) -> tuple[GramState, ...]:
        values = dict(zip(names, point[BLOCK], strict=True))
        return tuple(self.gram.init(values[name]) for name in _stacks(sweep.layers))

    def move(
        self,
        names: Sequence[str],
        point: Point,
        sweep: Sweep,
        state: tuple[GramState, ...],
        count: int,
        share: float,
        reuse: bool = False,
    ) -> tuple[Point, tuple[GramState, ...]]:
        values = dict(zip(names, point[BLOCK], strict=True))
        gram = replace(self.gram, step=self.gram.step * max(share, 1e-6)) if self.anneal else self.gram
        states = []
        for memory, (name, layers) in zip(state, _stacks(sweep.layers).items(), strict=True):
            bias_name = layers[0].bias_name
            inputs = torch.stack([each.inputs for each in layers])
            residual = torch.stack([each.residual for each in layers])
            bias, share_of_batch = None if bias_name is None else values[bias_name], sweep.share
            if share_of_batch is not None and few_samples(share_of_batch, inputs.shape[2]):
                inputs, residual = share_of_batch.gather(inputs, 1), share_of_batch.gather(residual, 1)
                share_of_batch = None
            update = gram.update(memory, values[name], bias, inputs, residual, share_of_batch)
            if not update.ok:
                raise StepFailure(Result.NOT_POSITIVE_DEFINITE, f"the Gram matrix of {name!r}")
            values[name] = values[name] + update.weight
            if bias_name is not None and update.bias is not None:
                values[bias_name] = values[bias_name] + update.bias
            states.append(update.state)
        return Point({BLOCK: [values[name] for name in names]}), tuple(states)

    def size(self, state: tuple[GramState, ...], count: int) -> float:
        return self.gram.step


def _stacks(layers: tuple[LayerStep, ...]) -> dict[str, list[LayerStep]]:
    """Layers that share one stacked parameter, by its name."""
    found: dict[str, list[LayerStep]] = {}
    for layer in sorted(layers, key=lambda each: each.index):
        found.setdefault(layer.weight_name, []).append(layer)
    return found
