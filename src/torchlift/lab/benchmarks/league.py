"""Training with default settings against the optimisers that people use, at equal processor time.

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
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from torchlift.core.errors import TorchliftError
from torchlift.core.files import read_json, unlinked
from torchlift.data import TensorBatches, load_digits, psnr
from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.lab.benchmarks.cifar import load_cifar
from torchlift.lab.benchmarks.optimisers import Muon
from torchlift.lab.benchmarks.step_modules import AUTOENCODER, VGG
from torchlift.lab.benchmarks.training import CHOOSING, Data
from torchlift.lab.benchmarks.training_cases import classification, restored, unrolled_network
from torchlift.liftings import Conventional
from torchlift.networks import MLP, ResNet
from torchlift.prox import ReLU, SoftThreshold, Tanh
from torchlift.training import BackPropagation, Phase, SweepDescent, TrainOptions, train
from torchlift.training.modules import in_mode
from torchlift.training.starts.short_runs import start_weights

Pair = tuple[Tensor, Tensor]

#: Steps by which the time of an AdamW step is measured, and evaluations of a run.
TIMED, EVALUATIONS = 20, 10
#: In words.
START = {"torch": "torch's", "ours": "our"}
#: Of performance profiles.
FACTORS = (1.0, 1.5, 2.0, 4.0)


# -- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A network, data and a budget.

    Arguments:
        build: makes the module, with torch's start.
        data: seed ↦ data.
        metric: "accuracy" (%), "psnr" (dB) or "error" (mean squared error of a sample, summed over its entries).
        epochs: budget in epochs of fused AdamW; None where it is given in seconds.
        seconds: budget of processor time.
    """

    name: str
    build: Callable[[], nn.Module]
    data: Callable[[int], Data]
    metric: str
    epochs: int | None = None
    seconds: float = 0.0
    batch_size: int = 100

    @property
    def loss(self) -> Loss:
        return CrossEntropy() if self.metric == "accuracy" else SquaredError()


def _mlp(widths: Sequence[int], activation: Any) -> nn.Module:
    return MLP(widths, activation).to_sequential()


def _reproduced(tiny: bool, seed: int) -> Data:
    pairs = [load_digits(split).images[: 200 if tiny else None].flatten(1) for split in ("train", "test", "validation")]
    return Data(*((y, y) for y in pairs))


def _photographs(folder: Path, seed: int) -> Data:
    """CIFAR-10; choices are made on a tenth of the training images, which is not trained on."""
    images, labels = load_cifar(folder, "train")
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = order[len(order) // 10 :], order[: len(order) // 10]
    training, choice = ((images[part], labels[part]) for part in parts)
    return Data(training, choice, load_cifar(folder, "test"))


def cases(tiny: bool = False, cifar: Path | None = None) -> dict[str, Case]:
    """All cases by name; that of CIFAR-10 where its folder is given."""
    held_out = lambda seed: classification(not tiny, CHOOSING)  # noqa: E731
    classify = partial(Case, data=held_out, metric="accuracy", batch_size=200)
    made = [
        classify("mnist 784-256-256, 1 epoch", partial(_mlp, [784, 256, 256, 10], ReLU()), epochs=1),
        classify("mnist 784-256-256, 10 epochs", partial(_mlp, [784, 256, 256, 10], ReLU()), epochs=10),
        classify("mnist 5 × 256 tanh, 1 epoch", partial(_mlp, [784, *[256] * 5, 10], Tanh()), epochs=1),
        classify("mnist 5 × 256 soft-threshold, 1 epoch", partial(_mlp, [784, *[256] * 5, 10], SoftThreshold(0.3)), epochs=1),  # noqa: E501
        classify("mnist 30 × 64, 1 epoch", partial(_mlp, [784, *[64] * 30, 10], ReLU()), epochs=1),
        classify("mnist 10 × 600, 1 epoch", partial(_mlp, [784, *[600] * 10, 10], ReLU()), epochs=1),
        classify("mnist ResNet 8 × 128, 1 epoch", lambda: ResNet(784, [128] * 8, 10).to_sequential(), epochs=1),
        Case("deep autoencoder, 10 s", partial(_mlp, AUTOENCODER, Tanh()),
             partial(_reproduced, tiny), "error", seconds=10.0, batch_size=50),
    ]  # fmt: skip
    for task in ("denoising", "deblurring", "inpainting"):
        for threshold in (0.2, 0.02):
            for seconds in (10.0, 30.0):
                name = f"{task}, threshold {threshold}, {seconds:.0f} s"
                build = partial(_mlp, [784] * 8, SoftThreshold(threshold))
                made.append(Case(name, build, partial(restored, not tiny, task, True), "psnr", seconds=seconds))
    for kind in ("LISTA", "PrimalDual"):
        for task in ("denoising", "deblurring"):
            build = partial(unrolled_network, kind, task)
            data = partial(restored, not tiny, task, False)
            made.append(Case(f"{kind}, {task}, 8 s", build, data, "psnr", seconds=8.0, batch_size=50))
    if cifar is not None:
        made.append(Case("CIFAR-10, VGG", VGG, partial(_photographs, cifar), "accuracy", seconds=120.0))
    return {case.name: case for case in made}


# -- methods ----------------------------------------------------------------------------------------------------------


def _adamw(rate: float, parameters: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, fused=True)


def _extra(name: str) -> Any:
    if find_spec("pytorch_optimizer") is None:
        hint = "Install it: pip install 'torchlift[lab]'."
        raise TorchliftError(f"bench league: expected the package pytorch_optimizer for {name}, got none. {hint}")
    import pytorch_optimizer  # pyright: ignore[reportMissingImports]

    return getattr(pytorch_optimizer, name)


@dataclass(frozen=True)
class Baseline:
    """An optimiser with its trials.

    Arguments:
        make: (setting, parameters) ↦ optimiser.
        settings: of the trials, the most usual one first.
        anneal: of the learning rate.
        centring: eliminate biases as ours does.
        averages: whether an exponential average of the weights is judged.
        extra: whether it comes from pytorch_optimizer.
    """

    make: Callable[[float, list[Tensor]], torch.optim.Optimizer]
    settings: tuple[float, ...]
    anneal: Any = "cosine"
    centring: bool = False
    averages: bool = False
    extra: bool = False


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


@torch.no_grad()
def score(case: Case, module: nn.Module, pair: Pair) -> float:
    y, x = pair
    with in_mode(module, False):
        output = torch.cat([module(part) for part in y.split(1000)])
    if case.metric == "accuracy":
        return 100 * float((output.argmax(1) == x).double().mean())
    if case.metric == "psnr":
        return float(psnr(output, x).mean())
    return float((output - x).square().sum(1).mean())


class _Average:
    """An exponential average of parameters over about a hundred steps, held by hooks of the optimiser."""

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        self.parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self.values, self.count = [p.detach().clone() for p in self.parameters], 0
        optimiser.register_step_post_hook(lambda *_: self.update())

    @torch.no_grad()
    def update(self) -> None:
        self.count += 1
        weight = max(0.01, 1 / self.count)
        for value, parameter in zip(self.values, self.parameters, strict=True):
            value.lerp_(parameter.detach(), weight)

    @torch.no_grad()
    def swap(self) -> None:
        for value, parameter in zip(self.values, self.parameters, strict=True):
            held = parameter.detach().clone()
            parameter.copy_(value)
            value.copy_(held)


def run(case: Case, data: Data, seed: int, start: str, solver: Any, seconds: float, every: int,
        baseline: Baseline | None = None, setting: float = 0.0) -> dict[str, Any]:  # fmt: skip
    """Train once; returns the values at the end and on the way, with the processor time of each."""
    torch.manual_seed(seed)
    module, clock, made = case.build(), Clock(), []

    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        assert baseline is not None
        optimiser = baseline.make(setting, parameters)
        made.append((optimiser, _Average(optimiser) if baseline.averages else None))
        return optimiser

    if baseline is not None:
        solver = BackPropagation(make, anneal=baseline.anneal, centring=baseline.centring)
    curve: list[tuple[float, float]] = []
    values: dict[str, float] = {}

    @contextmanager
    def judged() -> Iterator[None]:
        """Averages and schedule-free weights in the module."""
        optimiser, average = made[-1] if made else (None, None)
        modes = getattr(optimiser, "eval", None), getattr(optimiser, "train", None)
        if average is not None:
            average.swap()
        elif callable(modes[0]):
            modes[0]()
        yield
        if average is not None:
            average.swap()
        elif callable(modes[1]):
            modes[1]()

    begin = clock.now()

    def look(row: Mapping[str, Any]) -> None:
        if row["kind"] == "train":
            with clock.stopped(), judged():
                curve.append((clock.now() - begin, score(case, module, data.choice)))
                values.update(choice=curve[-1][1], report=score(case, module, data.report))

    batch: dict[str, Any] = {"batch_size": case.batch_size}
    ours, lifting = solver is None, Conventional() if isinstance(solver, BackPropagation) else None
    with patch("time.monotonic", clock.now):
        if start == "ours" and not ours:
            with clock.stopped():  # `train` checks its data before it looks at the clock
                batches = TensorBatches(*data.training, seed=seed, **batch)
            start_weights(module, Phase(time_limit=seconds), batches, case.loss, seed)
        left = max(seconds - (clock.now() - begin), 0.05 * seconds)
        result = train(
            module, data.training, loss=case.loss, solver=solver, lifting=lifting, time_limit=left, seed=seed,
            callback=look,
            weights=None if ours and start == "ours" else "keep", progress=False,
            options=TrainOptions(evaluate_every=every), **({} if ours else batch),
        )  # fmt: skip
    used = clock.now() - begin
    if baseline is None:  # what `train` returns; a baseline is judged by its own last weights
        values = {"choice": score(case, module, data.choice), "report": score(case, module, data.report)}
    return {"start": start, "setting": setting, **values, "steps": result.steps, "seconds": used, "curve": curve,
            "message": result.message}  # fmt: skip


def budget(case: Case, data: Data) -> tuple[float, float]:
    """(seconds of the case, seconds of a step of fused AdamW)."""
    module = case.build()
    phase = Phase(Conventional(), BackPropagation(partial(_adamw, 1e-3)), batch_size=case.batch_size)
    batches = TensorBatches(*data.training, batch_size=case.batch_size)
    step = phase.begin(module, case.loss, batches, lambda _: 1.0)
    step.step()
    times = []
    for _ in range(TIMED):
        begin = time.process_time()
        step.step()
        times.append(time.process_time() - begin)
    each = median(times)
    return (case.seconds or each * batches.per_epoch * (case.epochs or 1)), each


def compete(
    case: Case,
    seed: int,
    trials: int,
    file: Path,
    *,
    seconds: float | None = None,
    baselines: Sequence[str] | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """All runs of a case and a seed; those that the file holds already are not repeated."""
    data = case.data(seed)
    if file.exists():
        record = read_json(file, "It is damaged: remove it and repeat the case.")
    else:
        total, each = budget(case, data)
        total = total if seconds is None else seconds
        every = max(1, int(total / each / EVALUATIONS))
        record = {"case": case.name, "metric": case.metric, "seed": seed, "trials": trials, "seconds": total,
                  "every": every, "torch": torch.__version__, "runs": []}  # fmt: skip
    known = {(row["method"], row["start"], row["setting"]) for row in record["runs"]}
    plans: list[tuple[str, str, Any, Baseline | None, float]] = [
        (name, start, solver, None, 0.0) for name, (solver, start) in ABLATIONS.items()
    ]
    names = BASELINES if baselines is None else baselines
    plans += [
        (name, start, None, BASELINES[name], setting)
        for name in names
        for start in ("torch", "ours")
        for setting in BASELINES[name].settings[: record["trials"]]
    ]
    for name, start, solver, baseline, setting in plans:
        if (name, start, setting) in known:
            continue
        note(f"{case.name}: {name}, {start} start, {setting:g}")
        outcome = run(case, data, seed, start, solver, record["seconds"], record["every"], baseline, setting)
        record["runs"].append({"method": name, **_rounded(outcome)})
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
    sign = -1.0 if record["metric"] == "error" else 1.0
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in record["runs"]:
        key = row["method"], row["start"]
        value = _value(row["choice"], sign)
        if key not in best or value > _value(best[key]["choice"], sign):
            best[key] = row
    ends = [_value(row["choice"], sign) for (method, _), row in best.items() if method in BASELINES]
    target = max(ends, default=math.inf)
    return [
        {"method": row["method"], "start": row["start"], "setting": row["setting"], "report": row["report"],
         "steps": row["steps"], "to target": next((t for t, v in row["curve"] if _value(v, sign) >= target), None)}
        for row in best.values()
    ]  # fmt: skip


def _value(number: float | None, sign: float) -> float:
    return -math.inf if number is None else sign * number


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
        medians = {key: _median(table.get(key, {}).get("report") for table in tables) for key in _keys(tables)}
        seconds, seeds, trials = median(record["seconds"] for record in chosen), len(chosen), chosen[0]["trials"]
        unit = {"accuracy": "%", "psnr": "dB", "error": "error, less is better"}[chosen[0]["metric"]]
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


def _keys(tables: Sequence[Mapping[tuple[str, str], Any]]) -> list[tuple[str, str]]:
    return list(dict.fromkeys(key for table in tables for key in table))


def _cells(
    medians: Mapping[tuple[str, str], float | None], tables: Sequence[Mapping[tuple[str, str], Any]], metric: str
) -> tuple[list[str], list[str], list[str]]:
    """One row of each table."""
    sign = -1.0 if metric == "error" else 1.0
    baselines = [key for key in medians if key[0] in BASELINES]
    best = max(baselines, key=lambda key: _value(medians[key], sign), default=None)
    ours, given, adam = ("ours", "ours"), ("ours, torch's start", "torch"), ("AdamW", "ours")
    wins = best is None or _value(medians.get(ours), sign) >= _value(medians[best], sign)
    mark = "**" if wins else ""
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
        theirs = [row["to target"] for (name, _), row in table.items() if name in BASELINES and row["to target"]]
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
