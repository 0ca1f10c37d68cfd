"""Training gives back nothing worse than what it was given: neither than the start nor than the input itself."""

from __future__ import annotations

import copy
import math
from functools import cached_property

import torch
from torch import Tensor, nn

from torchlift.data import Batch, Batches, TensorBatches
from torchlift.data.base import select_samples
from torchlift.data.recut import join
from torchlift.functions.losses import Loss
from torchlift.parallel import Mesh, of_first
from torchlift.training.constant_answer import constant_loss
from torchlift.training.metrics import Metric, evaluate
from torchlift.training.starts.chains import hand_on
from torchlift.training.step import load_snapshot, snapshot

#: Training samples by which weights are judged where there are no validation data, at least and at most, and the part
#: of the samples of all steps that they may be: a pass over them takes a third of as many samples of steps.
FEWEST, MOST, PART = 16, 100, 0.03
#: A constant answer is nearly as good where the network's loss is more than this part of its own.
NEARLY = 0.9


class Safeguard:
    """Compares networks by the monitored metric on validation data, or by the loss on some training samples.

    Arguments:
        batches: training data.
        validation: or None.
        loss, metrics, monitor: what is evaluated, and which of it counts.
        mesh: the processes that decide alike.
        may_hand_on: whether a network may be set to hand its input on; else that is only reported.
    """

    def __init__(
        self,
        batches: Batches,
        validation: Batches | None,
        loss: Loss,
        metrics: tuple[Metric, ...],
        monitor: Metric,
        mesh: Mesh,
        may_hand_on: bool = True,
    ) -> None:
        self.batches, self.validation, self.loss, self.mesh = batches, validation, loss, mesh
        self.metrics = metrics if validation is not None else ()
        self.monitor = monitor if validation is not None else Metric("loss", loss.value)
        self.samples = MOST
        """Training samples that count; set before the first is looked at."""
        self.start: dict[str, Tensor] = {}
        self.start_value = math.nan
        self.may_hand_on = may_hand_on
        self.handed_on: float | None = None
        """The metric of a network that was set to hand its input on."""

    def judge(self, network: nn.Module) -> None:
        """Keep a copy of these weights if they are better than the ones before; only without validation data."""
        if self.validation is None:
            value = self.value(network)
            if self.better(value, self.start_value):
                self.start, self.start_value = snapshot(network), value

    def better(self, value: float, than: float) -> bool:
        if math.isnan(than):
            return math.isfinite(value)
        return value > than if self.monitor.larger_is_better else value < than

    def value(self, network: nn.Module) -> float:
        data = iter([self._some]) if self.validation is None else self.validation.ordered(1000)
        return of_first(self.mesh, evaluate(network, data, self.loss, self.metrics))[self.monitor.name]

    def settle(self, network: nn.Module, may_change: bool = True) -> str:
        """Put the best weights there are into the network, if it may change; returns a sentence where others are better
        than the trained ones."""
        has_start = may_change and bool(self.start)
        if not has_start and not self._restores:
            return ""  # nothing to compare with: a pass over the validation data is saved
        value, sentence = self.value(network), ""
        if has_start and (math.isnan(value) or self.better(self.start_value, value)):
            load_snapshot(network, self.start)
            value, sentence = self.start_value, "Training ended worse than it began: these are the first weights."
        if not self._restores:
            return sentence
        input_value = self.value(_HandOn())
        if not self.better(input_value, value):
            return sentence
        unit = f" {self.monitor.unit}" if self.monitor.unit else ""
        compared = f"{self.monitor.name} {input_value:.4g}{unit} against {value:.4g}{unit}"
        candidate = copy.deepcopy(network)
        able = self.may_hand_on and hand_on(candidate, self._some)
        if able and may_change:
            handed = self.value(candidate)
            if self.better(handed, value):
                load_snapshot(network, snapshot(candidate))
                self.handed_on = handed
                return f"The input itself is a better answer than what training reached ({compared}): it is handed on."
        reason = ", and the network cannot hand it on" if self.may_hand_on and not able else ""
        return f"{sentence} The input itself is a better answer than the network's ({compared}){reason}.".strip()

    def beside_constant(self, network: nn.Module) -> str:
        """A sentence where a constant answer is nearly as good on the training data: nothing was learned."""
        found = evaluate(network, iter([self._some]), self.loss)["loss"]
        found, targets = of_first(self.mesh, {"loss": found})["loss"], self._some.x
        constant = constant_loss(self.loss, targets, targets)
        if not found > NEARLY * constant > 0:
            return ""
        how = "nearly as good" if found <= constant / NEARLY else "better"
        text = f"A constant answer is {how} on the training data (loss {constant:.4g} against {found:.4g}): "
        return f"{text}can outputs take the values of the targets, and do the inputs tell them?"

    @cached_property
    def _some(self) -> Batch:
        return first_samples(self.batches, self.samples)

    @property
    def _restores(self) -> bool:
        """Whether outputs are comparable with inputs, and the task is not to reproduce them."""
        y, x, _ = self._some
        return x.is_floating_point() and y.shape == x.shape and not torch.equal(y, x)


def judged_samples(batches: Batches, total: int | None) -> int:
    """Samples of the training data by which weights are judged in a run of so many steps; None where time ends it."""
    return MOST if total is None else min(MOST, max(FEWEST, int(PART * total * batches.batch_size)))


def first_samples(batches: Batches, count: int) -> Batch:
    """So many samples in the order of the first epoch; of data that are read no more than the first batch."""
    drawn = [batches.batch(0)]
    if isinstance(batches, TensorBatches):
        while sum(len(batch.y) for batch in drawn) < count and len(drawn) < batches.per_epoch:
            drawn.append(batches.batch(len(drawn)))
    return select_samples(join(drawn), slice(count))


class _HandOn(nn.Module):
    def forward(self, y: Tensor, context: object = None) -> Tensor:
        return y
