"""Lifted training against back-propagation: the same networks, data, time and care on both sides."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any

import torch

from torchlift.data import as_batches
from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.lab.benchmarks.measure import interleaved
from torchlift.liftings import Conventional
from torchlift.networks import Network
from torchlift.training import BackPropagation, Phase, Training, TrainStep, evaluate, train
from torchlift.training.metrics import METRICS

Build = Callable[[int], Network]
"""Seed ↦ network."""

#: The seed of its own on which settings are chosen.
CHOOSING = 1000


@dataclass(frozen=True)
class Data:
    """Training data as `train` takes it, held-out data for choices, and data for the report."""

    training: Any
    choice: tuple[Any, ...]
    report: tuple[Any, ...]


@dataclass(frozen=True)
class Contestant:
    """A network and how it is trained.

    Arguments:
        name: in tables.
        build: makes the network.
        options: of `train`.
        usual: other options, whose steps are timed beside these: those of an optimiser as it comes.
    """

    name: str
    build: Build
    options: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Case:
    """One comparison.

    Arguments:
        name: in tables and on the command line.
        data: seed ↦ data.
        metric: what is reported, a name of `METRICS`.
        budget: epochs or time_limit, the same for all.
        lifted: our contestants, each with its defaults.
        others: settings of back-propagation, of which the best one on the held-out data is reported.
        target: what the lifted contestants should reach; None where the case only reports.
        loss: of all contestants; squared error by default.
        select: keep the best parameters on the held-out data, on both sides, instead of the last ones.
        goal: what `target` means: a value of the metric, or a margin over back-propagation.
    """

    name: str
    data: Callable[[int], Data]
    metric: str
    budget: Mapping[str, Any]
    lifted: Sequence[Contestant]
    others: Sequence[Contestant]
    target: float | None = None
    loss: Loss | None = None
    select: bool = False
    goal: str = "value"


def compare(
    case: Case, seeds: Sequence[int], progress: Callable[[str], None], *, repeats: int = 9, seconds: float = 4.0
) -> dict[str, Any]:
    """Choose the best back-propagation on held-out data, then run it and ours in turn, seed after seed.

    Arguments:
        seeds: of networks and data.
        progress: told what is being done.
        repeats, seconds: of the measurement of step times.
    """
    baseline = choose(case, progress)
    methods = [*case.lifted, *([] if baseline is None else [baseline])]
    results: dict[str, list[tuple[float, float, int]]] = {method.name: [] for method in methods}
    for seed in seeds:
        data = case.data(seed)
        for method in methods:
            progress(f"{case.name}: {method.name}, seed {seed}")
            network, training, taken = run(case, method, data, seed)
            results[method.name].append((quality(case, network, data.report), taken, training.steps))
    outcomes = []
    for method in methods:
        values, times, steps = (list(column) for column in zip(*results[method.name], strict=True))
        record = {"case": case.name, "name": method.name, "lifted": method is not baseline, "values": values}
        spread = max(values) - min(values)
        outcomes.append(record | {"seconds": times, "steps": steps, "median": median(values), "spread": spread})
    ratios = {}
    if baseline is not None:
        sides = {"ours": case.lifted[0], "baseline": baseline}
        if baseline.usual is not None:
            sides["usual"] = replace(baseline, options=baseline.usual)
        ratios = step_ratios(case, sides, repeats, seconds)
    return {
        "case": case.name,
        "metric": case.metric,
        "budget": dict(case.budget),
        "target": case.target,
        "goal": case.goal,
        "seeds": list(seeds),
        "outcomes": outcomes,
        "step time ratio": ratios.get("baseline"),
        "step time ratio, usual": ratios.get("usual"),
    }


def choose(case: Case, progress: Callable[[str], None]) -> Contestant | None:
    """The setting of back-propagation that is best on the held-out data of a seed of its own."""
    if len(case.others) <= 1:
        return next(iter(case.others), None)
    data = case.data(CHOOSING)

    def score(method: Contestant) -> float:
        progress(f"{case.name}: choosing, {method.name}")
        network, _, _ = run(case, method, data, CHOOSING)
        return quality(case, network, data.choice)

    return (max if METRICS[case.metric].larger_is_better else min)(case.others, key=score)


def run(case: Case, contestant: Contestant, data: Data, seed: int) -> tuple[Network, Training, float]:
    network = contestant.build(seed)
    held_out = data.choice if case.select else None
    begin = time.perf_counter()
    result = train(
        network, data.training, validation=held_out, loss=case.loss, metrics=(case.metric,) if case.select else (),
        seed=seed, progress=False, **{**case.budget, **contestant.options},
    )  # fmt: skip
    return result.network, result.raise_if_failed(), time.perf_counter() - begin


def quality(case: Case, network: Network, data: tuple[Any, ...]) -> float:
    batches = as_batches(data, batch_size=500, like=network.like)
    loss = SquaredError() if case.loss is None else case.loss
    metric = METRICS[case.metric]
    if not batches.example().x.is_floating_point():
        with torch.no_grad():
            parts = [metric.terms(network(y, context), x) for y, x, context in batches.ordered()]
        return float(torch.cat(parts).mean())
    return evaluate(network, batches.ordered(), loss, (metric,))[case.metric]


def step_ratios(
    case: Case, sides: Mapping[str, Contestant], repeats: int = 9, seconds: float = 4.0
) -> dict[str, float]:
    """Seconds of the first side's step divided by those of the others: medians of interleaved bursts, same data."""
    data = case.data(0)
    calls: dict[str, Callable[[], object]] = {name: _method(case, side, data).step for name, side in sides.items()}
    first, *others = calls
    times = interleaved(calls, repeats=repeats, seconds=seconds)
    return {name: times[first] / times[name] for name in others}


def _method(case: Case, contestant: Contestant, data: Data) -> TrainStep:
    network = contestant.build(0)
    options = {
        name: contestant.options[name] for name in ("lifting", "solver", "batch_size") if name in contestant.options
    }
    phase = Phase(**options, epochs=1)
    size = phase.batch_size if isinstance(phase.batch_size, int) else 100
    batches = as_batches(data.training, batch_size=size, like=network.like)
    floating = batches.example().x.is_floating_point()
    loss = case.loss or (SquaredError() if floating else CrossEntropy())
    return phase.begin(network, loss, batches, lambda count: 1.0)


def adam(rate: float, *, centring: bool = False, fused: bool = True, **options: Any) -> dict[str, Any]:
    """Options for back-propagation with Adam and annealing, plain or with centring."""
    solver = BackPropagation(partial(torch.optim.Adam, lr=rate, fused=fused), "cosine", centring)
    return {"lifting": Conventional(), "solver": solver, **options}


def baselines(build: Build, rates: Sequence[float], sizes: Sequence[int], **options: Any) -> list[Contestant]:
    """Back-propagation with torch's fused Adam: learning rates × batch sizes × centring."""
    return [
        Contestant(
            f"Adam {rate:g}, batch {size}{', centred' if centring else ''}",
            build,
            adam(rate, centring=centring, batch_size=size, **options),
            adam(rate, centring=centring, batch_size=size, fused=False, **options),
        )
        for size in sizes
        for rate in rates
        for centring in (False, True)
    ]
