"""The weights of all layers, minimised exactly with the lifted variables fixed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchlift.core.shard import WHOLE, Shard
from torchlift.core.tensors import Point
from torchlift.functions.losses import SquaredError
from torchlift.functions.regularisers import Ridge
from torchlift.liftings import MACQP, Lifting
from torchlift.liftings.classical import QuadraticLifting
from torchlift.objective.engine import StackedEngine, States
from torchlift.objective.engine.stacked import Segment
from torchlift.objective.fit import LayerFit, few_samples, fit, joined, parted
from torchlift.objective.objective import Objective
from torchlift.solvers import GaussNewton, NonlinearLeastSquares, Stopping, solve


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
            new = _fit(segment, _penalty(objective.lifting, segment, inputs, outputs, local), anchor, tolerance)
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
    _store(values, engine.tail, *_fit(engine.tail, problem, anchor, tolerance))
    return values


def _penalty(lifting: Lifting, segment: Segment, inputs: Tensor, outputs: Tensor, shard: Shard) -> LayerFit:
    """Σ D(z, Wu + b) of a segment's layers."""
    activation, mu = segment.activation, segment.weight

    def residual(v: Tensor) -> Tensor:
        return lifting.grad_v(activation, outputs, v, mu)

    target = outputs if isinstance(lifting, QuadraticLifting) else None
    return LayerFit(inputs, residual, mu * lifting.curvature_v(activation), target=target, shard=shard)


def _fit(segment: Segment, problem: LayerFit, anchor: Anchor, tolerance: float) -> tuple[Tensor, Tensor | None]:
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
