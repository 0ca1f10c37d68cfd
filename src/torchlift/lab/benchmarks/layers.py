"""`torchlift bench layers`: all layers evaluated at once against one after the other, as in the paper's two tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor
from torch.nn.functional import linear

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import shown
from torchlift.core.checks import check_device, check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.lab.benchmarks.measure import PeakMemory, interleaved
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import ErrorProblem, Objective, TrainingProblem
from torchlift.objective.engine import Gradients
from torchlift.prox import SoftThreshold, Tanh
from torchlift.report.records import Curves, Series, Table
from torchlift.solvers import Backtracking, LinearisedBCD, ProximalGradient

#: Part of the first objective that is to be reached.
TARGET = 0.1
WIDTH, BATCH = 16, 64


def compare(depth: int, *, steps: int, seconds: float, target: float = TARGET, seed: int = 0) -> dict[str, Any]:
    """Both coordinates from the same start by the same solver, until each is there or has had its steps or seconds.

    A chain of tanh with orthogonal weights, so that signals neither vanish nor grow in any
    depth, is to learn random targets, more than its output map could fit alone: Bregman lifting
    with μ = 1, linearised block coordinate descent with backtracking, full batch, lifted
    variables from the forward pass.

    Arguments:
        depth: hidden layers.
        steps: at most.
        seconds: of the processor, at most.
        target: the part of the first objective that is to be reached.
        seed: of weights and data.
    """
    rows = {}
    for name, kind in (("states", TrainingProblem), ("errors", ErrorProblem)):
        generator = torch.Generator().manual_seed(seed + 1)
        y, x = (0.3 * torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
        objective = Objective(_network(depth, seed), Bregman(), coordinates=name)  # type: ignore[arg-type]
        problem = kind(objective, y, x)
        rows[name] = _run(problem, steps, seconds, target)
    return {"depth": depth, "width": WIDTH, "batch": BATCH, "target": target, **rows}


def _run(problem: TrainingProblem, steps: int, seconds: float, target: float) -> dict[str, Any]:
    solver = LinearisedBCD(ProximalGradient(Backtracking()))
    state = solver.init(problem, problem.start())
    first = value = problem.value(state.point)
    spent, count = 0.0, 0
    while value > target * first and count < steps and spent < seconds:
        begin = time.process_time()
        state = solver.step(problem, state)
        spent, count = spent + time.process_time() - begin, count + 1
        value = problem.value(state.point)
    return {"steps": count, "seconds": spent, "part": value / first, "reached": value <= target * first}


@torch.no_grad()
def _network(depth: int, seed: int) -> MLP:
    generator = torch.Generator().manual_seed(seed)
    network = MLP([WIDTH] * (depth + 2), Tanh(), generator=generator, dtype=torch.float64)
    for name, parameter in network.named_parameters():
        if name.endswith("weight"):
            for matrix in parameter.reshape(-1, WIDTH, WIDTH):
                matrix.copy_(torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator, dtype=torch.float64))[0])
        else:
            parameter.zero_()
    return network


DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
SIZES = ((32, 1), (64, 32), (256, 100), (784, 500))
"""(width, batch) from tiny to the paper's network."""

THRESHOLD, MU = 0.2, 0.5
#: Multiplications beyond which a cell is left out unless asked for: it would take minutes.
LARGEST = 2e11


Row = dict[str, float]
"""One depth at one width and batch size; times in milliseconds, ratios against the vectorised evaluation.

"matmul_fraction": operations per second of the gradients as a fraction of `torch.mm` on the same shape.
"memory_buffers": peak extra memory of one gradient evaluation, in state buffers (layers × batch × width numbers).
"difference_ulp": largest difference of vectorised and looped forward values, in units in the last place.
"""

_TABLES = {
    "All layers at given states": {
        "width": ("width", ""), "batch": ("batch", ""), "layers": ("layers", ""), "vectorised": ("forward", ".3g"),
        "loop": ("forward_loop", ".3g"), "×": ("forward_ratio", ".3g"), "ulp": ("difference_ulp", ".2f"),
    },
    "All gradients": {
        "width": ("width", ""), "batch": ("batch", ""), "layers": ("layers", ""), "vectorised": ("gradients", ".3g"),
        "loop": ("gradients_loop", ".3g"), "×": ("loop_ratio", ".3g"), "autograd": ("gradients_autograd", ".3g"),
        "× ": ("autograd_ratio", ".3g"), "of mm": ("matmul_fraction", ".2f"), "buffers": ("memory_buffers", ".2f"),
    },
}  # fmt: skip
"""Title ↦ heading ↦ (name in a row, format)."""

_CURVES = {
    "all layers": {"vectorised": "forward", "loop": "forward_loop"},
    "all gradients": {"vectorised": "gradients", "loop": "gradients_loop", "loop, autograd": "gradients_autograd"},
}

_LEGEND = (
    "Medians of interleaved rounds, in milliseconds.  ×: how often the vectorised way fits in.",
    "ulp: largest difference of the two ways, in units in the last place.",
    "of mm: speed as a fraction of torch.mm on the shape of one layer.",
    "buffers: peak memory of states, their gradients and temporaries, in state buffers.",
)


@dataclass(frozen=True, kw_only=True)
class BenchLayers(Command):
    """Time all layers evaluated at once against one by one, for 1 to 128 layers."""

    name: ClassVar[str] = "bench layers"

    widths: tuple[int, ...] = tuple(width for width, _ in SIZES)
    """Widths of the layers."""
    batches: tuple[int, ...] = tuple(batch for _, batch in SIZES)
    """Batch sizes, one per width."""
    depths: tuple[int, ...] = DEPTHS
    """Numbers of layers."""
    coordinates: tuple[int, ...] = ()
    """Instead: steps and processor seconds to a tenth of the objective in z and in errors, for so many layers."""
    seconds: float = 0.5
    """Time spent on each combination, at least seven rounds."""
    threads: int | None = None
    """Threads of torch; all that it takes by itself if not given."""
    device: str = "cpu"
    """Where they are evaluated: cpu, cuda, mps, xpu."""

    def collect(self) -> Record:
        if self.coordinates:
            effort = {"steps": 400, "seconds": 20 * self.seconds}
            return {"coordinates": [compare(check_size("coordinates", d), **effort) for d in self.coordinates]}
        if len(self.widths) != len(self.batches):
            invalid_value("batches", f"one batch size for each of {len(self.widths)} widths", len(self.batches))
        sizes = tuple(zip(self.widths, self.batches, strict=True))
        for name, numbers in (("widths", self.widths), ("batches", self.batches), ("depths", self.depths)):
            for number in numbers:
                check_size(name, number)
        if self.threads is not None:
            torch.set_num_threads(check_size("threads", self.threads))
        device = str(check_device("device", self.device))
        measured = rows(sizes, self.depths, seconds=check_positive("seconds", self.seconds), device=device)
        total, console = len(sizes) * len(self.depths), Console(stderr=True)
        tracked = track(measured, "measuring", total=total, console=console, disable=self.json, transient=True)
        return {"threads": torch.get_num_threads(), "device": device, "rows": list(tracked)}

    def show(self, record: Record, console: Console) -> None:
        if "coordinates" in record:
            headings = {"layers": "", "coordinates": "", "steps": "", "processor s": ".2f"}
            headings |= {"part of the first objective": ".3f"}
            ends = [(row, name, row[name]) for row in record["coordinates"] for name in ("states", "errors")]
            cells = [[row["depth"], name, end["steps"], end["seconds"], end["part"]] for row, name, end in ends]
            console.print(shown(Table.of("coordinates", "", headings, cells)))
            return
        for title, columns in _TABLES.items():
            title = f"{title}, {record['threads']} threads"
            console.print(shown(Table.of_records("layers", title, columns, record["rows"])))
            console.print()
        for line in _LEGEND:
            console.print(line)

    def save(self, record: Record) -> None:
        if "coordinates" not in record:
            self.save_figure("bench-layers", lambda plot: plot.figure(*growth(record["rows"])), ("png", "svg"))


def growth(rows: Sequence[dict[str, Any]]) -> list[Curves]:
    """Milliseconds against layers: a panel for each size, of all layers and of all gradients."""
    figures = []
    for what, methods in _CURVES.items():
        for width, batch in dict.fromkeys((row["width"], row["batch"]) for row in rows):
            same = [row for row in rows if (row["width"], row["batch"]) == (width, batch)]
            depths = [row["layers"] for row in same]
            series = [
                Series(label, depths, [row[name] for row in same], dashed=label != "vectorised")
                for label, name in methods.items()
            ]
            title = f"{what}, width {width}, batch {batch}"
            figures.append(Curves(f"{width}-{batch}", title, "layers", "ms", series, x_log=True, y_log=True))
    return figures


def rows(
    sizes: tuple[tuple[int, int], ...] = SIZES,
    depths: tuple[int, ...] = DEPTHS,
    *,
    seconds: float = 0.5,
    repeats: int = 7,
    seed: int = 0,
    device: str = "cpu",
) -> Iterator[Row]:
    """Measure every combination, smallest first; cells that would take minutes are left out."""
    for width, batch, layers in cells(sizes, depths, LARGEST):
        yield measure(width, batch, layers, seconds=seconds, repeats=repeats, seed=seed, device=device)


def cells(sizes: Sequence[tuple[int, int]], depths: Sequence[int], limit: float) -> Iterator[tuple[int, int, int]]:
    """(width, batch, layers) of all combinations of at most `limit` multiplications."""
    for width, batch in sizes:
        for layers in depths:
            if 6.0 * layers * batch * width**2 <= limit:
                yield width, batch, layers


def measure(
    width: int, batch: int, layers: int, *, seconds: float, repeats: int, seed: int = 0, device: str = "cpu"
) -> Row:
    """One row: the vectorised engine, a plain loop, and a loop differentiated by autograd, in turn."""
    evaluations = Evaluations(width, batch, layers, seed, device)
    forward, backward = evaluations.forward(), evaluations.backward()
    matrix = torch.randn(width, width, generator=torch.Generator().manual_seed(seed)).to(device)
    times = interleaved(
        {
            "forward": forward["vectorised"],
            "forward_loop": forward["sequential"],
            "gradients": backward["vectorised"],
            "gradients_loop": backward["sequential"],
            "gradients_autograd": backward["sequential, autograd"],
            "matmul": lambda: torch.mm(evaluations.y, matrix),
        },
        repeats=repeats,
        seconds=seconds,
    )
    one_product = times.pop("matmul")
    products = 3 * layers - 1 + 3  # forward, adjoint and weight gradient of each layer; no adjoint for y; K
    return {
        "width": width,
        "batch": batch,
        "layers": layers,
        **{name: 1e3 * value for name, value in times.items()},
        "forward_ratio": times["forward_loop"] / times["forward"],
        "loop_ratio": times["gradients_loop"] / times["gradients"],
        "autograd_ratio": times["gradients_autograd"] / times["gradients"],
        "matmul_fraction": products * one_product / times["gradients"],
        "memory_buffers": _memory(evaluations.objective, evaluations.y, evaluations.x, layers * batch * width * 4),
        "difference_ulp": evaluations.forward_difference(),
    }


class Evaluations:
    """One network, evaluated by every method at the same lifted variables."""

    def __init__(self, width: int, batch: int, layers: int, seed: int, device: torch.device | str = "cpu") -> None:
        generator = torch.Generator().manual_seed(seed)
        network = MLP([width] * (layers + 2), SoftThreshold(THRESHOLD), generator=generator).to(device)
        self.y, self.x = (torch.randn(batch, width, generator=generator).to(device) for _ in range(2))
        self.objective = Objective(network, Bregman(MU))
        # Different in every layer: with equal ones a mistake in the order of layers would stay unseen.
        self.z = self.objective.initialise(self.y, "random", generator=generator)
        self.loop = Loop(network, self.y, self.x, [layer.clone() for layer in self.z])
        W, b = self._detached("W"), self._detached("b")
        self.W, self.b = torch.stack(W[:-1]).requires_grad_(), torch.stack(b[:-1]).requires_grad_()
        self.K, self.d = W[-1].requires_grad_(), b[-1].requires_grad_()
        self.stack = torch.stack([layer.detach() for layer in self.z]).requires_grad_()

    def forward(self) -> dict[str, Callable[[], object]]:
        out = self.objective.activations(self.y, self.z)
        return {
            "vectorised": lambda: self.objective.activations(self.y, self.z, out=out),
            "sequential": self.loop.forward,
        }

    def backward(self) -> dict[str, Callable[[], object]]:
        out = self.objective.gradients(self.y, self.x, self.z)
        return {
            "vectorised": lambda: self.objective.gradients(self.y, self.x, self.z, out=out),
            "sequential": self.loop.gradients,
            "vectorised, autograd": self.autograd,
            "sequential, autograd": self.loop.autograd,
        }

    def autograd(self) -> tuple[Tensor, ...]:
        """The objective with all layers in one product, differentiated by autograd: what the paper times."""
        inputs = torch.cat([self.y[None], self.stack[:-1]])
        v = torch.baddbmm(self.b[:, None], inputs, self.W.transpose(1, 2))
        z = self.stack
        total = MU * (0.5 * (z * z).sum() + self.loop.activation.conjugate(v).sum() - (z * v).sum())
        output = linear(z[-1], self.K, self.d)
        total = (total + 0.5 * (output - self.x).square().sum()) / len(self.y)
        return torch.autograd.grad(total, [self.stack, self.W, self.K, self.b, self.d])

    def forward_difference(self) -> float:
        return _ulp(list(self.objective.activations(self.y, self.z)), self.loop.forward())

    def backward_difference(self) -> float:
        """The same for the gradients in all lifted variables and weights, by the closed formulas."""
        gradients = self.objective.gradients(self.y, self.x, self.z)
        count, looped = len(self.z), self.loop.gradients()
        weights = torch.stack(looped[count : 2 * count])
        stacked = gradients.parameters["hidden.0.linear.weight"]
        return max(_ulp(list(gradients.z), looped[:count]), _ulp([stacked], [weights]))

    def _detached(self, name: str) -> list[Tensor]:
        return [tensor.detach().clone() for tensor in getattr(self.loop, name)]


class Loop:
    """The same objective, one layer after the other, from ordinary tensors."""

    def __init__(self, network: MLP, y: Tensor, x: Tensor, z: list[Tensor]) -> None:
        plain = network.to_sequential()
        modules = [module for module in plain if hasattr(module, "weight")]
        self.W = [module.get_parameter("weight") for module in modules]
        self.b = [module.get_parameter("bias") for module in modules]
        self.y, self.x = y, x
        self.z = [layer.requires_grad_() for layer in z]
        self.activation = SoftThreshold(THRESHOLD)

    @torch.no_grad()
    def forward(self) -> list[Tensor]:
        """σ(W_j u_{j-1} + b_j) for given u."""
        inputs = [self.y, *self.z[:-1]]
        return [self.activation(linear(u, W, b)) for u, W, b in zip(inputs, self.W, self.b, strict=False)]

    @torch.no_grad()
    def gradients(self) -> list[Tensor]:
        """The closed formulas, without a tape."""
        scale = 1 / len(self.y)
        states = [self.y, *self.z]
        residuals, gaps = [], []
        for u, z, W, b in zip(states, self.z, self.W, self.b, strict=False):
            v = linear(u, W, b)
            residuals.append((self.activation(v) - z) * (MU * scale))
            gaps.append((z - v) * (MU * scale))
        residuals.append((linear(states[-1], self.W[-1], self.b[-1]) - self.x) * scale)
        grad_z = [g + r @ W for g, r, W in zip(gaps, residuals[1:], self.W[1:], strict=True)]
        grad_W = [r.T @ u for r, u in zip(residuals, states, strict=True)]
        return [*grad_z, *grad_W, *(r.sum(0) for r in residuals)]

    def autograd(self) -> tuple[Tensor, ...]:
        """The objective written down and differentiated."""
        total = torch.zeros(())
        u = self.y
        for z, W, b in zip(self.z, self.W, self.b, strict=False):
            v = linear(u, W, b)
            total = total + MU * (0.5 * (z * z).sum() + self.activation.conjugate(v).sum() - (z * v).sum())
            u = z
        total = total + 0.5 * (linear(u, self.W[-1], self.b[-1]) - self.x).square().sum()
        return torch.autograd.grad(total / len(self.y), [*self.z, *self.W, *self.b])


def _memory(objective: Objective, y: Tensor, x: Tensor, buffer: int) -> float:
    """Peak of states, gradients of states and temporaries; gradients of parameters do not count."""
    with PeakMemory() as memory:
        z = objective.initialise(y, "input")
        parameters = {name: torch.empty_like(p) for name, p in objective.engine.trainable().items()}
        gradients = objective.gradients(y, x, z, out=Gradients(z.gradient_like(), parameters))
    of_parameters = sum(grad.numel() * grad.element_size() for grad in gradients.parameters.values())
    return (memory.peak - of_parameters) / buffer


def _ulp(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Largest difference in units in the last place of the largest entry."""
    worst = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    largest = max(float(b.abs().max()) for b in theirs)
    return worst / (torch.finfo(torch.float32).eps * largest)
