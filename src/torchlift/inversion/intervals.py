"""Error bars: how far every entry of an inverted input may be from the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_batch, check_like, check_number, check_positive
from torchlift.core.errors import invalid_value
from torchlift.functions.base import along
from torchlift.inversion.problem import InversionProblem, square_sum

#: Inputs of at most so many entries get one probe per entry, which is exact.
EXACT = 128

#: Larger ones get one probe per place of a lattice: entries this far apart (in each direction of an image) share one.
SPACING = 4

#: Length from which a product A x of the prior counts as an edge, where the prior holds nothing.
EDGE = 0.05

#: Steps of conjugate gradients for every probe.
STEPS = 25

#: Scores are errors in units of a deviation plus this share of its root mean square over the image.
FLOOR = 0.05


@dataclass(frozen=True, eq=False)
class Interval:
    """Intervals [lower, upper] for every entry, and the deviation they come from: (B, *in_shape) each.

    Arguments:
        level: the share of entries that they are to hold.
        factor: half of the widths in units of the deviation.
    """

    lower: Tensor
    upper: Tensor
    deviation: Tensor
    level: float
    factor: float

    @property
    def width(self) -> Tensor:
        return self.upper - self.lower

    def coverage(self, truth: Tensor) -> Tensor:
        """The share of entries of every image that are inside: (B,)."""
        room = 8 * torch.finfo(truth.dtype).eps
        inside = (truth >= self.lower - room) & (truth <= self.upper + room)
        return inside.flatten(1).double().mean(1)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Errors of held-out images in units of their deviations, from which factors for any level follow.

    Arguments:
        scores: sorted.
    """

    scores: Tensor

    def factor(self, level: float) -> float:
        """The conformal factor: the ⌈(n + 1)·level⌉-th smallest score."""
        count = len(self.scores)
        return float(self.scores[min(math.ceil((count + 1) * level), count) - 1])


def calibrate(deviation: Tensor, x: Tensor, truth: Tensor) -> Calibration:
    """A calibration from held-out images whose true inputs are known.

    Entries of an image are not independent of each other: the level holds on
    average over entries and over images that are like the held-out ones.

    Arguments:
        deviation: of `posterior_deviation` or `Inversion.interval(…).deviation`, like x.
        x: what was found.
        truth: what it should have been.

    Reference: Lei et al., Distribution-free predictive inference for regression,
    Journal of the American Statistical Association 113 (2018).
    """
    check_batch("calibrate truth", truth, tuple(x.shape[1:]))
    check_like("calibrate truth", truth, x)
    if len(truth) != len(x):
        invalid_value("calibrate truth", f"{len(x)} inputs, one per inversion", len(truth))
    return Calibration(((x - truth).abs() / deviation).flatten().sort().values)


def make_interval(
    problem: InversionProblem, x: Tensor, level: float, noise_level: float | None, calibration: Calibration | None
) -> Interval:
    """x ± factor·deviation, inside the constraints of the prior."""
    if not 0 < check_number("interval level", level) < 1:
        invalid_value("interval level", "a number between 0 and 1", level)
    deviation = posterior_deviation(problem, x, noise_level)
    normal = math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    factor = normal if calibration is None else calibration.factor(level)
    lower, upper = x - factor * deviation, x + factor * deviation
    if problem.constrained:
        lower, upper = (problem.split.prox(bound, 0.0) for bound in (lower, upper))
    return Interval(lower, upper, deviation, level, factor)


@torch.no_grad()
def posterior_deviation(problem: InversionProblem, x: Tensor, noise_level: float | None = None) -> Tensor:
    """Standard deviations of Laplace's approximation of exp(−objective/ς²) at x, like x.

        Σ = ς² (N'ᵀL''N' + λI + ρ Σ_i A_iᵀ∇²(g_i)_δ(A_i x) A_i)⁻¹

    with Moreau envelopes (g)_δ. Exact for affine networks and quadratic priors. The
    diagonal is probed with signs on lattices and conjugate gradients; one
    probe per entry of small inputs.

    Arguments:
        noise_level: ς; by default the root mean square of N(x) − y.

    Reference: Tang & Saad, A probing method for computing the diagonal of a matrix
    inverse, Numerical Linear Algebra with Applications 19 (2012).
    """
    if noise_level is None:
        variance = square_sum(problem.forward(x) - problem.output) / problem.output[0].numel()
    else:
        variance = torch.full_like(problem.weight, check_positive("interval noise_level", noise_level) ** 2)
    product = _hessian(problem, x)
    total = torch.zeros_like(x)
    for probe in _probes(x):
        total = total + probe * _conjugate_gradients(product, probe)
    deviation = (along(variance, x) * total.clamp_min(0)).sqrt()
    size = (square_sum(deviation) / deviation[0].numel()).sqrt()
    return deviation + FLOOR * along(size, x)


def _hessian(problem: InversionProblem, x: Tensor) -> Callable[[Tensor], Tensor]:
    """v ↦ (N'ᵀL''N' + λI + ρ Σ AᵀHA)v, the curvature of every image, made positive definite."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        output = problem.forward(leaf)
        dual = torch.zeros_like(output).requires_grad_()
        (back,) = torch.autograd.grad(output, leaf, dual, create_graph=True)
        prediction = output.detach().requires_grad_()
        loss = problem.loss.value(prediction, problem.output).sum()
        (slope,) = torch.autograd.grad(loss, prediction, create_graph=True)
        parts = []
        for part in problem.split.parts:
            if part.function.constraint:
                continue
            # not exactly 0, where lengths have no derivative
            w = (part.product(x).detach() + 1e-4 * EDGE).requires_grad_()
            parts.append((part, w, (w - part.prox(w, EDGE)) / EDGE))
    # without it, directions that neither the data nor the prior see would have an infinite deviation
    least = 1e-6 * (1 + problem.anchor)

    def product(v: Tensor) -> Tensor:
        (forward,) = torch.autograd.grad(back, dual, v, retain_graph=True)
        if slope.requires_grad:
            (forward,) = torch.autograd.grad(slope, prediction, forward, retain_graph=True)
        (total,) = torch.autograd.grad(output, leaf, forward, retain_graph=True)
        total = total + (problem.anchor + least) * v
        for part, w, gradient in parts:
            (bent,) = torch.autograd.grad(gradient, w, part.product(v), retain_graph=True)
            total = total + problem.weights * part.back(bent)
        return total

    return product


def _probes(x: Tensor) -> list[Tensor]:
    """Random signs on disjoint sets of entries that cover all of them; the same for every image."""
    shape, entries = x.shape[1:], x[0].numel()
    if entries <= EXACT:
        colours = torch.arange(entries, device=x.device).view(shape)
    else:
        colours = torch.zeros(shape, dtype=torch.int64, device=x.device)
        spacing = SPACING if x.ndim == 4 else SPACING**2
        for axis in range(max(0, len(shape) - 2), len(shape)):
            place = torch.arange(shape[axis], device=x.device) % spacing
            colours = colours * spacing + place.view(-1, *(1,) * (len(shape) - 1 - axis))
    signs = 2 * torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(x) - 1
    return [(signs * (colours == colour)).expand_as(x) for colour in colours.unique()]


def _conjugate_gradients(product: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
    """H⁻¹b for every image by a fixed number of steps."""
    tiny = torch.finfo(b.dtype).tiny
    x, r = torch.zeros_like(b), b.clone()
    p, square = r.clone(), square_sum(r)
    first = square
    for _ in range(min(STEPS, 2 * b[0].numel())):
        Hp = product(p)
        alpha = square / (p * Hp).flatten(1).sum(1).clamp_min(tiny)
        alpha = torch.where(square > 1e-12 * first, alpha, 0.0)
        x, r = x + along(alpha, x) * p, r - along(alpha, r) * Hp
        after = square_sum(r)
        p = r + along(after / square.clamp_min(tiny), p) * p
        square = after
    return x
