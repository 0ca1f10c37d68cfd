"""Lipschitz constants of the objective's gradients, block by block, for chains of dense layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchlift.distributed import Share
from torchlift.engine import StackedEngine, States
from torchlift.objective.fit import definite_factor, few_samples
from torchlift.objective.objective import Objective
from torchlift.operators import Dense


def parameter_bound(objective: Objective, y: Tensor, z: States) -> float | None:
    """max_j μ_j c_j ‖(u_{j-1}, 1)‖²/B over all layers, the output layer with the curvature of the loss."""
    engine = objective.engine
    assert isinstance(engine, StackedEngine)  # the caller knows
    bounds = []
    for segment, inputs, _ in engine.dense_layers(y, z):
        curvature = objective.lifting.curvature_v(segment.activation)
        weights = engine.setting.weights[segment.start : segment.start + segment.count]
        for u, mu in zip(inputs, weights, strict=True):
            bounds.append(mu * curvature * squared_norm(u))
    last = z[-1].to(y.dtype) if len(z) else y
    bounds.append(objective.loss.curvature() * squared_norm(last))
    smooth = [r.curvature() for r in objective.parameter_regularisers.values() if r.smooth]
    worst = max(bounds) / len(y) + max(smooth, default=0.0)
    return worst if math.isfinite(worst) else None


def layer_norms(objective: Objective) -> list[float]:
    """‖W_1‖, …, ‖W_J‖ and ‖K‖."""
    engine = objective.engine
    assert isinstance(engine, StackedEngine) and engine.tail is not None  # the caller knows
    weights = [W for segment in engine.segments for W in segment.weights().W]
    return [Dense(W).norm_bound() for W in (*weights, engine.tail.weights().first)]


def state_bound(
    objective: Objective, norms: list[float], rows: tuple[int, ...], batch: int, joint: bool
) -> float | None:
    """A bound for the states of the given rows.

    Row j alone has the Hessian μ_j c_z I + μ_{j+1} c_v W_{j+1}ᵀW_{j+1} at most
    (the loss and K after the last row). Moved together with its neighbours,
    the coupling blocks μ W add to it by Gershgorin's theorem for blocks.
    """
    activations = objective.network.operators().activations
    weights = objective.engine.setting.weights
    lifting, depth = objective.lifting, len(weights)
    worst = 0.0
    for row in rows:
        own = weights[row] * lifting.curvature_z(activations[row])
        if row + 1 < depth:
            following = weights[row + 1] * lifting.curvature_v(activations[row + 1]) * norms[row + 1] ** 2
            across = weights[row + 1] * norms[row + 1]
        else:
            following, across = objective.loss.curvature() * norms[-1] ** 2, 0.0
        total = own + following
        if joint:
            total += across + weights[row] * norms[row]
        regulariser = objective.state_regularisers.get(row + 1)
        worst = max(worst, total + (regulariser.curvature() if regulariser is not None and regulariser.smooth else 0.0))
    return worst / batch if math.isfinite(worst) else None


def squared_norm(u: Tensor, share: Share | None = None) -> float:
    """‖X‖₂² of a batch of inputs with a column of ones, X = (u, 1).

    Where many processes share the batch, XᵀX = S Sᵀ is summed over them and
    ‖S‖ is the answer; a batch of fewer samples than columns is brought together.
    """
    X = torch.cat([u.flatten(1), u.new_ones(len(u), 1)], dim=1)
    if share is None:
        return Dense(X).norm_bound() ** 2
    if few_samples(share, X.shape[1]):
        return Dense(share.gather(X)).norm_bound() ** 2
    X = X.double()  # as in `norm_bound`
    gram = X.T @ X / len(X)
    share.mean_(gram)
    return share.total * Dense(definite_factor(gram[None])[0].T).norm_bound() ** 2
