"""Run times of all layers evaluated at once against one after the other, as in the paper's two tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from torchlift.lab.benchmarks.measure import PeakMemory, interleaved
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import Objective
from torchlift.objective.engine import Gradients
from torchlift.prox import SoftThreshold

DEPTHS = (1, 2, 4, 8, 16, 32, 64, 128)
SIZES = ((32, 1), (64, 32), (256, 100), (784, 500))
"""(width, batch) from tiny to the paper's network."""

THRESHOLD, MU = 0.2, 0.5
#: Multiplications beyond which a cell is left out unless asked for: it would take minutes.
LARGEST = 2e11


@dataclass(frozen=True)
class Row:
    """One depth at one width and batch size; times in milliseconds, ratios against the vectorised way."""

    width: int
    batch: int
    layers: int
    forward: float
    forward_loop: float
    gradients: float
    gradients_loop: float
    gradients_autograd: float
    matmul_fraction: float
    """Achieved operations per second of the gradients, as a fraction of `torch.mm` on the same shape."""
    memory_buffers: float
    """Peak extra memory of one gradient evaluation, in state buffers (layers × batch × width numbers)."""
    difference_ulp: float
    """Largest difference of vectorised and looped forward values, in units in the last place of the largest."""

    @property
    def forward_ratio(self) -> float:
        return self.forward_loop / self.forward

    @property
    def loop_ratio(self) -> float:
        return self.gradients_loop / self.gradients

    @property
    def autograd_ratio(self) -> float:
        return self.gradients_autograd / self.gradients

    def record(self) -> dict[str, float]:
        """All numbers, ratios included, for JSON."""
        ratios = {name: getattr(self, name) for name in ("forward_ratio", "loop_ratio", "autograd_ratio")}
        return asdict(self) | ratios


def rows(
    sizes: tuple[tuple[int, int], ...] = SIZES,
    depths: tuple[int, ...] = DEPTHS,
    *,
    seconds: float = 0.5,
    repeats: int = 7,
    seed: int = 0,
) -> Iterator[Row]:
    """Measure every combination, smallest first; cells that would take minutes are left out."""
    for width, batch in sizes:
        for layers in depths:
            if 6.0 * layers * batch * width**2 <= LARGEST:
                yield measure(width, batch, layers, seconds=seconds, repeats=repeats, seed=seed)


def measure(width: int, batch: int, layers: int, *, seconds: float, repeats: int, seed: int = 0) -> Row:
    """One row: the vectorised engine, a plain loop, and a loop differentiated by autograd, in turn."""
    generator = torch.Generator().manual_seed(seed)
    activation = SoftThreshold(THRESHOLD)
    network = MLP([width] * (layers + 2), activation, generator=generator)
    objective = Objective(network, Bregman(MU))
    y, x = (torch.randn(batch, width, generator=generator) for _ in range(2))
    z = objective.initialise(y, "input")
    found = objective.gradients(y, x, z)
    values = objective.activations(y, z)
    loop = Loop(network, y, x, [layer.clone() for layer in z])
    matrix, inputs = torch.randn(width, width, generator=generator), y
    times = interleaved(
        {
            "forward": lambda: objective.activations(y, z, out=values),
            "forward_loop": loop.forward,
            "gradients": lambda: objective.gradients(y, x, z, out=found),
            "gradients_loop": loop.gradients,
            "gradients_autograd": loop.autograd,
            "matmul": lambda: torch.mm(inputs, matrix),
        },
        repeats=repeats,
        seconds=seconds,
    )
    one_product = times.pop("matmul")
    products = 3 * layers - 1 + 3  # forward, adjoint and weight gradient of each layer; no adjoint for y; K
    return Row(
        width=width,
        batch=batch,
        layers=layers,
        matmul_fraction=products * one_product / times["gradients"],
        memory_buffers=_memory(objective, y, x, layers * batch * width * 4),
        difference_ulp=_ulp(list(values), loop.forward()),
        **{name: 1e3 * value for name, value in times.items()},
    )


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
        residuals, own = [], []
        for u, z, W, b in zip(states, self.z, self.W, self.b, strict=False):
            v = linear(u, W, b)
            residuals.append((self.activation(v) - z) * (MU * scale))
            own.append((z - v) * (MU * scale))
        residuals.append((linear(states[-1], self.W[-1], self.b[-1]) - self.x) * scale)
        grad_z = [g + r @ W for g, r, W in zip(own, residuals[1:], self.W[1:], strict=True)]
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
        found = objective.gradients(y, x, z, out=Gradients(z.gradient_like(), parameters))
    own = sum(grad.numel() * grad.element_size() for grad in found.parameters.values())
    return (memory.peak - own) / buffer


def _ulp(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Largest difference in units in the last place of the largest entry."""
    worst = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    largest = max(float(b.abs().max()) for b in theirs)
    return worst / (torch.finfo(torch.float32).eps * largest)
