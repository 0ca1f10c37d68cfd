"""What a training step costs against depth, width and samples, with fitted exponents."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median_high

import torch

from torchlift.data import as_batches
from torchlift.functions.losses import SquaredError
from torchlift.lab.benchmarks.measure import interleaved
from torchlift.lab.reproduction.confidence import Interval, student
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Part, Work
from torchlift.liftings import Bregman, Conventional
from torchlift.networks import MLP
from torchlift.prox import SoftThreshold
from torchlift.report.records import Cell, Claim, Curves, Figure, Series, Table
from torchlift.solvers import LinearisedBCD, ProximalAdam
from torchlift.training import BackPropagation, Phase

THRESHOLD, MU = 0.2, 0.1
TAPE, SWEEP, FREE = "back-propagation", "backward sweep", "free lifted variables"
METHODS = (TAPE, SWEEP, FREE)

#: Matrix products grow like this.
EXPECTED: Mapping[str, float] = {"layers": 1.0, "width": 2.0, "samples": 1.0}
#: Caches make larger sizes a little slower per operation; an exponent over by this is no other power.
TOLERANCE = 0.1
#: What the project allows a step of the default to cost, in steps of back-propagation.
ALLOWED = 1.1
#: Points of an axis that are fitted, the largest ones: before them, starting operations takes most of the time.
FITTED = 4


@dataclass(frozen=True)
class Plan:
    """Where steps are timed.

    Arguments:
        axes: the values of each axis; the others stay at `base`.
        base: layers, width and samples per step.
        blocks: repetitions of every measurement, each a median of interleaved bursts.
        seconds, repeats: least time and rounds of a block.
    """

    axes: Mapping[str, Sequence[int]]
    base: Mapping[str, int]
    blocks: int
    seconds: float
    repeats: int


TINY = Plan(
    {"layers": (1, 2), "width": (4, 8), "samples": (4, 8)}, {"layers": 1, "width": 4, "samples": 4}, 1, 0.005, 1
)
BASE: Mapping[str, int] = {"layers": 4, "width": 256, "samples": 100}
SMALL = Plan(
    {
        "layers": (1, 2, 4, 8, 16, 32, 64),
        "width": (32, 64, 128, 256, 512, 1024),
        "samples": (10, 30, 100, 300, 1000, 3000),
    },
    *(BASE, 3, 0.5, 5),
)
PAPER = Plan(
    {
        "layers": (1, 2, 4, 8, 16, 32, 64, 128),
        "width": (32, 64, 128, 256, 512, 1024, 2048),
        "samples": (10, 30, 100, 300, 1000, 3000, 10000),
    },
    *(BASE, 5, 2.0, 9),
)


def steps(layers: int, width: int, samples: int, seed: int) -> dict[str, Callable[[], object]]:
    """Method ↦ one training step on the full batch."""
    calls: dict[str, Callable[[], object]] = {}
    phases = {
        TAPE: Phase(Conventional(), BackPropagation(torch.optim.Adam), batch_size=samples, steps=1),
        SWEEP: Phase(batch_size=samples, steps=1),
        FREE: Phase(Bregman(MU), LinearisedBCD(ProximalAdam(1e-4)), batch_size="full", steps=1),
    }
    for name, phase in phases.items():
        generator = torch.Generator().manual_seed(seed)
        network = MLP([width] * (layers + 2), SoftThreshold(THRESHOLD), generator=generator)
        y, x = (torch.randn(samples, width, generator=generator) for _ in range(2))
        batches = as_batches((y, x), batch_size=samples, like=network.like)
        calls[name] = phase.begin(network, SquaredError(), batches, seed=seed).step
    return calls


def power(x: Sequence[float], y: Sequence[float]) -> Interval:
    """The exponent a of y ≈ c xᵃ by least squares in logarithms, with Student's interval of 95 %.

    Fewer than seven points have no interval, since the quantile is accurate from five degrees of freedom on only.
    """
    u, v = (torch.tensor(values, dtype=torch.float64).log() for values in (x, y))
    u, v = u - u.mean(), v - v.mean()
    spread = float(u @ u)
    slope = float(u @ v) / spread
    freedom = len(x) - 2
    if freedom < 5:
        return Interval(slope, -math.inf, math.inf)
    half = student(freedom) * math.sqrt(float((v - slope * u).square().sum()) / freedom / spread)
    return Interval(slope, slope - half, slope + half)


Times = Mapping[int, Mapping[str, Sequence[float]]]
"""Where on the axis ↦ method ↦ milliseconds, one per block."""


def exponents(times: Times) -> dict[str, Interval]:
    """Method ↦ exponent, fitted to the largest sizes."""
    fitted = sorted(times)[-FITTED:]
    pairs = {name: [(at, value) for at in fitted for value in times[at][name]] for name in METHODS}
    return {name: power([at for at, _ in points], [value for _, value in points]) for name, points in pairs.items()}


@dataclass(frozen=True)
class Scaling(Experiment):
    """Seconds per step."""

    timed = True
    name = "scaling"
    title = "Cost of a training step against depth, width and samples"
    about = "time of a lifted step and of back-propagation over depth, width and samples, fitted exponents (ours)"

    def run(self, work: Work) -> ExperimentResult:
        plan: Plan = work.choose(TINY, SMALL, PAPER)
        places = [(axis, value) for axis, values in plan.axes.items() for value in values]
        found = work.each("{} {}", places, partial(_measure, plan, work.seed))
        times_by_axis = {axis: {value: found[axis, value][1] for value in values} for axis, values in plan.axes.items()}
        fits = {axis: exponents(times) for axis, times in times_by_axis.items()}
        claims = work.decided([powers(fits), against_tape(fits), cost(times_by_axis)])
        shown = "; ".join(f"{axis} {fits[axis][SWEEP].mean:.2f} ({fits[axis][TAPE].mean:.2f})" for axis in fits)
        summary = (
            "Time of one training step of a soft-threshold MLP. Exponents of the default's backward sweeps, and of "
            f"back-propagation in brackets, fitted to the {FITTED} largest sizes: {shown}."
        )
        configuration = {
            "axes": {axis: list(values) for axis, values in plan.axes.items()},
            "base": dict(plan.base),
            "blocks": plan.blocks,
            "seconds per block": plan.seconds,
            "threads": torch.get_num_threads(),
            "activation": f"SoftThreshold({THRESHOLD})",
            "methods": {
                TAPE: "Conventional, torch.optim.Adam",
                SWEEP: "SweepDescent()",
                FREE: f"Bregman({MU}), LinearisedBCD(ProximalAdam(0.0001)), full batch",
            },
        }
        return ExperimentResult(summary, claims, [_fits_table(fits), *_figures(times_by_axis, plan)], configuration)


def _measure(plan: Plan, seed: int, axis: str, value: int) -> Part:
    methods = steps(**{**plan.base, axis: value}, seed=seed)
    blocks = [interleaved(methods, repeats=plan.repeats, seconds=plan.seconds) for _ in range(plan.blocks)]
    return {}, {name: [1e3 * block[name] for block in blocks] for name in METHODS}


def powers(fits: Mapping[str, Mapping[str, Interval]]) -> Claim:
    """Whether any lower border lies above the power of matrix products."""
    excesses = [
        (axis, name, fit.low - EXPECTED[axis], fit.text())
        for axis, by_name in fits.items()
        for name, fit in by_name.items()
        if name != TAPE
    ]
    worst = max(excesses, key=lambda excess: excess[2])
    measured = "; ".join(f"{name}, {axis}: {text}" for axis, name, _, text in excesses)
    statement = "A lifted step takes time linear in layers and samples, and at most quadratic in the width."
    return Claim.of(statement, measured, worst[2] <= TOLERANCE, "torchlift")


def against_tape(fits: Mapping[str, Mapping[str, Interval]]) -> Claim:
    """Whether the intervals of the exponents meet, or lifted ones lie lower."""
    faster = [
        f"{name} in {axis}"
        for axis, by_name in fits.items()
        for name, fit in by_name.items()
        if fit.low > by_name[TAPE].high
    ]
    measured = "; ".join(f"{axis}: {by_name[TAPE].text()} by back-propagation" for axis, by_name in fits.items())
    measured += f"; growing faster: {', '.join(faster)}" if faster else "; none grows significantly faster"
    statement = "Lifted steps grow no faster with the size than steps of back-propagation."
    return Claim.of(statement, measured, not faster, "torchlift")


def cost(times_by_axis: Mapping[str, Times]) -> Claim:
    """At the largest size of each axis, medians of blocks."""
    ratios = {axis: _ratio(times[max(times)], SWEEP) for axis, times in times_by_axis.items()}
    measured = "; ".join(
        f"{ratio:.2f} with {max(times_by_axis[axis])} {'units' if axis == 'width' else axis}"
        for axis, ratio in ratios.items()
    )
    statement = f"A step of the default costs at most {ALLOWED:g} times as much as one of back-propagation with Adam."
    return Claim.of(statement, measured, max(ratios.values()) <= ALLOWED, "torchlift")


def _ratio(cell: Mapping[str, Sequence[float]], name: str) -> float:
    return median_high(cell[name]) / median_high(cell[TAPE])


def _fits_table(fits: Mapping[str, Mapping[str, Interval]]) -> Table:
    rows: list[list[Cell]] = []
    for axis, by_name in fits.items():
        for name, fit in by_name.items():
            borders = (fit.low, fit.high) if math.isfinite(fit.low) else (None, None)
            rows.append([axis, name, fit.mean, *borders, EXPECTED[axis]])
    columns = {"axis": "", "method": "", "exponent": ".2f", "95 %: from": ".2f", "to": ".2f"}
    note = f"Least squares in logarithms on the {FITTED} largest sizes. A dash: too few values for an interval."
    return Table.of("exponents", "Fitted exponents", {**columns, "of the products alone": ".0f"}, rows, note)


def _figures(times_by_axis: Mapping[str, Times], plan: Plan) -> list[Figure]:
    made: list[Figure] = []
    labels = {"layers": "layers", "width": "width", "samples": "samples per step"}
    for axis, times in times_by_axis.items():
        fixed = ", ".join(f"{labels[name]}: {value}" for name, value in plan.base.items() if name != axis)
        rows: list[list[Cell]] = [
            [at, *(median_high(cell[name]) for name in METHODS), _ratio(cell, SWEEP), _ratio(cell, FREE)]
            for at, cell in times.items()
        ]
        columns = {labels[axis]: "", **{f"{name} (ms)": ".3g" for name in METHODS}}
        columns |= {f"{name}, ratio": ".2f" for name in (SWEEP, FREE)}
        title = f"Time of a step against {labels[axis]}"
        note = f"Fixed: {fixed}. Medians; ratios to back-propagation."
        made.append(Table.of(f"step-{axis}", title, columns, rows, note))
        series = [
            Series(
                name,
                list(times),
                [median_high(cell[name]) for cell in times.values()],
                [min(cell[name]) for cell in times.values()],
                [max(cell[name]) for cell in times.values()],
                dashed=name == TAPE,
            )
            for name in METHODS
        ]
        note = f"Fixed: {fixed}. Bands: smallest and largest of {plan.blocks} medians."
        made.append(
            Curves(f"curve-{axis}", title, labels[axis], "milliseconds", series, x_log=True, y_log=True, note=note)
        )
    return made
