"""Run times of all layers evaluated at once against one after the other, as in the paper's two tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

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


Row = dict[str, float]
"""One depth at one width and batch size; times in milliseconds, ratios against the vectorised evaluation.

"matmul_fraction": operations per second of the gradients as a fraction of `torch.mm` on the same shape.
"memory_buffers": peak extra memory of one gradient evaluation, in state buffers (layers × batch × width numbers).
"difference_ulp": largest difference of vectorised and looped forward values, in units in the last place.
"""


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
        """Of the gradients in all lifted variables and weights, by the closed formulas."""
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
