"""Steps of the input that use the prior's own proximal maps."""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.solver import InversionState, block_bound
from torchlift.solvers.momentum import next_momentum


def prior_step(
    problem: InversionProblem, b: Tensor, tau: float | Tensor, duals: Tensors, inner: int
) -> tuple[Tensor, Tensors, Tensors]:
    """argmin_x ½‖x − b‖² + τρR(x) by `inner` accelerated dual steps from known duals: x, p and A x.

        x(p) = prox_{τρh}(b − τAᵀp),   p ← prox_{σ(ρg)*}(q + σA x(q)),   σ = 1/(τ‖A‖²)

    x = x(p) for the p that is returned. Duals of one proximal step serve the next,
    so that few of them are enough; without terms g∘A the map is exact.

    Arguments:
        tau: τ, a number or one per image (B,).

    Reference: Beck & Teboulle, IEEE Transactions on Image Processing 18 (2009).
    """
    split, weight = problem.split, problem.weight
    if not duals:
        return split.prox(b, tau * weight), (), ()
    steps = along(tau, b)
    sigma = 1 / (tau * problem.dual_norm)
    p = q = duals
    t = 1.0
    for k in range(inner):
        x = split.prox(b - steps * split.back(q, b), tau * weight)
        triples = zip(split.terms, q, split.products(x), strict=True)
        new = tuple(term.dual_prox(a + along(sigma, a) * ax, sigma, weight) for term, a, ax in triples)
        t, before = next_momentum(t), t
        if k < inner - 1:
            q = tuple(torch.lerp(old, a, 1 + (before - 1) / t) for a, old in zip(new, p, strict=True))
        p = new
    x = split.prox(b - steps * split.back(p, b), tau * weight)
    return x, p, split.products(x)


def input_step(
    problem: InversionProblem,
    state: InversionState,
    gradient: Tensor,
    tau: float | Tensor,
    sigma: float | Tensor,
) -> tuple[Tensor, Tensors, Tensors, Tensor]:
    """One step of Condat and Vũ on the input: x⁺, p⁺, A x⁺ and the bound of `InversionSolver` for x.

        x⁺ = prox_{τρh}(x − τ(∇f(x) + Aᵀp)),   p⁺ = prox_{σ(ρg)*}(p + σA(2x⁺ − x))

    It converges for 1/τ − σ‖A‖² ≥ L/2 with L the Lipschitz constant of ∇f.

    Arguments:
        gradient: ∇f(x).
        tau, sigma: τ, σ; numbers, or one per image (B,).
    """
    split, weight, x, duals = problem.split, problem.weight, state.x, state.duals
    gradient = gradient + split.back(duals, x) if duals else gradient
    new = split.prox(x - along(tau, x) * gradient, tau * weight)
    after = split.products(new)
    new_duals = []
    for term, p, ax, before in zip(split.terms, duals, after, state.products, strict=True):
        new_duals.append(term.dual_prox(p + along(sigma, p) * (2 * ax - before), sigma, weight))
    residual = (2 / along(tau, x)) * (x - new)
    if duals:
        residual = residual.abs() + split.back(tuple(a - b for a, b in zip(new_duals, duals, strict=True)), x).abs()
    bound = block_bound(residual, new, problem.guess) + problem.dual_gap(after, tuple(new_duals))
    return new, tuple(new_duals), after, bound
