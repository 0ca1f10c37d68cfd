"""Error bars: how far every entry of an inverted input may be from the truth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from torchlift.core.checks import check_batch, check_interval, check_like, check_positive
from torchlift.core.errors import invalid_value
from torchlift.functions.base import along
from torchlift.inversion.linearised import Linearised
from torchlift.inversion.problem import InversionProblem, square_sum
from torchlift.inversion.solver import NEGLIGIBLE
from torchlift.solvers import conjugate_gradient

#: Inputs of at most so many entries get the whole matrix of curvatures, which is exact: of deep networks, and of one
#: lifted layer, where a column of it costs two products with W.
EXACT, EXACT_LAYER = 128, 1024

#: Entries of such matrices that are kept at once.
MATRICES = 2**24

#: Larger inputs get one probe per place of a lattice: entries this far apart (in each direction of an image) share one.
SPACING = 4

#: Length from which a product A x of the prior counts as an edge, where the prior holds nothing.
EDGE = 0.05

#: Steps of conjugate gradients for every probe, and for a direction that the outputs do not see.
STEPS, TWIN_STEPS = 25, 100

#: Scores of a calibration are errors in units of a deviation plus this share of its root mean square over the image.
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
    return Calibration(((x - truth).abs() / _floored(deviation)).flatten().sort().values)


def make_interval(
    problem: InversionProblem, x: Tensor, level: float, noise_level: float | None, calibration: Calibration | None
) -> Interval:
    """x ± factor·deviation, inside the constraints of the prior."""
    check_interval("interval level", level, "(0, 1)")
    deviation = posterior_deviation(problem, x, noise_level)
    normal = math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64)))
    factor = normal if calibration is None else calibration.factor(level)
    half = factor * (deviation if calibration is None else _floored(deviation))
    lower, upper = x - half, x + half
    if problem.constrained:
        lower, upper = (problem.split.prox(bound, 0.0) for bound in (lower, upper))
    return Interval(lower, upper, deviation, level, factor)


@torch.no_grad()
def posterior_deviation(problem: InversionProblem, x: Tensor, noise_level: float | None = None) -> Tensor:
    """Standard deviations of the error x − x† of every entry, like x.

    In general they are those of Laplace's approximation of exp(−objective/ς²) at x,

        Σ = ς²H⁻¹,   H = N'ᵀL''N' + P,   P = λ diag(t) + ρ Σ_i A_iᵀ∇²(g_i)(A_i x) A_i,

    with Moreau envelopes of those g_i that are not smooth. They are exact for affine
    networks and quadratic priors.

    For **one lifted layer** the solution of min μB(y, Wx + b) + ρR(x) + λ/2 ‖x − x₀‖² at
    y = σ(Wx† + b) + n has Wᵀμ(σ(Wx + b) − y) + ρ∇R(x) + λ(x − x₀) = 0: the gradient of
    B is the residual, without a derivative of σ. Subtracting the same for x† gives the error

        (μWᵀDW + P)(x − x†) = μWᵀn − (ρ∇R(x†) + λ(x† − x₀)),

    where D has the slopes of σ between Wx† + b and Wx + b: nothing is neglected. Noise
    of inactive units (D = 0) counts, though they hold nothing. With n ~ N(0, ς²I), and the last
    bracket of covariance ς²P, as for inputs drawn from the prior,

        Σ = ς²H⁻¹(μ²WᵀW + P)H⁻¹,   H = μWᵀσ'(Wx + b)W + P.

    It is exact for quadratic priors wherever no unit has a kink between x and x†; data that were
    projected onto the range of σ have less noise than this says.

    The diagonal comes from the matrix itself for small inputs and single layers, else it
    is probed with signs on lattices and conjugate gradients.

    Arguments:
        noise_level: ς; by default the root mean square of N(x) − y.

    Reference: Tang & Saad, A probing method for computing the diagonal of a matrix
    inverse, Numerical Linear Algebra with Applications 19 (2012).
    """
    if noise_level is None:
        variance = square_sum(problem.forward(x) - problem.output) / problem.output[0].numel()
    else:
        variance = torch.full_like(problem.weight, check_positive("interval noise_level", noise_level) ** 2)
    entries = x[0].numel()
    exact = entries <= (EXACT_LAYER if _one_layer(problem) else EXACT)
    count = max(1, MATRICES // entries**2) if exact else len(x)
    diagonal = _matrix_diagonal if exact else _probed_diagonal
    parts = torch.arange(len(x), device=x.device).split(count)
    variances = torch.cat([diagonal(_error(problem.select(index), x[index]), x[index]) for index in parts])
    return (along(variance, x) * variances.clamp_min(0)).sqrt()


@torch.no_grad()
def has_twin(problem: InversionProblem, x: Tensor, tolerance: float, start: Tensor) -> Tensor:
    """Which images have another input, a tenth of its length away, with the same objective to the tolerance: (B,).

    The outputs, and the prior, then do not determine the input. Where none was found there may still be one: it is
    looked for in one direction only, what conjugate gradients leave of a random one, which N'(x) hardly sees. Whether
    the objective is the same there is not a matter of derivatives: it is evaluated. That of the start, `start`, tells
    what a small one is.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    size = square_sum(x).sqrt().clamp_min(1e-3 * x[0].numel() ** 0.5)
    mixed = noise / along(square_sum(noise).sqrt(), x) + x / along(size, x)
    curvature = _network_curvature(problem, x)
    unseen = mixed - _solved(curvature, curvature(mixed), TWIN_STEPS)
    length = (0.1 * size) / square_sum(unseen).sqrt().clamp_min(1e-30)
    value = problem.network_value(x)
    start = torch.where(start.isfinite(), start, value)  # zero may be no input that the network knows
    same = tolerance * (value.abs() + NEGLIGIBLE * problem.visible_size(start))
    twin = torch.zeros_like(value, dtype=torch.bool)
    for sign in (1, -1):
        other = x + sign * along(length, x) * unseen
        other = problem.split.prox(other, 0.0) if problem.constrained else other
        far = square_sum(other - x).sqrt() > 0.05 * size
        twin = twin | (far & (problem.network_value(other) <= value + same))
    return twin


def _floored(deviation: Tensor) -> Tensor:
    """Deviations that no entry of an image has much smaller than the others: where they are 0, errors are not."""
    size = (square_sum(deviation) / deviation[0].numel()).sqrt()
    return deviation + FLOOR * along(size, deviation)


Product: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class _Error:
    """An error of covariance ς²H⁻¹MH⁻¹, by products with H and M: v ↦ like x; no M where it is H."""

    curvature: Product
    noise: Product | None = None


def _one_layer(problem: InversionProblem) -> bool:
    """Whether the lifted objective of a single layer was minimised."""
    return problem.lifted and problem.chain.count == 1


def _error(problem: InversionProblem, x: Tensor) -> _Error:
    prior = _prior_curvature(problem, x)
    if not _one_layer(problem):
        data = _network_curvature(problem, x)
        return _Error(lambda v: data(v) + prior(v))
    layers, context, mu = problem.chain, problem.context, problem.mu[0]
    (jacobian,), (activation,) = layers.jacobians, layers.activations
    with torch.enable_grad():
        pre = layers.pre_activation(0, (x,), context).detach().requires_grad_()
        output = activation(pre)

    def curvature(v: Tensor) -> Tensor:
        # σ is a gradient, so that its Jacobian is symmetric
        (bent,) = torch.autograd.grad(output, pre, jacobian.forward(v, context)[0], retain_graph=True)
        return mu * jacobian.adjoint((bent,), context) + prior(v)

    def noise(v: Tensor) -> Tensor:
        return mu**2 * jacobian.adjoint(jacobian.forward(v, context), context) + prior(v)

    return _Error(curvature, noise)


def _network_curvature(problem: InversionProblem, x: Tensor) -> Product:
    """v ↦ N'ᵀL''N'v."""
    network = Linearised.at(problem, x)
    with torch.enable_grad():
        prediction = network.output.detach().requires_grad_()
        loss = problem.loss.value(prediction, problem.output).sum()
        (slope,) = torch.autograd.grad(loss, prediction, create_graph=True)

    def product(v: Tensor) -> Tensor:
        change = network.forward(v)
        if slope.requires_grad:
            (change,) = torch.autograd.grad(slope, prediction, change, retain_graph=True)
        return network.adjoint(change)

    return product


def _prior_curvature(problem: InversionProblem, x: Tensor) -> Product:
    """v ↦ (λ diag(t) + ρ Σ AᵀHA)v, made positive definite."""
    parts = []
    for part in problem.split.parts:
        if part.function.constraint:
            continue
        with torch.enable_grad():
            # not exactly 0, where lengths have no derivative
            w = (part.product(x).detach() + 1e-4 * EDGE).requires_grad_()
            if part.function.smooth:
                (gradient,) = torch.autograd.grad(part.value(w).sum(), w, create_graph=True)
            else:
                gradient = (w - part.prox(w, EDGE)) / EDGE
        parts.append((part, w, gradient))
    # without it, directions that neither the data nor the prior see would have an infinite deviation
    least = 1e-6 * (1 + problem.anchor)

    def product(v: Tensor) -> Tensor:
        total = (problem.stiffness + least) * v
        for part, w, gradient in parts:
            if gradient.requires_grad:
                (bent,) = torch.autograd.grad(gradient, w, part.product(v), retain_graph=True)
                total = total + problem.weights * part.back(bent)
        return total

    return product


def _matrix_diagonal(error: _Error, x: Tensor) -> Tensor:
    """The diagonal of H⁻¹MH⁻¹ from its matrices, in double precision."""
    units = torch.eye(x[0].numel(), dtype=x.dtype, device=x.device).view(-1, *x.shape[1:])

    def matrix(product: Product) -> Tensor:
        columns = [product(unit.expand_as(x)).flatten(1) for unit in units]
        square = torch.stack(columns, 2).double()
        return (square + square.mT) / 2

    inverse = torch.linalg.inv(matrix(error.curvature))
    if error.noise is None:
        return inverse.diagonal(dim1=1, dim2=2).view_as(x).to(x)
    return (inverse @ matrix(error.noise) * inverse.mT).sum(2).view_as(x).to(x)


def _probed_diagonal(error: _Error, x: Tensor) -> Tensor:
    """The diagonal of H⁻¹MH⁻¹ by probes and conjugate gradients."""
    total = torch.zeros_like(x)
    for probe in _probes(x):
        solved = _solved(error.curvature, probe)
        if error.noise is not None:
            solved = _solved(error.curvature, error.noise(solved))
        total = total + probe * solved
    return total


def _probes(x: Tensor) -> list[Tensor]:
    """Random signs on disjoint sets of entries that cover all of them; the same for every image."""
    shape = x.shape[1:]
    colours = torch.zeros(shape, dtype=torch.int64, device=x.device)
    spacing = SPACING if x.ndim == 4 else SPACING**2
    for axis in range(max(0, len(shape) - 2), len(shape)):
        place = torch.arange(shape[axis], device=x.device) % spacing
        colours = colours * spacing + place.view(-1, *(1,) * (len(shape) - 1 - axis))
    signs = 2 * torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0)).to(x) - 1
    return [(signs * (colours == colour)).expand_as(x) for colour in colours.unique()]


def _solved(product: Product, b: Tensor, steps: int = STEPS) -> Tensor:
    """H⁻¹b for every image, as far as some steps of conjugate gradients get."""
    steps = min(steps, 2 * b[0].numel())
    return conjugate_gradient(product, b, tolerance=1e-6, max_steps=steps, batched=True).x
