"""One training, watched: any method step by step, with measurements on the way and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from torchlift.core.errors import DataError, message
from torchlift.core.solution import StepFailure
from torchlift.io import Checkpoints
from torchlift.report.records import Series
from torchlift.training import TrainStep

Row = dict[str, Any]
"""What was measured after a step: "step", "seconds" and "processor" seconds spent on steps so far, and whatever the
experiment measures. Processor seconds mean something on a machine that others use too."""

#: Seconds between checkpoints.
CHECKPOINT = 60.0


@dataclass(frozen=True)
class Trajectory:
    """The rows of one training, and why it ended early, if it did."""

    rows: Sequence[Row]
    failure: str = ""

    def column(self, name: str) -> list[float]:
        return [row[name] for row in self.rows]

    @property
    def steps(self) -> list[int]:
        return [row["step"] for row in self.rows]

    @property
    def last(self) -> Row:
        return self.rows[-1]


def follow(
    method: TrainStep,
    measure: Callable[[], Row],
    *,
    every: int,
    steps: int | None = None,
    time_limit: float = math.inf,
    folder: Path | None = None,
    between: float = CHECKPOINT,
) -> Trajectory:
    """Step and measure, going on from the last checkpoint in `folder` where there is one.

    Arguments:
        method: at its start.
        measure: called when the network holds the parameters to use.
        every: steps between measurements; the start and the end are measured too.
        steps: in all; None for as many as the time allows.
        time_limit: seconds for the steps, without measurements.
        folder: for checkpoints; None for none.
        between: seconds between them.
    """
    checkpoints = None if folder is None else Checkpoints(folder, keep=1, kind="trajectory")
    rows: list[Row] = []
    seconds, processor, failure = 0.0, 0.0, ""
    if checkpoints is not None and checkpoints.steps():
        saved_run = checkpoints.load()
        method.load_state_dict((dict(saved_run.tensors), saved_run.record["numbers"]))
        rows = list(saved_run.record["rows"])
        if steps is not None and method.count > steps:
            hint = f"Ask for at least {method.count} steps, or work in another folder."
            raise DataError(message(str(folder), f"a training of at most {steps} steps", method.count, hint))
        seconds, processor = (float(saved_run.record[name]) for name in ("seconds", "processor"))
    else:
        rows.append({"step": 0, "seconds": 0.0, "processor": 0.0, **measure()})
    saved = time.monotonic()

    def save(checkpoints: Checkpoints) -> None:
        tensors, numbers = method.state_dict()
        record = {"numbers": numbers, "rows": rows, "seconds": seconds, "processor": processor}
        checkpoints.save(method.count, tensors, record)

    while (steps is None or method.count < steps) and seconds < time_limit:
        begin, busy = time.perf_counter(), time.process_time()
        try:
            method.step()
        except StepFailure as stop:
            failure = f"step {method.count + 1}: {stop.detail}"
            break
        seconds, processor = seconds + time.perf_counter() - begin, processor + time.process_time() - busy
        if method.count % every == 0 or method.count == steps or seconds >= time_limit:
            with method.evaluating():
                rows.append({"step": method.count, "seconds": seconds, "processor": processor, **measure()})
        if checkpoints is not None and time.monotonic() - saved >= between:
            save(checkpoints)
            saved = time.monotonic()
    if checkpoints is not None and not failure and method.count not in checkpoints.steps():
        save(checkpoints)  # more steps may be asked for later
    method.publish()
    return Trajectory(rows, failure)


def series(label: str, x: Sequence[float], y: Sequence[float], *, dashed: bool = False, group: str = "") -> Series:
    """A curve; what is not finite is a gap."""
    return Series(label, list(x), [value if math.isfinite(value) else None for value in y], dashed=dashed, group=group)


def both_splits(label: str, trajectory: Trajectory, measure: str) -> list[Series]:
    """What was measured of training images, dashed, and of validation images, in one colour."""
    return [
        series(
            f"{label}, {split}", trajectory.steps, trajectory.column(f"{split} {measure}"), dashed=split == "training",
            group=label,
        )
        for split in ("training", "validation")
    ]  # fmt: skip


def part_of(tensors: Mapping[str, Tensor], trajectory: Trajectory, **record: Any) -> tuple[Mapping[str, Tensor], Row]:
    """A part of an experiment made of a trajectory, tensors and further JSON values."""
    return tensors, {"rows": list(trajectory.rows), "failure": trajectory.failure, **record}


def trajectory_of(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory in a part that `part_of` made."""
    return Trajectory(record["rows"], record["failure"])
