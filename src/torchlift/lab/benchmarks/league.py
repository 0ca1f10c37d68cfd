"""Runs of `torchlift bench league`: default settings against the optimisers that people use, at equal processor time.

Rules, the same for all:

- One module, one data set, one loop (`train`), one thread.
- The budget is processor time, so that a busy machine changes nothing; evaluations are not counted, starts are.
- Ours is `train(module, data)` with nothing chosen, not even the batch. Baselines have batches of the case's size and
  the same number of trials each, from torch's start and from ours; the best trial on held-out data counts.
- What is reported was not looked at by any choice.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from torchlift.core.errors import TorchliftError
from torchlift.data import as_batches
from torchlift.lab.benchmarks.kept import keep, kept
from torchlift.lab.benchmarks.league_cases import MEASURES, Baseline, Case, Data
from torchlift.lab.benchmarks.optimisers import Muon
from torchlift.liftings import Conventional
from torchlift.training import BackPropagation, Phase, SweepDescent, TrainOptions, evaluate, train
from torchlift.training.modules import like
from torchlift.training.plan import PlannedPhase
from torchlift.training.starts.short_runs import start_weights

#: Steps by which the time of an AdamW step is measured, and evaluations of a run.
TIMED, EVALUATIONS = 20, 10


# -- methods ----------------------------------------------------------------------------------------------------------


def _adamw(rate: float, parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, fused=True)


def _extra(name: str) -> Any:
    if find_spec("pytorch_optimizer") is None:
        hint = "Install it: pip install 'torchlift[lab]'."
        raise TorchliftError(f"bench league: expected the package pytorch_optimizer for {name}, got none. {hint}")
    import pytorch_optimizer  # pyright: ignore[reportMissingImports]

    return getattr(pytorch_optimizer, name)


BASELINES: dict[str, Baseline] = {
    "AdamW": Baseline(_adamw, (1e-3, 3e-3, 3e-4), averages=True),
    "AdamW, centred": Baseline(_adamw, (1e-3, 3e-3, 3e-4), centring=True, averages=True),
    "Muon": Baseline(lambda rate, p: Muon(p, rate), (3e-3, 1e-3, 1e-2)),
    "SOAP": Baseline(lambda rate, p: _extra("SOAP")(p, lr=rate), (3e-3, 1e-3, 1e-2), extra=True),
    "Schedule-Free AdamW": Baseline(
        lambda rate, p: _extra("ScheduleFreeAdamW")(p, lr=rate), (2.5e-3, 1e-3, 1e-2), "constant", extra=True
    ),
    "Prodigy": Baseline(lambda factor, p: _extra("Prodigy")(p, d_coef=factor), (1.0, 0.5, 2.0), extra=True),
}

#: Our own method with one part switched off: what trains it, and its start.
ABLATIONS: dict[str, tuple[Any, str]] = {
    "ours": (None, "ours"),
    "ours, torch's start": (None, "torch"),
    "ours, no perturbation": (BackPropagation(), "ours"),
    "ours, AdamW's step": (SweepDescent(partial(_adamw, 1e-3), anneal="cosine"), "ours"),
}


@dataclass(frozen=True)
class Entry:
    """One run of a case: a method with a setting, from a start.

    Arguments:
        method: its name.
        start: "torch" or "ours".
        solver: of `train`; None for its default, which also chooses its batch.
        baseline: whose optimiser replaces the solver; `setting` is one of its trials.
        options: of `train`, instead of the league's.
    """

    method: str
    start: str
    solver: Any = None
    baseline: Baseline | None = None
    setting: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)


def entries(case: Case, trials: int, baselines: Iterable[str]) -> list[Entry]:
    """All runs of a case: ours, its parts, the case's own variants, and the trials of every baseline."""
    ours = [Entry(name, start, solver) for name, (solver, start) in ABLATIONS.items()]
    ours += [Entry(name, "torch", options=options) for name, options in case.variants.items()]
    others = {name: BASELINES[name] for name in baselines} | dict(case.baselines)
    return ours + [
        Entry(name, start, baseline=baseline, setting=setting)
        for name, baseline in others.items()
        for start in ("torch", "ours")
        for setting in baseline.settings[:trials]
    ]


# -- one run ----------------------------------------------------------------------------------------------------------


class Clock:
    """Processor time of this process, which can be stopped."""

    def __init__(self) -> None:
        self._away = 0.0

    def now(self) -> float:
        return time.process_time() - self._away

    @contextmanager
    def stopped(self) -> Iterator[None]:
        begin = time.process_time()
        yield
        self._away += time.process_time() - begin


def score(case: Case, module: nn.Module, data: tuple[Any, ...]) -> float:
    batches = as_batches(data, batch_size=1000, like=like(module))
    return evaluate(module, batches.ordered(), case.loss, (MEASURES[case.metric],))[case.metric]


class _Judged:
    """The weights that are judged of a baseline: an average over about a hundred steps, or the optimiser's own choice.

    Schedule-free optimisers switch between the two by `eval` and `train`.
    """

    def __init__(self, baseline: Baseline, setting: float) -> None:
        self.baseline, self.setting, self.count = baseline, setting, 0

    def make(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        self.optimiser = self.baseline.make(self.setting, parameters)
        if self.baseline.averages:
            self.parameters = [p for group in self.optimiser.param_groups for p in group["params"]]
            self.average = [p.detach().clone() for p in self.parameters]
            self.optimiser.register_step_post_hook(lambda *_: self._update())
        return self.optimiser

    @torch.no_grad()
    def _update(self) -> None:
        self.count += 1
        weight = max(0.01, 1 / self.count)
        for value, parameter in zip(self.average, self.parameters, strict=True):
            value.lerp_(parameter.detach(), weight)

    @torch.no_grad()
    def _swap(self) -> None:
        for value, parameter in zip(self.average, self.parameters, strict=True):
            held = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(held)

    @contextmanager
    def in_module(self) -> Iterator[None]:
        if self.baseline.averages:
            before = after = self._swap
        else:
            before, after = (getattr(self.optimiser, mode, lambda: None) for mode in ("eval", "train"))
        before()
        yield
        after()


def run(case: Case, data: Data, seed: int, entry: Entry, seconds: float, every: int) -> dict[str, Any]:
    """Train once; returns the values at the end and on the way, with the processor time of each."""
    torch.manual_seed(seed)
    module, clock, judged = case.build(), Clock(), None
    options: dict[str, Any] = {"weights": "keep", "batch_size": case.batch_size}
    if entry.baseline is not None:
        judged = _Judged(entry.baseline, entry.setting)
        solver = BackPropagation(judged.make, anneal=entry.baseline.anneal, centring=entry.baseline.centring)
        options |= {"solver": solver, "lifting": Conventional()}
    elif entry.solver is not None:
        options |= {"solver": entry.solver}
        options |= {"lifting": Conventional()} if isinstance(entry.solver, BackPropagation) else {}
    else:  # nothing is chosen, but for the start in one of the ablations
        options = {"weights": None if entry.start == "ours" else "keep"}
    options |= entry.options
    options["options"] = replace(options.get("options", TrainOptions()), evaluate_every=every)
    curve: list[tuple[float, float]] = []
    values: dict[str, float] = {}
    begin = clock.now()

    def look(row: Mapping[str, Any]) -> None:
        if row["kind"] == "train":
            with clock.stopped(), nullcontext() if judged is None else judged.in_module():
                curve.append((clock.now() - begin, score(case, module, data.choice)))
                values.update(choice=curve[-1][1], report=score(case, module, data.report))

    with patch("time.monotonic", clock.now):
        if entry.start == "ours" and options["weights"] == "keep":
            with clock.stopped():  # `train` checks its data before it looks at the clock
                batches = as_batches(data.training, batch_size=case.batch_size, seed=seed, like=like(module))
            start_weights(PlannedPhase(Phase(time_limit=seconds), module, batches, case.loss, seed))
        left = max(seconds - (clock.now() - begin), 0.05 * seconds)
        result = train(
            module, data.training, loss=case.loss, time_limit=left, seed=seed, callback=look, progress=False, **options
        )
    used = clock.now() - begin
    if judged is None:  # what `train` returns; a baseline is judged by its own last weights
        values = {"choice": score(case, module, data.choice), "report": score(case, module, data.report)}
    return {"start": entry.start, "setting": entry.setting, **values, "steps": result.steps, "seconds": used,
            "curve": curve, "message": result.message}  # fmt: skip


def budget(case: Case, data: Data) -> tuple[float, float]:
    """(seconds of the case, seconds of a step of fused AdamW)."""
    module = case.build()
    phase = Phase(Conventional(), BackPropagation(partial(_adamw, 1e-3)), batch_size=case.batch_size)
    batches = as_batches(data.training, batch_size=case.batch_size, like=like(module))
    step = phase.begin(module, case.loss, batches)
    step.step()
    times = []
    for _ in range(TIMED):
        begin = time.process_time()
        step.step()
        times.append(time.process_time() - begin)
    seconds_per_step = median(times)
    return (case.seconds or seconds_per_step * batches.per_epoch * (case.epochs or 1)), seconds_per_step


def compete(
    case: Case,
    seed: int,
    trials: int,
    file: Path,
    *,
    seconds: float | None = None,
    baselines: Iterable[str] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """All runs of a case and a seed; those that the file holds already are not repeated."""
    data = case.data(seed)
    record = kept(file, "case")
    if not record:
        total, step = budget(case, data)
        total = total if seconds is None else seconds
        every = max(1, int(total / step / EVALUATIONS))
        record = {"case": case.name, "metric": case.metric, "seed": seed, "trials": trials, "seconds": total,
                  "every": every, "torch": torch.__version__, "runs": []}  # fmt: skip
    finished = {(row["method"], row["start"], row["setting"]) for row in record["runs"]}
    for entry in entries(case, record["trials"], BASELINES if baselines is None else baselines):
        if (entry.method, entry.start, entry.setting) in finished:
            continue
        note(f"{case.name}: {entry.method}, {entry.start} start, {entry.setting:g}")
        outcome = run(case, data, seed, entry, record["seconds"], record["every"])
        record["runs"].append({"method": entry.method, **_rounded(outcome)})
        keep(file, record)
    return record


def _rounded(value: Any) -> Any:
    """Five digits, and no number that JSON lacks."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list | tuple) else value
