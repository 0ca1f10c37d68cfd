"""The loop of training: steps, evaluations, checkpoints, and every way to stop."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchlift.checkpoint import Checkpoint, Checkpoints
from torchlift.core.solution import Result, StepFailure
from torchlift.data import Batches
from torchlift.losses import Loss
from torchlift.networks import Network
from torchlift.training.history import History
from torchlift.training.methods import Method, load_parameters, parameters_of
from torchlift.training.metrics import Metric, evaluate
from torchlift.training.phase import Phase
from torchlift.training.progress import Progress
from torchlift.training.tensorboard import TensorBoardWriter

Callback = Callable[[Mapping[str, Any]], bool | None]


@dataclass(frozen=True)
class Settings:
    """What all phases share.

    Arguments:
        loss, metrics: the first metric beside the loss is monitored.
        validation: data for evaluations; without it the training data's own loss is recorded.
        evaluate_every: steps between evaluations; an epoch by default.
        patience: evaluations without improvement after which training has converged; None for never.
        tolerance: relative change of the loss between evaluations at which it has converged; None for never.
        checkpoint_every: seconds between checkpoints; 0 for one after every step.
        seed: of batches and random starts.
        callback: called with each row; stops training by returning True.
    """

    loss: Loss
    metrics: tuple[Metric, ...]
    validation: Batches | None
    evaluate_every: int | None
    patience: int | None
    tolerance: float | None
    checkpoint_every: float
    seed: int
    callback: Callback | None


@dataclass
class Place:
    """Where a run stands: what a checkpoint keeps beside tensors."""

    phase: int = 0
    steps: int = 0
    seconds: float = 0.0
    phase_seconds: float = 0.0
    rows: int = 0
    stale: int = 0
    previous: float = math.nan
    best: dict[str, Any] = field(default_factory=dict)


class Run:
    """One call of `train`, over all its phases.

    Args:
        network: is changed in place.
        phases: each with its data and the function that makes its method, given a budget.
        configuration: what a checkpoint must agree with to be resumed.
    """

    def __init__(
        self,
        network: Network,
        phases: Sequence[tuple[Phase, Batches, Callable[[Callable[[int], float]], Method]]],
        settings: Settings,
        history: History,
        checkpoints: Checkpoints | None,
        configuration: Mapping[str, Any],
        progress: Progress,
        writer: TensorBoardWriter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.network, self.phases, self.settings, self.history = network, phases, settings, history
        self.checkpoints, self.configuration, self.progress, self.writer = checkpoints, configuration, progress, writer
        self.clock = clock
        self.place = Place()
        self.best: dict[str, Tensor] = {}
        self.resumed: Checkpoint | None = None
        self._stop_asked = False

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of a run with the same configuration."""
        self.resumed = checkpoint
        self.place = Place(**checkpoint.record["place"])
        self.best = _named(checkpoint.tensors, "best.")
        load_parameters(self.network, _named(checkpoint.tensors, "network."))

    def run(self) -> tuple[Result, str]:
        """All phases that are left; returns why it ended."""
        result, detail = Result.MAX_STEPS, "after all steps"
        with _graceful(self._ask_to_stop):
            while self.place.phase < len(self.phases):
                result, detail = self._phase(*self.phases[self.place.phase])
                if result in (Result.INTERRUPTED, Result.STOPPED) or result.failed:
                    break
                self.place.phase += 1
                self.place.phase_seconds, self.place.stale, self.place.previous = 0.0, 0, math.nan
        if self.best:
            load_parameters(self.network, self.best)
        return result, detail

    def _phase(
        self, phase: Phase, batches: Batches, make: Callable[[Callable[[int], float]], Method]
    ) -> tuple[Result, str]:
        place = self.place
        per_epoch = 1 if phase.full else batches.per_epoch
        total = phase.total_steps(per_epoch)
        begin, saved = self.clock() - place.phase_seconds, self.clock()
        earlier = place.seconds - place.phase_seconds

        def budget(count: int) -> float:
            used = 0.0 if total is None else count / total
            if phase.time_limit is not None:
                used = max(used, (self.clock() - begin) / phase.time_limit)
            return max(0.0, 1.0 - used)

        try:
            method = make(budget)
        except StepFailure as failure:
            return failure.result, f"at the start of phase {phase.title!r}: {failure.detail}"
        self._restore(method)
        every = self.settings.evaluate_every or per_epoch
        first = place.steps - method.count
        losses: list[float] = []
        self.progress.start(phase.title, total, phase.time_limit)
        while total is None or method.count < total:
            try:
                losses.append(method.step())
            except StepFailure as failure:
                return failure.result, f"in step {place.steps + 1} of phase {phase.title!r}: {failure.detail}"
            place.steps = first + method.count
            place.phase_seconds = self.clock() - begin
            place.seconds = earlier + place.phase_seconds
            out_of_time = phase.time_limit is not None and place.phase_seconds >= phase.time_limit
            last = method.count == total or out_of_time or self._stop_asked
            samples = place.steps * batches.batch_size
            self.progress.update(method.count, samples=samples, loss=losses[-1])
            verdict: Result | None = None
            if last or method.count % every == 0:
                verdict = self._evaluate(phase, method, losses, method.count / per_epoch)
                losses = []
            if self._stop_asked:
                verdict = Result.INTERRUPTED
            elif verdict is None and out_of_time:
                verdict = Result.TIME_LIMIT
            if verdict is not None or last or self.clock() - saved >= self.settings.checkpoint_every:
                self._save(method)
                saved = self.clock()
            if verdict is not None:
                return verdict, f"after step {place.steps}"
        return Result.MAX_STEPS, f"after step {place.steps}"

    def _restore(self, method: Method) -> None:
        """What the method remembers, where the checkpoint is one of this phase."""
        checkpoint, self.resumed = self.resumed, None
        if checkpoint is None:
            return
        method.restore((_named(checkpoint.tensors, "method."), checkpoint.record["numbers"]))
        torch.set_rng_state(checkpoint.tensors["random"])

    def _evaluate(self, phase: Phase, method: Method, losses: list[float], epoch: float) -> Result | None:
        """Record the losses since the last evaluation and the quality on validation data; returns a reason to stop."""
        place, settings = self.place, self.settings
        method.publish()
        lifted = method.objective_value()
        known = [loss for loss in losses if math.isfinite(loss)]
        row = {
            "kind": "train", "phase": phase.title, "epoch": epoch, "step": place.steps, "seconds": place.seconds,
            "loss": sum(known) / len(known) if known else None,
            "objective": None if lifted is None else lifted[0],
            "gap": None if lifted is None else lifted[1],
            "learning_rate": method.learning_rate,
        }  # fmt: skip
        self._note(row)
        watched = row["objective"] if row["loss"] is None else row["loss"]
        shown = {"objective": row["objective"], "gap": row["gap"]}
        stop = settings.callback is not None and bool(settings.callback(row))
        if settings.validation is not None:
            found = evaluate(self.network, settings.validation.ordered(1000), settings.loss, settings.metrics)
            row = {**row, "kind": "validation", "loss": found["loss"], "objective": None, "gap": None, "metrics": found}
            self._note(row)
            self._compare(found)
            watched = found["loss"]
            shown |= {metric.name: found[metric.name] for metric in settings.metrics if metric.name != "loss"}
            stop = stop or (settings.callback is not None and bool(settings.callback(row)))
        self.progress.update(method.count, **shown)
        if watched is not None and not math.isfinite(watched):
            return Result.NOT_FINITE
        if stop:
            return Result.STOPPED
        return Result.CONVERGED if self._settled(watched) else None

    def _note(self, row: dict[str, Any]) -> None:
        self.history.append(row)
        self.place.rows = len(self.history)
        if self.writer is not None:
            self.writer.write(self.history[-1])

    def _compare(self, found: Mapping[str, float]) -> None:
        """Keep the parameters if they are the best so far."""
        metric = self.settings.metrics[-1] if len(self.settings.metrics) == 1 else self.settings.metrics[1]
        value, before = found[metric.name], self.place.best.get("value", math.nan)
        better = value > before if metric.larger_is_better else value < before
        if better or (math.isnan(before) and math.isfinite(value)):
            self.place.best = {"metric": metric.name, "value": value, "step": self.place.steps, "unit": metric.unit}
            self.best = parameters_of(self.network)
            self.place.stale = 0
        else:
            self.place.stale += 1

    def _settled(self, watched: float | None) -> bool:
        """Whether nothing improves any more."""
        settings, place = self.settings, self.place
        if settings.patience is not None and place.stale >= settings.patience:
            return True
        before, place.previous = place.previous, math.nan if watched is None else watched
        if settings.tolerance is None or watched is None or math.isnan(before):
            return False
        return abs(before - watched) <= settings.tolerance * max(abs(before), abs(watched))

    def _save(self, method: Method) -> None:
        if self.checkpoints is None:
            return
        self.history.sync()
        tensors, numbers = method.parts()
        everything = {f"method.{name}": tensor for name, tensor in tensors.items()}
        everything |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        everything |= {f"network.{name}": p.detach() for name, p in self.network.named_parameters()}
        everything["random"] = torch.get_rng_state()
        record = {"place": vars(self.place), "numbers": numbers, "configuration": dict(self.configuration)}
        self.checkpoints.save(self.place.steps, everything, record)

    def _ask_to_stop(self) -> None:
        self._stop_asked = True
        self.progress.message("Stopping after this step; Ctrl-C again stops at once.")


def _named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@contextmanager
def _graceful(ask: Callable[[], None]) -> Iterator[None]:
    """The first Ctrl-C asks to stop after the current step, a second one interrupts at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handler(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        ask()

    signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
