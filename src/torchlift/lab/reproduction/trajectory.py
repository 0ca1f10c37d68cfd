"""One training, watched: any method step by step, with measurements on the way and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from torchlift.core.solution import StepFailure
from torchlift.io import Checkpoints
from torchlift.report.records import Series
from torchlift.training import TrainStep

Row = dict[str, Any]
"""What was measured after a step: "step", "seconds" spent on steps so far, and whatever the item measures."""

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
    method: TrainStep, steps: int, every: int, measure: Callable[[], Row], folder: Path, between: float = CHECKPOINT
) -> Trajectory:
    """Step and measure, going on from the last checkpoint in `folder` where there is one.

    Args:
        method: at its start.
        steps: in all.
        every: steps between measurements; the start and the end are measured too.
        measure: called when the network holds the parameters to use.
        folder: for checkpoints.
        between: seconds between them.
    """
    checkpoints = Checkpoints(folder, keep=1, kind="trajectory")
    rows: list[Row] = []
    seconds, failure = 0.0, ""
    if checkpoints.steps():
        found = checkpoints.load()
        method.load_state_dict((dict(found.tensors), found.record["numbers"]))
        rows, seconds = list(found.record["rows"]), float(found.record["seconds"])
    else:
        rows.append({"step": 0, "seconds": 0.0, **measure()})
    saved = time.monotonic()
    while method.count < steps:
        begin = time.perf_counter()
        try:
            method.step()
        except StepFailure as stop:
            failure = f"step {method.count + 1}: {stop.detail}"
            break
        seconds += time.perf_counter() - begin
        if method.count % every == 0 or method.count == steps:
            with method.evaluating():
                rows.append({"step": method.count, "seconds": seconds, **measure()})
        if time.monotonic() - saved >= between:
            tensors, numbers = method.state_dict()
            checkpoints.save(method.count, tensors, {"numbers": numbers, "rows": rows, "seconds": seconds})
            saved = time.monotonic()
    method.publish()
    return Trajectory(rows, failure)


def series(label: str, x: Sequence[float], y: Sequence[float], *, dashed: bool = False, group: str = "") -> Series:
    """A curve; what is not finite is a gap."""
    return Series(label, list(x), [each if math.isfinite(each) else None for each in y], dashed=dashed, group=group)


def part_of(tensors: Mapping[str, Tensor], trajectory: Trajectory, **record: Any) -> tuple[Mapping[str, Tensor], Row]:
    """A part of an item made of a trajectory, tensors and further JSON values."""
    return tensors, {"rows": list(trajectory.rows), "failure": trajectory.failure, **record}


def trajectory_of(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory in a part that `part_of` made."""
    return Trajectory(record["rows"], record["failure"])
