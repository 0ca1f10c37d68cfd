"""The loop of training: steps, evaluations, checkpoints, and every way to stop."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.progress import Progress
from torchlift.core.solution import Result, StepFailure
from torchlift.data import Batches
from torchlift.functions.losses import Loss
from torchlift.io import Checkpoint, Checkpoints, Stored
from torchlift.io.folders import writing
from torchlift.parallel import Mesh, agreed_clock, of_first, sync
from torchlift.training.history import History
from torchlift.training.metrics import Metric, evaluate
from torchlift.training.modules import in_mode
from torchlift.training.options import RunOptions
from torchlift.training.phase import LEAST_STEPS, Phase
from torchlift.training.plan import PlannedPhase
from torchlift.training.resumed import of_this_version
from torchlift.training.safeguard import Safeguard, judged_samples
from torchlift.training.starts.choose import Choice
from torchlift.training.starts.short_runs import chooses, start_weights
from torchlift.training.step import TrainStep, load_snapshot, snapshot, tensors_of, under
from torchlift.training.tensorboard import TensorBoardWriter

#: A run without validation data goes back to better weights only after at least so many steps.
JUDGED_STEPS = 10

#: And is compared with a constant answer after at least so many.
COMPARED_STEPS = 100

Callback = Callable[[Mapping[str, Any]], bool | None]


@dataclass(frozen=True)
class Settings:
    """What all phases share.

    Arguments:
        loss, metrics: what is evaluated.
        monitor: the metric that chooses the best parameters.
        validation: data for evaluations; without it the training data's own loss is recorded.
        options: when to evaluate, to save and to stop.
        seed: of batches and random starts.
        callback: called with each row; stops training by returning True.
    """

    loss: Loss
    metrics: tuple[Metric, ...]
    monitor: Metric
    validation: Batches | None
    options: RunOptions
    seed: int
    callback: Callback | None


@dataclass
class TrainState:
    """Where a run stands: what a checkpoint keeps beside tensors.

    Arguments:
        phase: the current one, from 0.
        ended: the code of why that phase has ended; None while it goes on.
        steps, seconds: in all phases.
        phase_seconds: in this phase.
        rows: of the history.
        losses, counted: sum and number of the losses of steps since the last evaluation.
        stale: evaluations since the last improvement.
        previous: the loss that was monitored at the last evaluation.
        best: the best value of the monitored metric, that before the first step included.
        start: which weights the run started from, and why.
        start_loss: without validation data, the loss of some training samples at the start.
        judged: how many those are.
    """

    phase: int = 0
    ended: str | None = None
    steps: int = 0
    seconds: float = 0.0
    phase_seconds: float = 0.0
    rows: int = 0
    losses: float = 0.0
    counted: int = 0
    stale: int = 0
    previous: float = math.nan
    best: dict[str, Any] = field(default_factory=dict)
    start: str | None = None
    start_loss: float = math.nan
    judged: int = 0


class _Allowance:
    """The steps and the seconds that a phase may take, and what it has taken of them.

    Arguments:
        planned: the phase.
        state: where its run stands; the seconds in it are kept here.
        clock: the same on all processes.
    """

    def __init__(self, planned: PlannedPhase, state: TrainState, clock: Callable[[], float]) -> None:
        self.steps, self.seconds = planned.total_steps, planned.phase.time_limit
        self.per_epoch = planned.per_epoch or LEAST_STEPS  # of a stream, whose length nobody knows
        self._state, self._clock = state, clock
        self._began, self._earlier = clock() - state.phase_seconds, state.seconds - state.phase_seconds

    def left(self, count: int) -> float:
        """The share that is left before step `count`, from 1 down to 0."""
        used = 0.0 if self.steps is None else count / self.steps
        if self.seconds is not None:
            used = max(used, (self._clock() - self._began) / self.seconds)
        return max(0.0, 1.0 - used)

    def take_time(self, now: float) -> None:
        self._state.phase_seconds = now - self._began
        self._state.seconds = self._earlier + self._state.phase_seconds

    def used_up(self, count: int) -> Result | None:
        """Which of the two is used up after so many steps."""
        if self.steps is not None and count >= self.steps:
            return Result.MAX_STEPS
        if self.seconds is not None and self._state.phase_seconds >= self.seconds:
            return Result.TIME_LIMIT
        return None


class Run:
    """One call of `train`, over all its phases.

    Arguments:
        phases: of one network, which is changed in place.
        configuration: what a checkpoint must agree with to be resumed.
        checkpoints: where to save; None for nowhere.
        mesh: the processes that train together; one by default.
    """

    def __init__(
        self,
        phases: Sequence[PlannedPhase],
        settings: Settings,
        history: History,
        checkpoints: Checkpoints | None,
        configuration: Mapping[str, Any],
        progress: Progress,
        writer: TensorBoardWriter | None = None,
        clock: Callable[[], float] = time.monotonic,
        mesh: Mesh | None = None,
    ) -> None:
        self.mesh = Mesh() if mesh is None else mesh
        self.network: nn.Module = phases[0].network
        self.phases, self.settings, self.history = phases, settings, history
        self.checkpoints, self.configuration, self.progress, self.writer = checkpoints, configuration, progress, writer
        self._alone = self.mesh.size == 1
        self.clock, self._local_clock = agreed_clock(self.mesh, clock), clock
        self.state = TrainState()
        self.best: dict[str, Tensor] = {}
        self._good = self._latest = snapshot(self.network)  # to return after a failure; to follow them if all is well
        self._safeguard = Safeguard(
            phases[0].batches, settings.validation, settings.loss, settings.metrics, settings.monitor, self.mesh,
            may_hand_on=chooses(phases[0].phase),
        )  # fmt: skip
        self.unmoved, self.began = True, 0
        """Whether every evaluation so far saw the parameters of the start, bit for bit."""
        self.fallback = ""
        """What was returned instead of the trained weights, in a sentence."""
        self.start_metrics: dict[str, float] = {}
        """Metrics of the weights before the first step on validation data; nothing for a run that was resumed."""
        self.resumed: Checkpoint | None = None
        self._stop_asked = False
        self.signal: int | None = None
        """The signal that asked to stop."""

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint of a run with the same configuration."""
        self.resumed = checkpoint
        with of_this_version(checkpoint.path):
            self.state = TrainState(**checkpoint.record["state"])
            self.best = under(checkpoint.tensors, "best.")
            self._safeguard.start = under(checkpoint.tensors, "start.")
            self._safeguard.start_value = self.state.start_loss
            self._safeguard.samples = self.state.judged
            load_snapshot(self.network, under(checkpoint.tensors, "network."))
            if self.state.phase == len(self.phases):  # a finished run that may have been made longer
                self.state.phase -= 1

    def run(self) -> tuple[Result, str]:
        """All phases that are left; returns why it ended."""
        self.began = self.state.steps
        result, detail = Result.MAX_STEPS, "after all steps"
        with _graceful(self._ask_to_stop), torch.random.fork_rng(devices=()), in_mode(self.network, True):
            torch.manual_seed(self.settings.seed)
            while self.state.phase < len(self.phases):
                result, detail = self._phase(self.phases[self.state.phase])
                if result in (Result.INTERRUPTED, Result.STOPPED) or result.failed:
                    break
                self.state.phase, self.state.ended = self.state.phase + 1, None
                self.state.phase_seconds, self.state.stale, self.state.previous = 0.0, 0, math.nan
        if self.best or result.failed:
            load_snapshot(self.network, self.best or self._good)
        if result is not Result.INTERRUPTED:
            self.fallback = self._safeguard.settle(self.network, self._judged)
            if self.state.steps >= COMPARED_STEPS and not result.failed:
                beside = self._safeguard.beside_constant(self.network)
                self.fallback = " ".join(sentence for sentence in (self.fallback, beside) if sentence)
            if self.state.best and self._safeguard.handed_on is not None:
                self.state.best = {**self.state.best, "value": self._safeguard.handed_on, "step": 0}
        return result, detail

    def _phase(self, planned: PlannedPhase) -> tuple[Result, str]:
        phase, state = planned.phase, self.state
        allowance = _Allowance(planned, state, self.clock)
        saved = self.clock()
        self._choose_start(planned)
        try:
            method = planned.begin(allowance.left)
        except StepFailure as failure:
            return failure.result, f"at the start of phase {phase.title!r}: {failure.detail}"
        self._restore(method)
        state.ended = self._ended(allowance.used_up(method.count))
        every = self.settings.options.evaluate_every or allowance.per_epoch
        first = state.steps - method.count
        self.progress.start(phase.title, planned.total_steps, phase.time_limit)
        while state.ended is None:
            try:
                loss = method.step()
            except StepFailure as failure:
                if failure.result is not Result.TIME_LIMIT:
                    return failure.result, f"in step {state.steps + 1} of phase {phase.title!r}: {failure.detail}"
                allowance.take_time(self.clock())  # within a long step, which has changed nothing
                state.ended = failure.result.code
                if method.count % every:  # the steps since the last evaluation count
                    self._evaluate(phase, method, method.count / allowance.per_epoch)
                self._save(method)
                method.publish()
                return failure.result, f"after step {state.steps}, within the next one"
            state.steps = first + method.count
            now, stop_asked = self._sync()
            allowance.take_time(now)
            self._count(loss)
            shown = None if math.isnan(loss) else loss
            self.progress.update(method.count, samples=method.count * planned.batches.batch_size, loss=shown)
            reason = allowance.used_up(method.count)
            if reason is not None or method.count % every == 0:
                reason = self._evaluate(phase, method, method.count / allowance.per_epoch) or reason
            if reason is None and stop_asked():
                reason = Result.INTERRUPTED
            if reason is not None and reason.failed:
                return reason, f"after step {state.steps}"  # the last checkpoint is a better one
            if reason in (Result.CONVERGED, Result.MAX_STEPS, Result.TIME_LIMIT):
                state.ended = reason.code
            if reason is not None or now - saved >= self.settings.options.checkpoint_every:
                self._save(method)
                saved = self.clock()
            if reason in (Result.INTERRUPTED, Result.STOPPED):
                method.publish()
                return reason, f"after step {state.steps}"
        method.publish()
        return Result[state.ended.upper()], f"after step {state.steps}"

    def _choose_start(self, planned: PlannedPhase) -> None:
        """Judge the given weights before the first step of all, and set those that a phase begins with."""
        state = self.state
        if state.steps == 0:
            state.judged = self._safeguard.samples = judged_samples(planned.batches, planned.total_steps)
            self._judge_start()
        keeps = state.phase > 0 and planned.phase.weights is None  # a later phase goes on with the weights it finds
        if self.resumed is None and not keeps:  # those of a resumed one are in the checkpoint
            self._note_start(planned.phase, start_weights(planned))

    def _ended(self, used_up: Result | None) -> str | None:
        """Why a resumed phase has ended; None where there is more to do, also because it was made longer."""
        if used_up is not None:  # perhaps stopped after its last step
            return used_up.code
        return self.state.ended if self.state.ended == Result.CONVERGED.code else None

    def _sync(self) -> tuple[float, Callable[[], bool]]:
        """The time, and whether this or any other process was asked to stop."""
        if self._alone:
            return self._local_clock(), lambda: self._stop_asked
        return sync(self.mesh, self._local_clock, self._stop_asked)

    def _count(self, loss: float) -> None:
        """Add the loss of a step to the mean of the next row."""
        if math.isfinite(loss):
            self.state.losses += loss
            self.state.counted += 1

    def _restore(self, method: TrainStep) -> None:
        """What the method remembers, where the checkpoint is one of this phase."""
        checkpoint, self.resumed = self.resumed, None
        if checkpoint is None:
            return
        numbers = checkpoint.record["numbers"]
        with of_this_version(checkpoint.path):
            saved = checkpoint.tensors
            tensors = saved.under("method.") if isinstance(saved, Stored) else under(saved, "method.")
            method.load_state_dict((tensors, numbers))
            torch.set_rng_state(checkpoint.tensors["random"])

    @property
    def _judged(self) -> bool:
        """Whether the trained weights may be replaced by better ones: not after a few steps without validation data,
        of which somebody may make many in turn, each from where the last one ended; nor where the loss alone is not
        what was asked for."""
        options = self.settings.options
        if any(getattr(options, name, None) for name in ("parameter_regularisers", "state_regularisers")):
            return False
        return self._safeguard.validation is not None or self.state.steps >= JUDGED_STEPS

    def _judge_start(self) -> None:
        """Parameters before the first step are the best so far: training that only does harm gives them back."""
        if self.settings.validation is not None:
            self.start_metrics = self._validate(self.settings.validation)
            self._compare(self.start_metrics)
            self.state.stale = 0
        self._safeguard.judge(self.network)
        self.state.start_loss = self._safeguard.start_value

    def _note_start(self, phase: Phase, choice: Choice) -> None:
        """A row of the starts that were compared; changed weights are judged like the given ones."""
        if choice.losses:
            least = min(choice.losses.values())
            row = {"kind": "start", "phase": phase.title, "epoch": 0.0, "step": self.state.steps, "loss": least}
            self._record({**row, "seconds": self.state.seconds, "metrics": choice.losses})
        if choice.changed and self.state.steps == 0:
            self.state.start = choice.sentence
            self._good = self._latest = snapshot(self.network)
            self._judge_start()
        elif choice.losses:
            self.state.start = choice.sentence

    def _validate(self, validation: Batches) -> dict[str, float]:
        settings, data = self.settings, validation.ordered(1000)
        return of_first(self.mesh, evaluate(self.network, data, settings.loss, settings.metrics))

    def _evaluate(self, phase: Phase, method: TrainStep, epoch: float) -> Result | None:
        """Record the losses since the last evaluation and the quality on validation data; returns a reason to stop."""
        looked_at = self.settings.validation is not None or self.settings.callback is not None
        with method.evaluating() if looked_at else method.recording():
            return self._judge(phase, method, epoch)

    def _judge(self, phase: Phase, method: TrainStep, epoch: float) -> Result | None:
        """With the parameters to judge in the network."""
        state, settings = self.state, self.settings
        mean_loss, lifted = method.mean_loss(), method.objective_value()
        row = {
            "kind": "train", "phase": phase.title, "epoch": epoch, "step": state.steps, "seconds": state.seconds,
            "loss": state.losses / state.counted if state.counted else mean_loss,
            "objective": None if lifted is None else lifted[0],
            "gap": None if lifted is None else lifted[1],
            "learning_rate": method.learning_rate,
        }  # fmt: skip
        state.losses, state.counted = 0.0, 0
        self._record(row)
        monitored = row["loss"] if lifted is None else lifted[0]
        shown = {"objective": row["objective"], "gap": row["gap"]}
        stop = settings.callback is not None and bool(settings.callback(row))
        if settings.validation is not None:
            scores = self._validate(settings.validation)
            row = row | {
                "kind": "validation",
                "loss": scores["loss"],
                "objective": None,
                "gap": None,
                "metrics": scores,
            }
            self._record(row)
            self._compare(scores)
            monitored = scores["loss"]
            shown |= {metric.name: scores[metric.name] for metric in settings.metrics if metric.name != "loss"}
            stop = stop or (settings.callback is not None and bool(settings.callback(row)))
        self.progress.update(method.count, **shown)
        if self.mesh.any(not self._is_finite(method, monitored)):
            return Result.NOT_FINITE
        if self.mesh.any(stop):
            return Result.STOPPED
        return Result.CONVERGED if self._converged(monitored) else None

    def _is_finite(self, method: TrainStep, monitored: float | None) -> bool:
        """True if the loss and all parameters are finite; keeps a copy as the fallback.

        The losses of steps are those before each step: without validation data they speak for the parameters of the
        evaluation before.
        """
        now = method.snapshot(self.network)
        if not (monitored is None or math.isfinite(monitored)) or not all(map(_all_finite, now.values())):
            return False
        self.unmoved = self.unmoved and all(torch.equal(now[name], old) for name, old in self._latest.items())
        self._good = self._latest if self.settings.validation is None else now
        self._latest = now
        return True

    def _record(self, row: dict[str, Any]) -> None:
        with self._writing():
            self.history.append(row)
        self.state.rows = len(self.history)
        if self.writer is not None:
            self.writer.write(self.history[-1])

    def _writing(self) -> AbstractContextManager[None]:
        """A full disk is reported with the name of the history's file."""
        return nullcontext() if self.history.path is None else writing(self.history.path)

    def _compare(self, scores: Mapping[str, float]) -> None:
        """Keep the parameters if they are the best so far."""
        metric = self.settings.monitor
        value, before = scores[metric.name], self.state.best.get("value", math.nan)
        better = value > before if metric.larger_is_better else value < before
        if better or (math.isnan(before) and math.isfinite(value)):
            self.state.best = {"metric": metric.name, "value": value, "step": self.state.steps, "unit": metric.unit}
            self.best = snapshot(self.network)
            self.state.stale = 0
        else:
            self.state.stale += 1

    def _converged(self, monitored: float | None) -> bool:
        """Whether nothing improves any more."""
        options, state = self.settings.options, self.state
        if options.patience is not None and state.stale >= options.patience:
            return True
        before, state.previous = state.previous, math.nan if monitored is None else monitored
        if options.tolerance is None or monitored is None or math.isnan(before):
            return False
        return abs(before - monitored) <= options.tolerance * max(abs(before), abs(monitored))

    def _save(self, method: TrainStep) -> None:
        if self.checkpoints is None:
            return
        with self._writing():
            self.history.sync()
        method_tensors, numbers = method.state_dict()
        tensors = {"random": torch.get_rng_state()}  # first, so that of many processes rank 0 writes it
        tensors |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        tensors |= {f"start.{name}": tensor for name, tensor in self._safeguard.start.items()}
        tensors |= {f"network.{name}": tensor.detach() for name, tensor in tensors_of(self.network).items()}
        tensors |= {f"method.{name}": tensor for name, tensor in method_tensors.items()}
        record = {"state": vars(self.state), "configuration": dict(self.configuration), "numbers": numbers}
        self.checkpoints.save(self.state.steps, tensors, record)

    def _ask_to_stop(self, number: int) -> None:
        self._stop_asked, self.signal = True, number
        self.progress.message("Stopping after this step; Ctrl-C again stops at once.")

    def pass_on_signal(self) -> None:
        """End as whoever sent SIGTERM expects, now that everything is saved."""
        if self.signal == signal.SIGTERM:
            os.kill(os.getpid(), signal.SIGTERM)


def _all_finite(tensor: Tensor) -> bool:
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return math.isfinite(float(tensor.sum())) or bool(tensor.isfinite().all())  # the sum is read in one pass


@contextmanager
def _graceful(ask: Callable[[int], None]) -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks to stop after the current step, a second one acts at once."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    if None in before.values() or threading.current_thread() is not threading.main_thread():
        yield  # nobody else may set handlers, and one that is not Python's cannot be given back
        return

    def handler(number: int, frame: object) -> None:
        signal.signal(number, before[signal.Signals(number)])
        ask(number)

    for number in numbers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, before[number])
