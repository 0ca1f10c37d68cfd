"""The paper's two tables of run times: all layers at once against one after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch

from torchlift.lab.benchmarks.layers import DEPTHS, MU, SIZES, THRESHOLD, Evaluations, cells
from torchlift.lab.benchmarks.measure import interleaved
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Part, Work
from torchlift.report.records import Cell, Claim, Curves, Figure, Series, Table

#: Layers ↦ (vectorised, sequential) in milliseconds on the M1 GPU of the paper, which does not tell width and batch.
PUBLISHED_FORWARD = {
    1: (0.211, 0.091), 2: (0.201, 0.135), 4: (0.201, 0.295), 8: (0.205, 0.671),
    16: (0.186, 1.288), 32: (0.185, 2.36), 64: (0.195, 4.797), 128: (0.197, 10.656),
}  # fmt: skip
PUBLISHED_BACKWARD = {
    1: (1.724, 1.503), 2: (1.814, 1.931), 4: (1.850, 2.840), 8: (1.796, 4.319),
    16: (1.869, 38.679), 32: (1.727, 137.044), 64: (1.784, 515.212), 128: (1.894, 2011.176),
}  # fmt: skip

#: Medians of interleaved bursts repeat to some percent; a way that is 10 % faster is faster.
FASTER = 1.1
#: A published factor counts as met from half of it on: it depends on the machine.
SHARE = 0.5


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Arguments:
        sizes: (width, batch); the first one stands in for the paper's, which is not given.
        depths: numbers of layers.
        seconds, repeats: least time and rounds per cell.
        limit: cells with more multiplications are left out.
    """

    sizes: Sequence[tuple[int, int]]
    depths: Sequence[int]
    seconds: float
    repeats: int
    limit: float


TINY = Sizes(((8, 1), (16, 4)), (1, 4), seconds=0.01, repeats=2, limit=1e9)
#: 30 calls of a cell at the limit take about ten seconds on two cores.
SMALL = Sizes(SIZES, DEPTHS, seconds=1.0, repeats=7, limit=4e10)
PAPER = Sizes(SIZES, DEPTHS, seconds=5.0, repeats=21, limit=float("inf"))


@dataclass(frozen=True)
class LayerTable(Experiment):
    """What both tables share: cells are measured one by one, each a part; here those of the forward pass."""

    on_devices: ClassVar[bool] = True
    timed: ClassVar[bool] = True
    published: ClassVar[Mapping[int, tuple[float, float]]]
    what: ClassVar[str]

    def run(self, work: Work) -> ExperimentResult:
        plan: Sizes = work.choose(TINY, SMALL, PAPER)
        chosen = cells(plan.sizes, plan.depths, plan.limit)
        found = work.each("width {}, batch {}, {} layers", chosen, partial(self.measure, plan, work))
        rows = [dict(row) for _, row in found.values()]
        claims = [*agreement(rows), *work.decided(self.timing(of_size(rows, plan.sizes[0])))]
        deepest = [of_size(rows, size)[-1] for size in plan.sizes]
        factors = "; ".join(f"{speed_up(row):.2g} at {_cell_name(row)}" for row in deepest)
        summary = (
            f"{self.what} of a soft-threshold MLP with all layers in one batched product, against one layer after the "
            f"other, at the same lifted variables, on {work.device} with {torch.get_num_threads()} threads. "
            f"How many times as fast the vectorised way is: {factors}."
        )
        configuration = {
            "sizes": [list(size) for size in plan.sizes],
            "depths": list(plan.depths),
            "seconds per cell": plan.seconds,
            "least rounds": plan.repeats,
            "threads": torch.get_num_threads(),
            "dtype": "float32",
            "activation": f"SoftThreshold({THRESHOLD})",
            "lifting": f"Bregman({MU})",
        }
        return ExperimentResult(summary, claims, self.figures(rows, plan.sizes), configuration)

    def measure(self, plan: Sizes, work: Work, width: int, batch: int, layers: int) -> Part:
        cell = {"width": width, "batch": batch, "layers": layers}
        evaluations = Evaluations(**cell, seed=work.seed, device=work.device)
        times = interleaved(self.methods(evaluations), repeats=plan.repeats, seconds=plan.seconds)
        milliseconds = {name: 1e3 * seconds for name, seconds in times.items()}
        return {}, {**cell, "difference": self.difference(evaluations), "times": milliseconds}

    def methods(self, evaluations: Evaluations) -> dict[str, Callable[[], object]]:
        """Way ↦ call."""
        return evaluations.forward()

    def difference(self, evaluations: Evaluations) -> float:
        """Between the vectorised and the sequential results, in units in the last place."""
        return evaluations.forward_difference()

    def timing(self, rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
        """The claims about run times, from the cells of one size."""
        return [pays(rows), factor(rows, self.published)]

    def figures(self, rows: Sequence[Mapping[str, Any]], sizes: Sequence[tuple[int, int]]) -> list[Figure]:
        return [self._table(of_size(rows, sizes[0])), self._others(rows, sizes), self._curves(rows, sizes)]

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> Table:
        names = list(rows[0]["times"])
        kinds = {"speed-up": ""} if len(names) == 2 else {"speed-up": "", "speed-up, autograd": ", autograd"}
        columns = {"layers": "", **{f"{name} (ms)": ".3g" for name in names}, **dict.fromkeys(kinds, ".2f")}
        columns |= {"difference (ulp)": ".2f", "paper: vectorised (ms)": ".3f", "paper: sequential (ms)": ".3f"}
        lines: list[list[Cell]] = []
        for row in rows:
            pair = self.published.get(row["layers"])
            theirs: list[Cell] = [None] * 3 if pair is None else [*pair, pair[1] / pair[0]]
            ratios = [speed_up(row, *_pair(kind)) for kind in kinds.values()]
            lines.append([row["layers"], *(row["times"][name] for name in names), *ratios, row["difference"], *theirs])
        width, batch = rows[0]["width"], rows[0]["batch"]
        note = (
            f"Width {width}, batch {batch}; medians of interleaved bursts. The paper's columns are from an M1 GPU, at "
            "a width and a batch that it does not tell. ulp: units in the last place of the largest entry."
        )
        title = f"{self.what}: run times against layers"
        return Table.of(self.name, title, {**columns, "paper: speed-up": ".2f"}, lines, note)

    def _others(self, rows: Sequence[Mapping[str, Any]], sizes: Sequence[tuple[int, int]]) -> Table:
        depths = sorted({row["layers"] for row in rows})
        lines: list[list[Cell]] = []
        for depth in depths:
            cells = [[row for row in of_size(rows, size) if row["layers"] == depth] for size in sizes]
            lines.append([depth, *(speed_up(cell[0]) if cell else None for cell in cells)])
        columns = {"layers": "", **{f"width {width}, batch {batch}": ".2f" for width, batch in sizes}}
        note = "Sequential over vectorised time; above 1 the vectorised way is faster. A dash: left out at this scale."
        return Table.of(f"{self.name}-sizes", "Speed-up at other sizes", columns, lines, note)

    def _curves(self, rows: Sequence[Mapping[str, Any]], sizes: Sequence[tuple[int, int]]) -> Curves:
        series = []
        for size in sizes:
            cells = of_size(rows, size)
            label = f"width {size[0]}, batch {size[1]}"
            for name in ("vectorised", "sequential"):
                times = [row["times"][name] for row in cells]
                depths = [row["layers"] for row in cells]
                series.append(Series(f"{label}: {name}", depths, times, dashed=name == "sequential", group=label))
        for place, name in enumerate(("vectorised", "sequential")):
            times = [pair[place] for pair in self.published.values()]
            label = f"paper, M1 GPU: {name}"
            series.append(Series(label, list(self.published), times, dashed=bool(place), group="paper"))
        title = f"{self.what}: milliseconds against layers"
        return Curves(f"{self.name}-curves", title, "layers", "milliseconds", series, x_log=True, y_log=True)


@dataclass(frozen=True)
class TableForward(LayerTable):
    """Activations of all layers at given lifted variables."""

    name = "table-forward"
    title = "Forward pass: all layers at once against one after the other"
    about = "run times of σ(W u + b) for 1 to 128 layers, vectorised and sequential, and whether both agree (Table 1)"
    published = PUBLISHED_FORWARD
    what = "Forward evaluation"


@dataclass(frozen=True)
class TableBackward(LayerTable):
    """All gradients of the lifted objective at given lifted variables."""

    name = "table-backward"
    title = "Backward pass: all layers at once against one after the other"
    about = "run times of the lifted objective's gradients for 1 to 128 layers, vectorised and sequential (Table 2)"
    published = PUBLISHED_BACKWARD
    what = "Gradients"

    def methods(self, evaluations: Evaluations) -> dict[str, Callable[[], object]]:
        # The forward pass too, so that the two factors are compared under the same conditions.
        forward = {f"forward, {name}": call for name, call in evaluations.forward().items()}
        return evaluations.backward() | forward

    def difference(self, evaluations: Evaluations) -> float:
        return evaluations.backward_difference()

    def timing(self, rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
        return [pays(rows), more_than_forward(rows[-1]), factor(rows, self.published)]

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> Table:
        kept = [{**row, "times": {k: v for k, v in row["times"].items() if "forward" not in k}} for row in rows]
        return super()._table(kept)


def of_size(rows: Sequence[Mapping[str, Any]], size: tuple[int, int]) -> list[Mapping[str, Any]]:
    """The rows of one width and batch, by depth."""
    return sorted((row for row in rows if (row["width"], row["batch"]) == tuple(size)), key=lambda row: row["layers"])


def speed_up(row: Mapping[str, Any], slow: str = "sequential", quick: str = "vectorised") -> float:
    return row["times"][slow] / row["times"][quick]


def agreement(rows: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Equality bit for bit, as the paper says, and up to rounding, as can be expected.

    Two orders of summing n products differ by at most n units in the last place of the sum of their
    magnitudes; n units of the largest entry are more than what chance gives, and far less than a mistake.
    """
    equal = sum(row["difference"] == 0 for row in rows)
    worst = max(rows, key=lambda row: row["difference"])
    within = all(row["difference"] <= max(row["width"], row["batch"]) for row in rows)
    said = f"largest difference {worst['difference']:.2g} ulp at width {worst['width']}, batch {worst['batch']}"
    return [
        Claim.of(
            "Both evaluations give the same numbers, bit for bit in single precision.",
            f"equal in {equal} of {len(rows)} cells; {said}",
            equal == len(rows),
        ),
        Claim.of(
            "Both evaluations agree up to the order of summation.",
            f"{said}; allowed are as many as a sum has terms",
            within,
            "torchlift",
        ),
    ]


def pays(rows: Sequence[Mapping[str, Any]]) -> Claim:
    """Whether the deepest network gains, and more than the shallowest."""
    first, last = speed_up(rows[0]), speed_up(rows[-1])
    measured = f"{first:.2f} times as fast with {rows[0]['layers']}, {last:.2f} with {rows[-1]['layers']} layers"
    held = last >= FASTER and last > first
    return Claim.of("Vectorising across layers pays for deep networks.", measured, held)


def factor(rows: Sequence[Mapping[str, Any]], published: Mapping[int, tuple[float, float]]) -> Claim:
    """Whether the deepest network gains at least half of what the paper's did, like with like."""
    depth = max(published)
    theirs = published[depth][1] / published[depth][0]
    last = rows[-1]
    ours = max(speed_up(last, *_pair(kind)) for kind in ("", ", autograd") if f"sequential{kind}" in last["times"])
    statement = (
        f"With {depth} layers the vectorised way is some {theirs:.0f} times as fast (met from {SHARE:g} of it on)."
    )
    measured = f"{ours:.3g} times with {last['layers']} layers on this CPU; the paper: {theirs:.0f} on an M1 GPU"
    return Claim.of(statement, measured, ours >= SHARE * theirs if last["layers"] == depth else None)


def more_than_forward(row: Mapping[str, Any]) -> Claim:
    """Autograd against autograd, as in the paper, and closed formulas against closed formulas."""
    forward = speed_up(row, "forward, sequential", "forward, vectorised")
    closed, tape = speed_up(row), speed_up(row, *_pair(", autograd"))
    measured = (
        f"with {row['layers']} layers: forward {forward:.2f}, gradients by closed formulas {closed:.2f}, "
        f"by autograd {tape:.2f} times as fast"
    )
    statement = "The gain is larger in the backward pass than in the forward pass."
    return Claim.of(statement, measured, min(closed, tape) > forward)


def _cell_name(cell: Mapping[str, Any]) -> str:
    return f"width {cell['width']}, batch {cell['batch']}, {cell['layers']} layers"


def _pair(kind: str) -> tuple[str, str]:
    return f"sequential{kind}", f"vectorised{kind}"
