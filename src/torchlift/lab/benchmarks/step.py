"""`torchlift bench step`: one training step of any module against fused Adam: time, start-up, gradients, files."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar, Literal

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F

import torchlift
from torchlift.cli.command import Command, Record
from torchlift.cli.tables import shown
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.data import as_batches
from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.lab.benchmarks.step_modules import CASES, StepCase
from torchlift.report.records import Table
from torchlift.sweeps import Perturbation, sweeping
from torchlift.training import SweepDescent, Work, train

#: Samples of the data that steps draw batches from.
SAMPLES = 1000
#: Seconds that the steps of one measurement take at least.
SECONDS = 0.4
#: Perturbation with which a sweep is compared with back-propagation, in double precision.
SMALL = 1e-5


Row = dict[str, Any]
"""Processor time of one case.

"plain": milliseconds of a step of back-propagation with fused Adam in a bare loop.
"ratio": of a step of `train` to it, the median over interleaved rounds; "low" and "high" its quartiles.
"goal": for the ratio, or None.
"start_up": milliseconds that `train` takes besides its steps, the comparison of starts included.
"difference": largest relative difference of the gradients of a sweep and of back-propagation for s → 0.
"""


@dataclass(frozen=True, kw_only=True)
class BenchStep(Command):
    """Time one step of `train` against back-propagation with fused Adam, for sixteen modules."""

    name: ClassVar[str] = "bench step"

    cases: tuple[str, ...] = ()
    """Names of modules, or parts of names; all by default."""
    repeats: int = 7
    """Rounds of both sides in turn."""
    seconds: float = SECONDS
    """Processor time of the steps of each side in a round."""
    threads: int = 1
    """Threads of torch."""

    def collect(self) -> Record:
        chosen = [case for case in CASES if not self.cases or any(part in case.name for part in self.cases)]
        if not chosen:
            invalid_value("cases", f"among {', '.join(case.name for case in CASES)}", ", ".join(self.cases))
        torch.set_num_threads(check_size("threads", self.threads))
        effort = check_size("repeats", self.repeats), check_positive("seconds", self.seconds)
        measured = track(chosen, "measuring", console=Console(stderr=True), disable=self.json, transient=True)
        return {
            "threads": self.threads,
            "repeats": self.repeats,
            "rows": [measure(case, *effort) for case in measured],
            "files of a step": files_of_a_step(),
        }

    def show(self, record: Record, console: Console) -> None:
        columns = {
            "module": ("name", ""), "fused Adam, ms": ("plain", ".2f"), "ratio": ("ratio", ".2f"),
            "from": ("low", ".2f"), "to": ("high", ".2f"), "goal, ≤": ("goal", ".2f"),
            "start-up, ms": ("start_up", ".0f"), "s → 0": ("difference", ".0e"),
        }  # fmt: skip
        title = f"One training step, {record['threads']} threads"
        console.print(shown(Table.of_records("steps", title, columns, record["rows"])))
        console.print("Processor time, medians of interleaved rounds; start-up is what `train` does before its steps.")
        console.print("From, to: quartiles of the ratio.")
        console.print("s → 0: largest relative difference of the gradients of a sweep and of back-propagation.")
        files = record["files of a step"]
        console.print(f"A step passes {len(files)} files: {', '.join(files)}")


def measure(case: StepCase, repeats: int, seconds: float = SECONDS) -> Row:
    """Rounds of both sides in turn, each from the same weights on the same data.

    Steps of `train` are the difference of a long and a short run that keep their weights, so that its start-up drops
    out; everything that the loop does besides steps stays in. The start-up is what a long run with nothing chosen
    takes beyond these steps: it compares starts the longer, the more steps there are, so that a short run does not
    show it.
    """
    module, data, loss = prepared(case)
    plain = _bare(copy.deepcopy(module), data, loss, case.batch, 2)
    long = max(4, int(seconds / max(plain, 1e-6)))
    _trained(module, data, loss, case.batch, 2)
    ratios, plains, starts = [], [], []
    for _ in range(repeats):
        bare = _bare(copy.deepcopy(module), data, loss, case.batch, long)
        short = _trained(module, data, loss, case.batch, 1, weights="keep")
        ours = (_trained(module, data, loss, case.batch, long + 1, weights="keep") - short) / long
        ratios.append(ours / bare)
        plains.append(1e3 * bare)
        starts.append(1e3 * (_trained(module, data, loss, case.batch, long) - long * ours))
    ordered = sorted(ratios)
    quarter = len(ordered) // 4
    return {
        "name": case.name,
        "plain": median(plains),
        "ratio": median(ratios),
        "low": ordered[quarter],
        "high": ordered[-1 - quarter],
        "goal": case.goal,
        "start_up": max(median(starts), 0.0),
        "difference": difference(case),
    }


def prepared(case: StepCase, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, tuple[Tensor, Tensor], Loss]:
    """The module, random data and the loss of a case."""
    torch.manual_seed(0)
    module = case.build().to(dtype)
    y = torch.rand(SAMPLES, *case.shape, dtype=dtype)
    if case.classes is not None:
        return module, (y, torch.randint(case.classes, (SAMPLES,))), CrossEntropy()
    with torch.no_grad():
        shape = module(y[:2]).shape[1:]
    return module, (y, torch.rand(SAMPLES, *shape, dtype=dtype)), SquaredError()


def _bare(module: nn.Module, data: tuple[Tensor, Tensor], loss: Loss, batch: int, steps: int) -> float:
    """Seconds per step of the loop that everybody writes."""
    optimiser = torch.optim.Adam([p for p in module.parameters() if p.requires_grad], fused=True)
    criterion: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy if isinstance(loss, CrossEntropy) else _half_squares
    order = torch.randperm(SAMPLES)
    module.train()
    begin = time.process_time()
    for step in range(steps):
        first = step * batch % (SAMPLES - batch)
        chosen = order[first : first + batch]
        optimiser.zero_grad()
        criterion(module(data[0][chosen]), data[1][chosen]).backward()
        optimiser.step()
    return (time.process_time() - begin) / steps


def _half_squares(output: Tensor, target: Tensor) -> Tensor:
    return 0.5 * F.mse_loss(output, target, reduction="sum") / len(target)


def _trained(
    module: nn.Module,
    data: tuple[Tensor, Tensor],
    loss: Loss,
    batch: int,
    steps: int,
    weights: Literal["keep"] | None = None,
) -> float:
    """Seconds of a call of `train`."""
    module = copy.deepcopy(module)
    begin = time.process_time()
    train(module, data, loss=loss, batch_size=batch, steps=steps, weights=weights, progress=False)
    return time.process_time() - begin


def difference(case: StepCase) -> float:
    """The largest entry of ∇(sweep) − ∇(back-propagation) over the largest of ∇, for a tiny perturbation."""
    module, (y, x), loss = prepared(case, torch.float64)
    module.eval()
    gradients = []
    for context in (nullcontext(), sweeping(Perturbation(fixed=SMALL))):
        module.zero_grad()
        with context:
            loss.mean(module(y[:4]), x[:4]).backward()
        gradients.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
    largest = max(float(g.abs().max()) for g in gradients[0])
    return max(float((a - b).abs().max()) for a, b in zip(*gradients, strict=True)) / largest


class _Plain(nn.Module):
    """Neither a chain of dense layers nor one of our networks."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, y: Tensor) -> Tensor:
        return self.last(F.relu(self.first(y)))


def files_of_a_step(module: nn.Module | None = None) -> list[str]:
    """The files of this package that one default step enters, after the first; the closed form of chains adds four."""
    module = _Plain() if module is None else module
    batches = as_batches((torch.rand(64, 8), torch.rand(64, 2)), batch_size=16)
    step = SweepDescent().init(Work(module, SquaredError(), batches, lambda _: 1.0))
    step.step()
    root, entered = Path(torchlift.__file__).parent, set()

    def watch(frame: Any, event: str, argument: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(str(root)) and file != __file__:
            entered.add(str(Path(file).relative_to(root)))

    sys.setprofile(watch)
    try:
        step.step()
    finally:
        sys.setprofile(None)
    return sorted(entered)
