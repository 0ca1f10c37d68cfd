"""Lipschitz constants of the objective's gradients, block by block."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.shard import WHOLE, Shard
from torchlift.networks import UnifiedForm
from torchlift.objective.engine import StackedEngine, States
from torchlift.objective.fit import definite_factor, few_samples
from torchlift.objective.objective import Objective
from torchlift.operators import BlockOperator, Context, Dense, LinearOperator, Scaled
from torchlift.prox.base import is_trained


@torch.no_grad()
def parameter_bound(objective: Objective, y: Tensor, z: States, shard: Shard = WHOLE) -> float | None:
    """A bound for the parameters with all states fixed; None where they do not enter through dense layers alone.

    A row Σ_k A_k x_k + b under a function of curvature c has at most the
    Hessian c XᵀX/B, X = (x_1, x_2, …, 1). Rows with weights in common add up;
    of the others the largest counts.

    Arguments:
        z: with u where the coupling is quadratic; else those of a chain, where u = z.
        shard: which samples of the batch these are.
    """
    with torch.enable_grad():  # so that tensors know whether they are trained
        form = objective.network.operators()
    if any(map(is_trained, form.activations)):
        return None
    groups: list[tuple[set[int], float]] = []
    for row in _rows(objective, form, y, z):
        inputs = row.inputs()
        if inputs is None or (inputs and not math.isfinite(row.curvature)):
            return None
        if not inputs:
            continue
        keys, amount = set(inputs), row.curvature * squared_norm(torch.cat(list(inputs.values()), 1), shard)
        shared = [group for group in groups if group[0] & keys]
        groups = [group for group in groups if not group[0] & keys]
        groups.append((keys.union(*(names for names, _ in shared)), amount + sum(other for _, other in shared)))
    smooth = [r.curvature() for r in objective.parameter_regularisers.values() if r.smooth]
    worst = max((amount for _, amount in groups), default=0.0) / shard.samples(y) + max(smooth, default=0.0)
    return worst if math.isfinite(worst) else None


@dataclass(frozen=True, eq=False)
class _Row:
    """Σ_k A_k x_k + b, under a function whose gradient has the Lipschitz constant `curvature`."""

    curvature: float
    terms: Sequence[tuple[LinearOperator, Tensor]]
    bias: Tensor | None = None

    def inputs(self) -> dict[int, Tensor] | None:
        """What each trained weight multiplies, by its address; None where the row is not linear in the weights."""
        inputs: dict[int, Tensor] = {}
        for operator, x in self.terms:
            if not any(tensor.requires_grad for tensor in operator.tensors().values()):
                continue
            factor, block = (operator.factor, operator.operator) if isinstance(operator, Scaled) else (1.0, operator)
            if isinstance(factor, Tensor) or not isinstance(block, Dense) or not _is_parameter(block.weight):
                return None
            key, scaled = block.weight.data_ptr(), factor * x.flatten(1)
            inputs[key] = inputs[key] + scaled if key in inputs else scaled
        if self.bias is not None and self.bias.requires_grad:
            if not _is_parameter(self.bias):
                return None
            operator, x = self.terms[0]
            copies = math.prod(operator.out_shape) / self.bias.numel()  # one bias serves all pixels of a channel
            inputs[self.bias.data_ptr()] = x.new_full((len(x), 1), math.sqrt(copies))
        return inputs


def _rows(objective: Objective, form: UnifiedForm, y: Tensor, z: States) -> Iterator[_Row]:
    """The rows of W u + b, of M u − V z where u is free, and of K u + d."""
    lifting, layers = objective.lifting, [layer.to(y.dtype) for layer in z]
    u = (y, *(layers if z.u is None else (layer.to(y.dtype) for layer in z.u)))
    for j, (activation, mu) in enumerate(zip(form.activations, objective.engine.setting.weights, strict=True)):
        yield _Row(mu * lifting.curvature_v(activation), [(A, u[k]) for k, A in form.W.rows[j]], form.b[j])
        if objective.coupling is not None:
            driven = [(A, -layers[k]) for k, A in form.V.rows[j]]
            yield _Row(objective.coupling, [*((A, u[k]) for k, A in form.M.rows[j]), *driven])
    yield _Row(objective.loss.curvature(), [(A, u[k]) for k, A in form.K.rows[0]], form.d[0])


def _is_parameter(tensor: Tensor) -> bool:
    """Whether this is a parameter or a part of one, not computed from some."""
    base = tensor if tensor._base is None else tensor._base
    return base.is_leaf


@torch.no_grad()
def block_norms(objective: Objective, context: Context = None) -> dict[str, Tensor]:
    """The norms of all blocks of K, M, V and W, one matrix each; the columns of u_0 are left out."""
    form = objective.network.operators()
    matrices: dict[str, Tensor] = {}
    for name in "KMVW":
        operator: BlockOperator = getattr(form, name)
        norms = torch.zeros(len(operator.row_shapes), len(operator.column_shapes), dtype=torch.float64)
        for place, block in operator.blocks.items():
            norms[place] = block.norm_bound(context)
        matrices[name] = norms if name == "V" else norms[:, 1:]
    return matrices


def coupled_bound(
    objective: Objective, norms: Mapping[str, Tensor], rows: Sequence[int], batch: int, free_u: bool
) -> float | None:
    """A bound for u, or for z, of the given rows where both are free.

    The Hessians are at most

        u:  ρ MᵀM + Wᵀ diag(μ c_v) W + c KᵀK,     z:  ρ VᵀV + diag(μ c_z + c_R),

    with the columns of the rows. Both are AᵀA for blocks A_jk one above the
    other, and ‖A‖ is at most the norm of the matrix of all ‖A_jk‖.
    """
    activations, weights = objective.network.operators().activations, objective.engine.setting.weights
    lifting, rho, columns = objective.lifting, objective.coupling, list(rows)
    assert rho is not None  # the caller knows
    if free_u:
        curvatures = [mu * lifting.curvature_v(a) for mu, a in zip(weights, activations, strict=True)]
        rows_of = {"M": [rho] * len(weights), "W": curvatures, "K": [objective.loss.curvature()]}
    else:
        rows_of = {"V": [rho] * len(weights)}
    parts: list[Tensor] = []
    for name, factors in rows_of.items():  # √factor times each row; no block, no infinite curvature
        chosen = norms[name][:, columns]
        parts.append(torch.where(chosen > 0, chosen * torch.tensor(factors, dtype=torch.float64).sqrt()[:, None], 0.0))
    if not free_u:
        diagonal = [
            weights[j] * lifting.curvature_z(activations[j]) + _regulariser_curvature(objective, j) for j in rows
        ]
        parts.append(torch.tensor(diagonal, dtype=torch.float64).sqrt().diag())
    stacked = torch.cat(parts)
    if not bool(stacked.isfinite().all()):
        return None
    return float(torch.linalg.matrix_norm(stacked, 2)) ** 2 / batch


def _regulariser_curvature(objective: Objective, row: int) -> float:
    regulariser = objective.state_regularisers.get(row + 1)
    return regulariser.curvature() if regulariser is not None and regulariser.smooth else 0.0


def layer_norms(engine: StackedEngine) -> list[float]:
    """‖W_1‖, …, ‖W_J‖ and ‖K‖ of a chain of dense layers; of a stage without an output layer those of its own."""
    weights = [W for segment in engine.segments for W in segment.weights().W]
    tail = [] if engine.tail is None else [engine.tail.weights().first]
    return [Dense(W).norm_bound() for W in (*weights, *tail)]


def state_bound(
    objective: Objective, norms: list[float], rows: tuple[int, ...], batch: int, joint: bool
) -> float | None:
    """A bound for the states of the given rows of a chain.

    Row j alone has the Hessian μ_j c_z I + μ_{j+1} c_v W_{j+1}ᵀW_{j+1} at most
    (the loss and K after the last row). Moved together with its neighbours,
    the coupling blocks μ W add to it by Gershgorin's theorem for blocks.
    """
    activations = objective.network.operators().activations
    weights = objective.engine.setting.weights
    lifting, depth = objective.lifting, len(weights)
    worst = 0.0
    for row in rows:
        diagonal = weights[row] * lifting.curvature_z(activations[row])
        if row + 1 < depth:
            following = weights[row + 1] * lifting.curvature_v(activations[row + 1]) * norms[row + 1] ** 2
            across = weights[row + 1] * norms[row + 1]
        else:
            following, across = objective.loss.curvature() * norms[-1] ** 2, 0.0
        total = diagonal + following + _regulariser_curvature(objective, row)
        if joint:
            total += across + weights[row] * norms[row]
        worst = max(worst, total)
    return worst / batch if math.isfinite(worst) else None


def with_ones(u: Tensor) -> Tensor:
    """X = (u, 1): a batch of inputs, flattened, with a column for the bias."""
    return torch.cat([u.flatten(1), u.new_ones(len(u), 1)], dim=1)


def squared_norm(X: Tensor, shard: Shard = WHOLE) -> float:
    """‖X‖₂² of a batch, (B, columns).

    Where many processes share the batch, XᵀX = S Sᵀ is summed over them and
    ‖S‖ is the answer; a batch of fewer samples than columns is gathered.
    """
    if shard.whole or few_samples(shard, X):
        return Dense(shard.gather(X)).norm_bound() ** 2
    X = X.double()  # as in `norm_bound`
    gram = X.T @ X / len(X)
    shard.mean_(gram)
    return shard.samples(X) * Dense(definite_factor(gram[None])[0].T).norm_bound() ** 2
