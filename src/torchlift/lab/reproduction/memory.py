"""Memory of lifted training against back-propagation, over batch, depth and number of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from torchlift.data import as_batches
from torchlift.functions.losses import SquaredError
from torchlift.lab.benchmarks.measure import PeakMemory
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Part, Work
from torchlift.liftings import Bregman, Conventional
from torchlift.networks import MLP
from torchlift.prox import SoftThreshold
from torchlift.report.records import Cell, Claim, Curves, Figure, Series, Table
from torchlift.solvers import LinearisedBCD, ProximalAdam
from torchlift.training import BackPropagation, Phase

WIDTH, THRESHOLD, MU = 256, 0.2, 0.1
#: After six steps every solver has all of its memory, averages of parameters included.
STEPS = 6

TAPE, SWEEP, FREE = "back-propagation", "backward sweep", "free variables of a batch"
WHOLE, KEPT, HALF, MAPPED = "free variables, full batch", "kept, float32", "kept, bfloat16", "kept, on disk"
ON_BATCHES = (TAPE, SWEEP, FREE)
ALL = (TAPE, SWEEP, WHOLE, FREE, KEPT, HALF, MAPPED)

#: "Significantly larger": half as much again.
LARGER = 1.5
#: A share of the growth with the samples that counts as none: bookkeeping of indices.
NOTHING = 0.05


@dataclass(frozen=True)
class Plan:
    """Where memory is measured.

    Arguments:
        batches: batch sizes, at `depth` layers.
        depths: numbers of layers, at `batch` samples.
        samples: sizes of the data set, at `depth` layers and, but for the full batch, `batch` samples at a time.
        depth, batch: what is fixed while another one changes.
    """

    batches: Sequence[int]
    depths: Sequence[int]
    samples: Sequence[int]
    depth: int
    batch: int


TINY = Plan((4, 8), (1,), (8, 16), depth=2, batch=4)
SMALL = Plan((10, 30, 100, 300, 1000), (1, 2, 4, 8, 16, 32), (500, 1000, 2000, 4000), depth=7, batch=100)
#: The paper's seven layers and 5,000 images.
PAPER = Plan((10, 30, 100, 300, 1000, 3000), (1, 2, 4, 8, 16, 32, 64, 128), (1000, 2500, 5000), depth=7, batch=100)


def methods(batch: int, folder: Path) -> dict[str, Phase]:
    """The phases by name, on batches of one size or, for one of them, on all samples at once."""
    free = Phase(Bregman(MU), LinearisedBCD(ProximalAdam(1e-3)), batch_size=batch, steps=STEPS)
    warm = replace(free, states="warm")
    return {
        TAPE: Phase(Conventional(), BackPropagation(torch.optim.Adam), batch_size=batch, steps=STEPS),
        SWEEP: Phase(batch_size=batch, steps=STEPS),
        FREE: free,
        WHOLE: replace(free, batch_size="full"),
        KEPT: warm,
        HALF: replace(warm, state_dtype=torch.bfloat16),
        MAPPED: replace(warm, state_storage=folder),
    }


def peak(phase: Phase, layers: int, samples: int, seed: int, width: int = WIDTH) -> int:
    """Bytes of tensors that some steps have in use beside the network and the data; solvers' memory counts."""
    generator = torch.Generator().manual_seed(seed)
    network = MLP([width] * (layers + 2), SoftThreshold(THRESHOLD), generator=generator)
    y, x = (torch.randn(samples, width, generator=generator) for _ in range(2))
    size = phase.batch_size if isinstance(phase.batch_size, int) else None
    batches = as_batches((y, x), batch_size=size, like=network.like)
    with PeakMemory() as memory:
        method = phase.begin(network, SquaredError(), batches, seed=seed)
        for _ in range(STEPS):
            method.step()
    return memory.peak


@dataclass(frozen=True)
class Memory(Experiment):
    """Peak memory of training steps."""

    name = "memory"
    title = "Memory of lifted training and of back-propagation"
    about = "peak memory of lifted training and back-propagation over batch, depth and samples (ours; paper's outlook)"

    def run(self, work: Work) -> ExperimentResult:
        plan: Plan = work.choose(TINY, SMALL, PAPER)
        axes = {"batch": plan.batches, "layers": plan.depths, "samples": plan.samples}
        places = [(axis, place) for axis, values in axes.items() for place in values]
        found = work.each("{} {}", places, partial(_measure, plan, work.seed))
        bytes_by_axis = {axis: {place: found[axis, place][1] for place in values} for axis, values in axes.items()}
        claims = [
            overhead(bytes_by_axis),
            one_batch(bytes_by_axis["samples"]),
            sweep_against_tape(bytes_by_axis),
            stores(bytes_by_axis["samples"]),
        ]
        configuration = {
            "width": WIDTH,
            "activation": f"SoftThreshold({THRESHOLD})",
            "lifting": f"Bregman({MU})",
            "solver of free variables": "LinearisedBCD(ProximalAdam(0.001))",
            "solver of back-propagation": "Adam",
            "batches": list(plan.batches),
            "depths": list(plan.depths),
            "samples": list(plan.samples),
            "layers where they are fixed": plan.depth,
            "batch where it is fixed": plan.batch,
        }
        return ExperimentResult(
            _summary(bytes_by_axis, plan), work.decided(claims), figures(bytes_by_axis, plan), configuration
        )


def _measure(plan: Plan, seed: int, axis: str, place: int) -> Part:
    layers = place if axis == "layers" else plan.depth
    batch = place if axis == "batch" else plan.batch
    samples = place if axis == "samples" else batch
    with TemporaryDirectory() as folder:
        chosen = methods(batch, Path(folder))
        names = ALL if axis == "samples" else ON_BATCHES
        return {}, {name: peak(chosen[name], layers, samples, seed) for name in names}


Cells = Mapping[int, Mapping[str, int]]
"""Where on the axis ↦ method ↦ bytes."""


def _ratios(bytes_by_axis: Mapping[str, Cells], name: str) -> list[float]:
    """The memory of a method over that of back-propagation, on the same batch and the same depth."""
    return [cell[name] / cell[TAPE] for axis in ("batch", "layers") for cell in bytes_by_axis[axis].values()]


def growth(cells: Cells, name: str) -> float:
    """Bytes per step along the axis, between its last two points: before them, solvers may need most."""
    first, last = sorted(cells)[-2:]
    return (cells[last][name] - cells[first][name]) / (last - first)


def overhead(bytes_by_axis: Mapping[str, Cells]) -> Claim:
    ratios = _ratios(bytes_by_axis, FREE)
    measured = f"{min(ratios):.2f} to {max(ratios):.2f} times as much as back-propagation with Adam on the same batch"
    statement = "Even on mini-batches, free lifted variables take significantly more memory than back-propagation."
    return Claim.of(statement, measured, min(ratios) >= LARGER)


def one_batch(cells: Cells) -> Claim:
    """Growth with the samples, against that of the full batch."""
    share = growth(cells, FREE) / growth(cells, WHOLE)
    last = max(cells)
    measured = (
        f"with {last} samples {_mega(cells[last][FREE])} MB on batches, {_mega(cells[last][WHOLE])} MB on all at once; "
        f"growth with the samples: {100 * share:.1f} % of that of the full batch"
    )
    statement = "The implicit stochastic gradient keeps the lifted variables of one batch only."
    return Claim.of(statement, measured, share <= NOTHING)


def sweep_against_tape(bytes_by_axis: Mapping[str, Cells]) -> Claim:
    """Whole peaks, and what grows with the batch: activations and lifted variables, without solvers' copies."""
    ratios = _ratios(bytes_by_axis, SWEEP)
    share = growth(bytes_by_axis["batch"], SWEEP) / growth(bytes_by_axis["batch"], TAPE)
    measured = (
        f"{min(ratios):.2f} to {max(ratios):.2f} times as much as back-propagation with Adam; "
        f"growth with the batch: {share:.2f} times"
    )
    statement = "Backward sweeps, the default of `train`, take no more memory than back-propagation on the same batch."
    return Claim.of(statement, measured, max(ratios) <= 1, "torchlift")


def stores(cells: Cells) -> Claim:
    whole = growth(cells, KEPT) - growth(cells, FREE)
    half, mapped = ((growth(cells, name) - growth(cells, FREE)) / whole for name in (HALF, MAPPED))
    measured = f"growth with the samples against float32: bfloat16 {half:.2f}, memory-mapped file {mapped:.2f}"
    held = abs(half - 0.5) <= NOTHING and mapped <= NOTHING
    statement = "Lifted variables that are kept between epochs take half the memory in bfloat16, and none on disk."
    return Claim.of(statement, measured, held, "torchlift")


def figures(bytes_by_axis: Mapping[str, Cells], plan: Plan) -> list[Figure]:
    texts = {
        "batch": ("samples per batch", f"{plan.depth} layers of width {WIDTH}."),
        "layers": ("layers", f"Batches of {plan.batch}, width {WIDTH}."),
        "samples": (
            "samples",
            f"{plan.depth} layers of width {WIDTH}, batches of {plan.batch} but for the full batch.",
        ),
    }
    made: list[Figure] = []
    for axis, (label, note) in texts.items():
        cells = bytes_by_axis[axis]
        note = f"{note} Peak of all tensors beside the network and the data: gradients, solver, lifted variables."
        names = list(next(iter(cells.values())))
        rows: list[list[Cell]] = [[at, *(float(_mega(cell[name])) for name in names)] for at, cell in cells.items()]
        title = f"Peak memory against {label} (MB)"
        made.append(Table.of(f"memory-{axis}", title, {label: "", **dict.fromkeys(names, ".1f")}, rows, note))
        series = [Series(name, list(cells), [cell[name] / 1e6 for cell in cells.values()]) for name in names]
        made.append(Curves(f"curve-{axis}", title, label, "MB", series, x_log=True, y_log=True, note=note))
    return [_growth_table(bytes_by_axis, plan), *made]


def _growth_table(bytes_by_axis: Mapping[str, Cells], plan: Plan) -> Table:
    """What one more sample costs, in numbers per unit of the hidden layers; what is there without any, in networks."""
    state = 4 * WIDTH * plan.depth
    network = 4 * (plan.depth + 1) * (WIDTH + 1) * WIDTH
    rows: list[list[Cell]] = []
    for name in (TAPE, SWEEP, FREE):
        slope = growth(bytes_by_axis["batch"], name)
        last = max(bytes_by_axis["batch"])
        fixed = bytes_by_axis["batch"][last][name] - slope * last
        rows.append([name, slope / state, fixed / network])
    columns = {"method": "", "per sample of a batch (states)": ".2f", "fixed (networks)": ".2f"}
    note = (
        "A line through the two largest batches. States: one number per hidden unit; a stored activation "
        "is one. Networks: one number per parameter; a gradient is one, the two moments of Adam are two."
    )
    return Table.of("growth", "What memory consists of", columns, rows, note)


def _mega(size: float) -> str:
    return f"{size / 1e6:.1f}"


def _summary(bytes_by_axis: Mapping[str, Cells], plan: Plan) -> str:
    cell = bytes_by_axis["layers"][max(plan.depths)]
    return (
        f"Peak memory of {STEPS} training steps beside the network and the data. With {max(plan.depths)} layers of "
        f"width {WIDTH} and batches of {plan.batch}: back-propagation with Adam {_mega(cell[TAPE])} MB, backward "
        f"sweeps {_mega(cell[SWEEP])} MB, free lifted variables {_mega(cell[FREE])} MB. Numbers count bytes of "
        "tensors, so they do not depend on the machine."
    )
