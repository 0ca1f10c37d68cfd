"""Norms and matrices of operators, from `forward` and `adjoint` alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.operators.context import Context, context_batch, context_tensors, map_context

if TYPE_CHECKING:
    from torchlift.operators.base import LinearOperator

NormalMap = Callable[[Tensor, Context], Tensor]

#: Up to this many rows or columns a Gram matrix and its eigenvalues are cheaper than Lanczos steps.
EXACT_UP_TO = 512
#: Relative room for rounding in the exact norm.
ROUNDING = 1e-11
#: Relative error of λ_max(AᵀA) that Lanczos may leave; half of it is left in the norm.
TOLERANCE = 0.012
#: Probability that the bound from Lanczos is below the norm.
FAILURE = 1e-10
#: Numbers in one batch, when many vectors or samples go through an operator.
CHUNK = 1 << 22


def dense_matrix(operator: LinearOperator, context: Context = None) -> Tensor:
    """The matrix (out, in) of an operator, in its own dtype; differentiable in what it holds.

    A context must describe one sample.
    """
    where = f"{type(operator).__name__}.to_dense context"
    if (batch := context_batch(where, context)) != 1:
        hint = "A matrix belongs to one sample: pass context[i : i + 1]."
        invalid_value(where, "one sample", f"{batch} samples", hint)
    columns = [operator.forward(basis, ctx).flatten(1) for basis, ctx in _basis(operator, context)]
    return torch.cat(columns).T


@torch.no_grad()
def upper_bound(operator: LinearOperator, context: Context = None) -> float:
    """A number ≥ ‖A‖₂ and at most 1 % above it.

    Exact (by the eigenvalues of a Gram matrix) for operators with a small
    side. Otherwise from k Lanczos steps on AᵀA, or AAᵀ if smaller, from a
    seeded Gaussian start: their largest Ritz value θ is, like every power
    iteration, only a *lower* bound of λ = ‖A‖₂², and a step size 1/θ may
    diverge. But for a random start in n dimensions

        P(θ < (1 − ε) λ) ≤ 1.648 √n exp(−√ε (2k − 1))

    whatever the spectrum, small gaps included (Kuczyński and Woźniakowski,
    1992, theorem 4.2), so k is chosen to make this less than 1e-10 and
    √(θ / (1 − ε)) is returned. With a context, the bound holds for all of its
    samples.
    """
    where = f"{type(operator).__name__}.norm_bound"
    batch = context_batch(f"{where} context", context)
    operator = operator.map_tensors(lambda _, tensor: tensor.double())
    context = map_context(context, lambda tensor: tensor.double())
    if math.prod(operator.out_shape) < math.prod(operator.in_shape):
        operator = operator.T
    step = max(1, CHUNK // math.prod(operator.out_shape))
    parts = [map_context(context, lambda t, i=i: t[i : i + step]) for i in range(0, batch, step)]
    return max(_upper_bound(where, operator, part, FAILURE / batch) for part in parts)


def _upper_bound(where: str, operator: LinearOperator, context: Context, failure: float) -> float:
    batch = context_batch(where, context)
    probe = _gaussian(operator, (batch, *operator.in_shape), context, torch.Generator().manual_seed(0))
    scale = float(operator.forward(probe, context).abs().max())
    if not math.isfinite(scale):
        invalid_value(where, "an operator with finite values", scale)
    if scale == 0:
        return 0.0  # a random vector is in the kernel of the zero operator only
    normal = functools.partial(_normal, operator, scale)
    size = math.prod(operator.in_shape)
    if batch == 1 and size <= EXACT_UP_TO:
        largest = _exact(normal, _basis(operator, context)) * (1 + ROUNDING)
    else:
        largest = _lanczos(normal, probe, context, _lanczos_steps(size, failure)) / (1 - TOLERANCE)
    return scale * math.sqrt(max(largest, 0.0))


@torch.no_grad()
def adjoint_error(operator: LinearOperator, context: Context = None, seed: int = 0) -> float:
    """|⟨A x, y⟩ − ⟨x, Aᵀ y⟩| relative to ‖A x‖ ‖y‖ or ‖x‖ ‖Aᵀ y‖, for random x, y in double precision.

    Rounding alone leaves about 1e-15: much more means that `adjoint` is not the adjoint of `forward`.
    """
    batch = context_batch("adjoint_error context", context)
    operator = operator.map_tensors(lambda _, tensor: tensor.double())
    context = map_context(context, lambda tensor: tensor.double())
    generator = torch.Generator().manual_seed(seed)
    x = _gaussian(operator, (batch, *operator.in_shape), context, generator)
    y = _gaussian(operator, (batch, *operator.out_shape), context, generator)
    ax, aty = operator.forward(x, context), operator.adjoint(y, context)
    scale = max(float(ax.norm() * y.norm()), float(x.norm() * aty.norm()))
    return abs(float((ax * y).sum() - (x * aty).sum())) / scale if scale else 0.0


def _normal(operator: LinearOperator, scale: float, x: Tensor, context: Context) -> Tensor:
    """AᵀA x for A divided by its scale, so that no square overflows or underflows."""
    return operator.adjoint(operator.forward(x, context) / scale, context) / scale


def _exact(normal: NormalMap, basis: Iterable[tuple[Tensor, Context]]) -> float:
    """λ_max of the Gram matrix AᵀA, made column by column so that A itself is never stored."""
    gram = torch.cat([normal(vectors, context).flatten(1) for vectors, context in basis])
    return float(torch.linalg.eigvalsh((gram + gram.T) / 2)[-1])


def _lanczos(normal: NormalMap, start: Tensor, context: Context, steps: int) -> float:
    """The largest Ritz value θ of AᵀA, with one independent recurrence per sample of the context.

    The basis is not reorthogonalised: lost orthogonality only repeats Ritz
    values that have already converged, it never moves the largest one beyond
    rounding (Paige, 1971), and nothing but three vectors is stored.
    """
    batch, axes = start.shape[0], (1,) * (start.ndim - 1)

    def inner(a: Tensor, b: Tensor) -> Tensor:
        return (a * b).flatten(1).sum(1).reshape(batch, *axes)

    v = start / inner(start, start).sqrt()
    previous, beta = torch.zeros_like(v), torch.zeros_like(inner(v, v))
    diagonal, beside = [], []
    for _ in range(steps):
        w = normal(v, context) - beta * previous
        alpha = inner(w, v)
        w = w - alpha * v
        beta = inner(w, w).sqrt()
        # beta = 0 means that the Krylov space is exhausted: zeros from there on change no Ritz value
        previous, v = v, torch.where(beta > 0, w / beta, 0.0)
        diagonal.append(alpha.reshape(batch))
        beside.append(beta.reshape(batch))
    alphas, betas = torch.stack(diagonal, 1), torch.stack(beside[:-1], 1)
    tridiagonal = torch.diag_embed(alphas) + torch.diag_embed(betas, 1) + torch.diag_embed(betas, -1)
    return float(torch.linalg.eigvalsh(tridiagonal)[:, -1].max())


def _lanczos_steps(size: int, failure: float) -> int:
    """The smallest k with 1.648 √size exp(−√ε (2k − 1)) ≤ failure."""
    exponent = math.log(1.648 * math.sqrt(size) / failure)
    return math.ceil((exponent / math.sqrt(TOLERANCE) + 1) / 2)


def _basis(operator: LinearOperator, context: Context) -> Iterator[tuple[Tensor, Context]]:
    """The unit vectors of the input in chunks, each with the context repeated to fit."""
    dtype, device = _dtype_and_device(operator, context)
    size = math.prod(operator.in_shape)
    step = max(1, CHUNK // max(size, math.prod(operator.out_shape)))
    for start in range(0, size, step):
        count = min(step, size - start)
        basis = torch.zeros(count, size, dtype=dtype, device=device)
        basis.diagonal(start).fill_(1)
        repeated = map_context(context, lambda tensor, count=count: tensor.expand(count, *tensor.shape[1:]))
        yield basis.reshape(count, *operator.in_shape), repeated


def _gaussian(operator: LinearOperator, shape: tuple[int, ...], context: Context, generator: torch.Generator) -> Tensor:
    _, device = _dtype_and_device(operator, context)
    # drawn on the CPU, so that every device sees the same numbers
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(device)


def _dtype_and_device(operator: LinearOperator, context: Context) -> tuple[torch.dtype, torch.device]:
    """Those of the held tensors, else of the context, else double precision on the CPU."""
    tensors = list(operator.tensors().values()) or [t for t in context_tensors(context) if t.is_floating_point()]
    if not tensors:
        return torch.float64, torch.device("cpu")
    return functools.reduce(torch.promote_types, (t.dtype for t in tensors)), tensors[0].device
