"""`torchlift bench league`: default settings against the optimisers that people use, at equal processor time.

Rules, the same for all:

- One module, one data set, one loop (`train`), one thread.
- The budget is processor time, so that a busy machine changes nothing; evaluations are not counted, starts are.
- Ours is `train(module, data)` with nothing chosen, not even the batch. Baselines have batches of the case's size and
  the same number of trials each, from torch's start and from ours; the best trial on held-out data counts.
- What is reported was not looked at by any choice.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar
from unittest.mock import patch

import torch
import tyro
from rich.console import Console
from torch import Tensor, nn

from torchlift.cli.command import Command, Record, check_folder
from torchlift.cli.tables import shown
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import TorchliftError, did_you_mean, invalid_value
from torchlift.core.files import read_json, unlinked
from torchlift.data import as_batches
from torchlift.lab.benchmarks.league_cases import MEASURES, Baseline, Case, Data, cases
from torchlift.lab.benchmarks.optimisers import Muon
from torchlift.liftings import Conventional
from torchlift.report.records import Table
from torchlift.training import BackPropagation, Phase, SweepDescent, TrainOptions, evaluate, train
from torchlift.training.modules import like
from torchlift.training.plan import PlannedPhase
from torchlift.training.starts.short_runs import start_weights

#: Steps by which the time of an AdamW step is measured, and evaluations of a run.
TIMED, EVALUATIONS = 20, 10
#: How the tables call a start.
START = {"torch": "torch's", "ours": "our"}
#: Factors of the least time at which performance profiles are read.
FACTORS = (1.0, 1.5, 2.0, 4.0)


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


def is_baseline(method: str) -> bool:
    return not method.startswith("ours")


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
        for start in START
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
    if file.exists():
        record = read_json(file, "It is damaged: remove it and repeat the case.")
    else:
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
        file.parent.mkdir(parents=True, exist_ok=True)
        unlinked(file).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def _rounded(value: Any) -> Any:
    """Five digits, and no number that JSON lacks."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _rounded(entry) for key, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list | tuple) else value


# -- tables -----------------------------------------------------------------------------------------------------------


def standings(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each method and start: its best trial on held-out data, and when it reached the best baseline's end.

    Rows have "method", "start", "setting", "report", "to target" (seconds or None) and "steps".
    """
    rank = _ranking(record["metric"])
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in record["runs"]:
        key = row["method"], row["start"]
        best[key] = max(best.get(key, row), row, key=lambda trial: rank(trial["choice"]))
    target = max((rank(row["choice"]) for row in best.values() if is_baseline(row["method"])), default=math.inf)
    return [
        {name: row[name] for name in ("method", "start", "setting", "report", "steps")}
        | {"to target": next((seconds for seconds, value in row["curve"] if rank(value) >= target), None)}
        for row in best.values()
    ]


def _ranking(metric: str) -> Callable[[float | None], float]:
    """What makes a value of the metric comparable: larger is better, and a run that failed comes last."""
    sign = 1.0 if MEASURES[metric].larger_is_better else -1.0
    return lambda value: -math.inf if value is None else sign * value


def profiles(records: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """{method and start: the share of the cases in which it reaches the best baseline's end within `FACTORS`}.

    The factors are of the least time that any method needs (performance profiles, Dolan & Moré 2002).
    """
    ratios: dict[str, list[float]] = {}
    for record in records:
        rows = standings(record)
        least = min((row["to target"] for row in rows if row["to target"]), default=math.inf)
        for row in rows:
            ratio = math.inf if not row["to target"] else row["to target"] / least
            ratios.setdefault(f"{row['method']} ({row['start']} start)", []).append(ratio)
    return {name: [sum(r <= f for r in values) / len(records) for f in FACTORS] for name, values in ratios.items()}


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The tables of the documentation: who wins, every method, and what each part of ours gives; medians over seeds."""
    rows: list[list[list[str]]] = [[], [], []]
    for case in dict.fromkeys(record["case"] for record in records):
        chosen = [record for record in records if record["case"] == case]
        tables = [{(row["method"], row["start"]): row for row in standings(record)} for record in chosen]
        keys = dict.fromkeys(key for table in tables for key in table)
        medians = {key: _median(table.get(key, {}).get("report") for table in tables) for key in keys}
        seconds, seeds, trials = median(record["seconds"] for record in chosen), len(chosen), chosen[0]["trials"]
        unit = MEASURES[chosen[0]["metric"]].unit or "error, less is better"
        counts = f"{_counted(seeds, 'seed')}, {_counted(trials, 'trial')}"
        title = f"{case} ({unit}; {seconds:.1f} s, {counts})"
        for table, cells in zip(rows, _cells(medians, tables, chosen[0]["metric"]), strict=True):
            table.append([title, *cells])
    return "\n\n".join(
        "\n".join(f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *table))
        for headings, table in zip(_headings(), rows, strict=True)
    )


def _headings() -> list[list[str]]:
    faster = "time of the best baseline to its end, over ours"
    return [
        ["case", "ours", "best baseline", "AdamW from our start", faster],
        ["from torch's start / from ours", "ours", *BASELINES],
        ["case", *(name if name == "ours" else name.removeprefix("ours, ") for name in ABLATIONS)],
    ]


def _cells(
    medians: Mapping[tuple[str, str], float | None], tables: Sequence[Mapping[tuple[str, str], Any]], metric: str
) -> tuple[list[str], list[str], list[str]]:
    """One row of each table."""
    rank = _ranking(metric)
    best = max((key for key in medians if is_baseline(key[0])), key=lambda key: rank(medians[key]), default=None)
    ours, given, adam = ("ours", "ours"), ("ours, torch's start", "torch"), ("AdamW", "ours")
    mark = "**" if best is None or rank(medians.get(ours)) >= rank(medians[best]) else ""
    name = "–" if best is None else f"{_shown(medians[best])}, {best[0]}, {START[best[1]]} start"
    pairs = [f"{_shown(medians.get((n, 'torch')))} / {_shown(medians.get((n, 'ours')))}" for n in BASELINES]
    return (
        [f"{mark}{_shown(medians.get(ours))}{mark}", name, _shown(medians.get(adam)), _speed(tables, ours)],
        [f"{_shown(medians.get(given))} / {_shown(medians.get(ours))}", *pairs],
        [_shown(medians.get((method, start))) for method, (_, start) in ABLATIONS.items()],
    )


def _speed(tables: Sequence[Mapping[tuple[str, str], Any]], ours: tuple[str, str]) -> str:
    """How many times sooner than the best baseline we reach its last value on held-out data; the median over seeds."""
    ratios = []
    for table in tables:
        theirs = [row["to target"] for (name, _), row in table.items() if is_baseline(name) and row["to target"]]
        mine = table.get(ours, {}).get("to target")
        ratios.append(min(theirs) / mine if theirs and mine else 0.0)
    ratio = median(ratios)
    return f"{ratio:.1f}" if ratio > 0 else "not reached"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


@dataclass(frozen=True, kw_only=True)
class BenchLeague(Command):
    """Train by `train` with default settings and by six other optimisers, at equal processor time."""

    name: ClassVar[str] = "bench league"

    cases: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Parts of the names of cases, such as "denoising", or families: mnist, resnet, dead, imaging, unrolled, redrawn,
    sensing, default-start, starts; all by default."""
    records: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("league")
    """Folder of one small JSON file for each case and seed; runs that it holds are not repeated."""
    seeds: int = 3
    """Seeds 0, 1, …"""
    trials: int = 3
    """Settings that each baseline may try, at most 3."""
    seconds: float | None = None
    """Budget of a run in processor time instead of that of the case."""
    cifar: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """CIFAR-10 as image files train/CLASS/NAME and test/CLASS/NAME; without it that case is left out."""
    table: bool = False
    """Only show what the folder holds, as Markdown."""
    tiny: bool = False
    """A moment on a few digits, to see that everything runs; its numbers mean nothing."""

    def check(self) -> None:
        check_size("seeds", self.seeds)
        if check_size("trials", self.trials) > 3:
            invalid_value("trials", "at most 3", self.trials)
        if self.seconds is not None:
            check_positive("seconds", self.seconds)
        if not self.table:
            check_folder("--records", self.records)
        known = cases(self.tiny, self.cifar)
        families = dict.fromkeys(case.family for case in known.values())
        for part in self.cases:
            if not any(_named(case, part) for case in known.values()):
                expected = f"families among {', '.join(families)}, or parts of the names {', '.join(known)}"
                invalid_value(self.name, expected, repr(part), did_you_mean(part, [*families, *known]))

    def collect(self) -> Record:
        if self.table:
            files = sorted(self.records.glob("*.json"))
            return {"records": [read_json(file, "It is damaged: repeat the case.") for file in files]}
        torch.set_num_threads(1)
        console = Console(stderr=True)
        baselines = [n for n, baseline in BASELINES.items() if not baseline.extra or find_spec("pytorch_optimizer")]
        if len(baselines) < len(BASELINES):
            console.print("SOAP, Schedule-Free AdamW and Prodigy are left out: pip install 'torchlift[lab]'.")
        known = cases(self.tiny, self.cifar).values()
        chosen = [case for case in known if not self.cases or any(_named(case, part) for part in self.cases)]
        records = []
        seconds = 0.3 if self.tiny and self.seconds is None else self.seconds
        with console.status("starting") as status:
            for seed in range(self.seeds):
                for case in chosen:
                    name = case.name.replace("×", "x").replace(",", "").replace(".", "p").replace(" ", "-")
                    file = self.records / f"{name}-{seed}.json"
                    effort = {"seconds": seconds, "baselines": baselines, "note": status.update}
                    records.append(compete(case, seed, self.trials, file, **effort))
        return {"records": records}

    def show(self, record: Record, console: Console) -> None:
        if self.table:
            console.print(markdown(record["records"]), soft_wrap=True)
            return
        for result in record["records"]:
            title = f"{result['case']}, seed {result['seed']}, {result['seconds']:.1f} s"
            columns = {"method": "", "start": "", result["metric"]: ".2f", "steps": ""}
            columns |= {"seconds to the best baseline's end": ".1f"}
            names = ("method", "start", "report", "steps", "to target")
            rows = [[row[name] for name in names] for row in standings(result)]
            console.print(shown(Table.of("standings", title, columns, rows)))
        factors = ", ".join(f"{factor:g}" for factor in FACTORS)
        console.print(f"\nShare of cases that reach the best baseline's end within {factors} times the least time:")
        for name, shares in profiles(record["records"]).items():
            console.print(f"  {name}: {', '.join(f'{share:.0%}' for share in shares)}")


@dataclass(frozen=True, kw_only=True)
class BenchTraining(BenchLeague):
    """Another name of 'bench league', of which the comparisons with tuned back-propagation are cases."""

    name: ClassVar[str] = "bench training"


def _named(case: Case, part: str) -> bool:
    """Whether a word of the command line means this case."""
    return part == case.family or part in case.name
