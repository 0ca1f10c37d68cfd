"""Exact minimisation over the weights of dense layers, and of all layers of a network, with lifted variables fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from torchlift.core.cholesky import cholesky
from torchlift.core.shard import WHOLE, Shard
from torchlift.core.tensors import Point
from torchlift.functions.losses import SquaredError
from torchlift.functions.regularisers import Ridge
from torchlift.liftings import MACQP, Lifting
from torchlift.liftings.classical import QuadraticLifting
from torchlift.objective.engine import StackedEngine, States
from torchlift.objective.engine.stacked import Segment
from torchlift.objective.objective import Objective
from torchlift.solvers import GaussNewton, NonlinearLeastSquares, Stopping, solve
from torchlift.solvers.momentum import next_momentum

Direction: TypeAlias = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Θ ↦ the step of the majoriser, and the norm by which it is judged, (J,)."""


@dataclass(frozen=True, eq=False)
class LayerFit:
    """J independent layers: min_Θ (1/B) Σ_i D(z_i, Θ x_i) + ρ/2 ‖Θ − Θ₀‖², with x = (u, 1) where there is a bias.

    Arguments:
        inputs: u, (J, B, in).
        residual: ∇_v D, a function of v (J, B, out).
        curvature: a Lipschitz constant of ∇_v D, (J, 1, 1) or a number.
        anchor: Θ₀ as (weight, bias), or None for zero.
        strength: ρ ≥ 0.
        target: t, (J, B, out), where ∇_v D = c(v − t); None elsewhere.
        shard: which samples of the batch these are. They stay where they are: XᵀX and TᵀX are summed over the
            processes once, or RᵀX in every iteration where there is no target, so that all find the same Θ and stop
            at the same iteration.
    """

    inputs: Tensor
    residual: Callable[[Tensor], Tensor]
    curvature: float | Tensor
    anchor: tuple[Tensor, Tensor | None] | None = None
    strength: float = 0.0
    target: Tensor | None = None
    shard: Shard = WHOLE

    def mean(self, *means: Tensor) -> tuple[Tensor, ...]:
        """Means over the whole batch from those over the samples here, which are overwritten; in one exchange."""
        self.shard.mean_(*means)
        return means


@torch.no_grad()
def fit(problem: LayerFit, weight: Tensor, bias: Tensor | None, tolerance: float, steps: int = 500) -> tuple:
    """(weight, bias) by the ridge majoriser.

    ∇_v D has curvature at most c, so (c/B) XᵀX + ρI bounds the Hessian and

        Θ ← Θ − (RᵀX/B + ρ(Θ − Θ₀)) ((c/B) XᵀX + ρI)⁻¹

    decreases the objective without a step size; one Cholesky factor serves all
    iterations, and it is exact at once where D is quadratic in v. Nesterov's
    extrapolation with restart speeds it up.

    Arguments:
        weight: (J, out, in), where to start.
        bias: (J, out), or None.
        tolerance: stop when the gradient, or the step, has shrunk by this factor, or to rounding.
        steps: at most so many iterations.
    """
    X = joined(problem.inputs, None if bias is None else problem.inputs.new_ones(problem.inputs.shape[:2]))
    theta = joined(weight, bias)
    anchor = torch.zeros_like(theta) if problem.anchor is None else joined(*problem.anchor)
    descent = _by_sums if not problem.shard.whole and problem.target is not None else _by_samples
    direction = descent(problem, X, anchor)
    ahead, momentum, first = theta, 1.0, None
    for _ in range(steps):
        step, size = direction(ahead)
        first = size if first is None else first
        shrunk = size <= tolerance * first.clamp_min(torch.finfo(size.dtype).tiny)
        still = torch.linalg.matrix_norm(step) <= torch.finfo(size.dtype).eps * torch.linalg.matrix_norm(ahead)
        if bool((shrunk | still).all()):
            theta = ahead
            break
        new = ahead - step
        following = next_momentum(momentum)
        # the step turns against the momentum: start anew (gradient restart)
        turned = float(((ahead - new) * (new - theta)).sum()) > 0
        extrapolation = 0.0 if turned else (momentum - 1) / following
        momentum = 1.0 if turned else following
        ahead, theta = new + extrapolation * (new - theta), new
    return parted(theta, bias is not None)


def _by_samples(problem: LayerFit, X: Tensor, anchor: Tensor) -> Direction:
    """R at the samples here, anew in every iteration."""
    (gram,) = problem.mean(X.transpose(1, 2) @ X / X.shape[1])
    factor = definite_factor(problem.curvature * gram, problem.strength)
    # Without a pull towards an anchor the step is Rᵀ(XG⁻¹)/B: solve for the B inputs once, not for every gradient.
    solved = None if problem.strength else torch.cholesky_solve(X.transpose(1, 2), factor).transpose(1, 2)

    def direction(theta: Tensor) -> tuple[Tensor, Tensor]:
        residual = problem.residual(X @ theta.transpose(1, 2)).transpose(1, 2) / X.shape[1]
        if solved is not None:
            (step,) = problem.mean(residual @ solved)
            return step, torch.linalg.matrix_norm(step)
        gradient = problem.mean(residual @ X)[0] + problem.strength * (theta - anchor)
        return _solve(factor, gradient), torch.linalg.matrix_norm(gradient)

    return direction


def _by_sums(problem: LayerFit, X: Tensor, anchor: Tensor) -> Direction:
    """RᵀX = c(Θ XᵀX − TᵀX), whose sums over the samples of all processes are found once."""
    assert problem.target is not None  # since `fit`
    target = problem.target.transpose(1, 2)
    gram, cross = problem.mean(X.transpose(1, 2) @ X / X.shape[1], target @ X / X.shape[1])
    gram, cross = problem.curvature * gram, problem.curvature * cross
    factor = definite_factor(gram, problem.strength)

    def direction(theta: Tensor) -> tuple[Tensor, Tensor]:
        gradient = theta @ gram - cross + problem.strength * (theta - anchor)
        step = _solve(factor, gradient)
        return step, torch.linalg.matrix_norm(gradient if problem.strength else step)

    return direction


def _solve(factor: Tensor, gradient: Tensor) -> Tensor:
    """∇ G⁻¹."""
    return torch.cholesky_solve(gradient.transpose(1, 2), factor).transpose(1, 2)


def definite_factor(gram: Tensor, strength: float = 0.0) -> Tensor:
    """Cholesky factors of Gram matrices + ρI, (J, n, n); a ridge at the level of rounding keeps them definite."""
    diagonal = gram.diagonal(dim1=1, dim2=2)
    scale = diagonal.mean(1, keepdim=True).clamp_min(torch.finfo(gram.dtype).tiny)
    for power in range(8):
        factor = cholesky(gram, strength + scale * torch.finfo(gram.dtype).eps * 10.0 ** (2 * power))
        if factor is not None:
            return factor
    return torch.linalg.cholesky(gram + torch.diag_embed(scale.expand_as(diagonal)))


def few_samples(shard: Shard, X: Tensor, columns: int | None = None) -> bool:
    """Whether a batch has fewer samples than X has columns: they are less to send than XᵀX, which is singular."""
    return shard.samples(X) < (X.shape[1] if columns is None else columns)


def joined(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Θ = (W, b), or W where there is no bias."""
    return weight if bias is None else torch.cat([weight, bias.unsqueeze(-1)], dim=-1)


def parted(theta: Tensor, with_bias: bool) -> tuple[Tensor, Tensor | None]:
    """W and b of Θ."""
    return (theta[..., :-1].contiguous(), theta[..., -1].contiguous()) if with_bias else (theta, None)


@dataclass(frozen=True, eq=False)
class Anchor:
    """ρ/2 ‖θ − θ₀‖² on all parameters: a ridge, the proximal term of an implicit step, or both."""

    strength: float
    values: Mapping[str, Tensor]

    def of(self, segment: Segment) -> tuple[Tensor, Tensor | None] | None:
        """θ₀ of the segment's weights and biases; None stands for zero."""
        run, values = segment.dense, dict(self.values)
        if run.weight_name not in values:
            return None
        weight = segment.part_of(values, run.weight_name, run.weight)
        return weight, None if run.bias is None else segment.part_of(values, run.bias_name, run.bias)


@torch.no_grad()
def minimise_parameters(
    objective: Objective,
    y: Tensor,
    x: Tensor,
    z: States,
    tolerance: float,
    near: Mapping[str, Tensor] | None = None,
    strength: float = 0.0,
    shard: Shard = WHOLE,
) -> dict[str, Tensor] | None:
    """New values of all parameters, or None where a layer is not dense or a regulariser is not one ridge for all.

    Bregman, Fenchel and classical penalties go through the ridge majoriser
    (`fit`), MAC-QP through Levenberg–Marquardt, the output layer through the
    majoriser of its loss.

    Arguments:
        near, strength: add strength/2 ‖θ − near‖².
        shard: which samples of the batch these are. The majoriser needs no more than sums of XᵀX, and of TᵀX
            (quadratic penalties and losses) or RᵀX (others), over all samples. The samples are gathered in two cases:
            in batches of fewer samples than a layer has inputs, where XᵀX is larger than they are and singular; and
            for MAC-QP, whose Gauss–Newton matrices change with every iterate and are larger still.
    """
    if not can_minimise(objective):
        return None
    engine = objective.dense_engine
    assert engine is not None  # since `can_minimise`
    outputs = _laid_out(engine, z, y)
    inputs = outputs if z.u is None else _laid_out(engine, z.u, y)
    return minimise_layers(objective, engine, y, x, outputs, tolerance, near, strength, shard, inputs)


def can_minimise(objective: Objective) -> bool:
    """Whether `minimise_parameters` serves the objective."""
    dense, ridge = objective.dense_engine is not None, _ridge(objective)
    return dense and ridge is not None and math.isfinite(objective.loss.curvature())


def _laid_out(engine: StackedEngine, states: States, y: Tensor) -> States:
    """The states in the layout of an engine; a copy unless they are in it."""
    return states if states.layout == engine.layout else engine.layout.hold(states, y)


@torch.no_grad()
def minimise_layers(
    objective: Objective,
    engine: StackedEngine,
    y: Tensor,
    x: Tensor,
    z: States,
    tolerance: float,
    near: Mapping[str, Tensor] | None = None,
    strength: float = 0.0,
    shard: Shard = WHOLE,
    u: States | None = None,
) -> dict[str, Tensor]:
    """`minimise_parameters` by an engine of dense layers, which may be without the output layer.

    Arguments:
        u: what the layers read where that is not z.
    """
    u = z if u is None else u
    total = (_ridge(objective) or 0.0) + strength
    scaled = {name: value * (strength / total) for name, value in (near or {}).items()} if total else {}
    anchor = Anchor(total, scaled)
    values: dict[str, Tensor] = {}
    for (segment, inputs, _), (_, _, outputs) in zip(engine.dense_layers(y, u), engine.dense_layers(y, z), strict=True):
        newton, local = isinstance(objective.lifting, MACQP), shard
        if newton or few_samples(shard, y, inputs.shape[2] + 1):
            inputs, outputs, local = shard.gather(inputs, 1), shard.gather(outputs, 1), WHOLE
        if newton:
            new = _levenberg_marquardt(segment, inputs, outputs, anchor, tolerance)
        else:
            new = _fitted(segment, _penalty(objective.lifting, segment, inputs, outputs, local), anchor, tolerance)
        _store(values, segment, *new)
    if engine.tail is None:
        return values
    last, target, loss = u[-1].to(y.dtype) if len(u) else y, x, objective.loss
    if few_samples(shard, y, last.shape[1] + 1):
        last, target, shard = shard.gather(last), shard.gather(x), WHOLE
    quadratic = target[None] if isinstance(loss, SquaredError) else None
    problem = LayerFit(
        last[None], lambda v: loss.grad(v[0], target)[None], loss.curvature(), target=quadratic, shard=shard
    )
    _store(values, engine.tail, *_fitted(engine.tail, problem, anchor, tolerance))
    return values


def _penalty(lifting: Lifting, segment: Segment, inputs: Tensor, outputs: Tensor, shard: Shard) -> LayerFit:
    """Σ D(z, Wu + b) of a segment's layers."""
    activation, mu = segment.activation, segment.weight

    def residual(v: Tensor) -> Tensor:
        return lifting.grad_v(activation, outputs, v, mu)

    target = outputs if isinstance(lifting, QuadraticLifting) else None
    return LayerFit(inputs, residual, mu * lifting.curvature_v(activation), target=target, shard=shard)


def _fitted(segment: Segment, problem: LayerFit, anchor: Anchor, tolerance: float) -> tuple[Tensor, Tensor | None]:
    weights = segment.weights()
    bias = None if weights.b is None else weights.b.squeeze(1)
    near = anchor.of(segment)
    return fit(replace(problem, anchor=near, strength=anchor.strength), weights.W, bias, tolerance)


def _store(values: dict[str, Tensor], segment: Segment, weight: Tensor, bias: Tensor | None) -> None:
    run = segment.dense
    segment.part_of(values, run.weight_name, run.weight).copy_(weight)
    if run.bias is not None and bias is not None:
        segment.part_of(values, run.bias_name, run.bias).copy_(bias)


def _ridge(objective: Objective) -> float | None:
    """The weight of one ridge on all parameters, 0 without regularisers, None for anything else."""
    table = objective.parameter_regularisers
    if not table:
        return 0.0
    kinds = set(table.values())
    one = next(iter(kinds))
    everywhere = len(table) == sum(1 for _ in objective.network.parameters())
    return one.weight if len(kinds) == 1 and isinstance(one, Ridge) and everywhere else None


def _levenberg_marquardt(
    segment: Segment, inputs: Tensor, outputs: Tensor, anchor: Anchor, tolerance: float
) -> tuple[Tensor, Tensor | None]:
    """MAC-QP: ½‖√(μ/B)(σ(Wu + b) − z)‖² + ρ/2‖Θ − Θ₀‖², layer by layer."""
    weights = segment.weights()
    near = anchor.of(segment)
    layers = []
    for i in range(segment.count):
        bias = None if weights.b is None else weights.b[i, 0]
        theta = joined(weights.W[i], bias)
        X = inputs[i] if bias is None else joined(inputs[i], inputs.new_ones(inputs.shape[1]))
        base = torch.zeros_like(theta) if near is None else joined(near[0][i], None if near[1] is None else near[1][i])
        mu = float(segment.weight[i]) if isinstance(segment.weight, Tensor) else segment.weight
        residual = _residual(segment, X, outputs[i], base, (mu / len(X)) ** 0.5, anchor.strength**0.5)
        stopping = Stopping(max_steps=50, change=None, residual=max(tolerance, 1e-12))
        start = Point({"x": theta.flatten()})
        solution = solve(NonlinearLeastSquares(residual), GaussNewton(), start, stopping=stopping, record_every=0)
        layers.append(solution.point["x"][0].view_as(theta))
    return parted(torch.stack(layers), weights.b is not None)


def _residual(
    segment: Segment, X: Tensor, z: Tensor, base: Tensor, scale: float, root: float
) -> Callable[[Tensor], Tensor]:
    def residual(flat: Tensor) -> Tensor:
        theta = flat.view_as(base)
        gap = scale * (segment.activation(X @ theta.T) - z).flatten()
        return torch.cat([gap, root * (theta - base).flatten()]) if root else gap

    return residual
