"""Primal-dual networks: the unrolled Condat–Vũ algorithm."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_positive, check_size
from torchlift.networks.form import FusedRow, UnifiedForm, assemble
from torchlift.networks.lista import StepReport
from torchlift.networks.unrolled import (
    Positive,
    Tied,
    Unrolled,
    as_operator,
    forward_model,
    reference,
    set_learnable,
    starting_value,
)
from torchlift.operators import Compose, Context, Identity, LinearOperator, OperatorStack, Scaled, Sum
from torchlift.prox import Box, ProximalActivation, as_activation
from torchlift.prox import Identity as IdentityActivation


class PrimalDual(Unrolled):
    """Unrolls min_{x ∈ C} ½‖H x − y‖² + λ‖L x‖₁ by T primal-dual iterations.

    Starting from x_0 = Hᵀy and p_0 = 0,

        p_j = proj_{[−λ_j, λ_j]}(p_{j-1} + γ_j L_j x_{j-1})
        x_j = proj_C(x_{j-1} − τ_j Hᵀ(H x_{j-1} − y) − τ_j L_jᵀ(2 p_j − p_{j-1}))

    and N(y) = x_T. The states are u = (y, x_0, p_1, x_1, …, p_T, x_T).

    The iteration converges if γ‖L‖² < 1/τ − ‖H‖²/2; the steps start inside
    that condition, and `convergence` reports where training takes them.

    Arguments:
        H: forward model, image → measurement; may depend on the sample through the context. An operator, or a
            `LinearPhysics` of deepinv.
        L: analysis operator, image → coefficients: an operator or a matrix.
        iterations: T.
        constraint: the projection onto C: `Box(0, 1)` by default, `ReLU()` for non-negativity, any proximal map.
        threshold: starting value of every λ_j.
        dual_step: starting value of every γ_j; 1/‖L‖² by default.
        step: starting value of every τ_j; 0.99/(‖H‖²/2 + γ‖L‖²) by default.
        tied: whether all layers share their weights.
        learnable: which of "analysis", "threshold", "dual_step", "step" are trained; all by default.
        context: an example context, for the norm of an H that depends on the sample.

    Reference: Condat, J. Optim. Theory Appl. 158, 2013, Algorithm 3.2; Vũ, Adv. Comput. Math. 38, 2013.
    """

    def __init__(
        self,
        H: LinearOperator | nn.Module,
        L: LinearOperator | Tensor,
        iterations: int,
        *,
        constraint: ProximalActivation | None = None,
        threshold: float = 0.1,
        dual_step: float | None = None,
        step: float | None = None,
        tied: bool = False,
        learnable: Collection[str] | None = None,
        context: Context = None,
    ) -> None:
        H = forward_model("PrimalDual H", H, L.in_shape if isinstance(L, LinearOperator) else None, context)
        L = as_operator("PrimalDual L", L, in_shape=H.in_shape)
        super().__init__(H.out_shape, H.in_shape)
        self.iterations = check_size("PrimalDual iterations", iterations)
        self.constraint = Box(0.0, 1.0) if constraint is None else as_activation(constraint)
        norm = L.norm_bound()
        gamma = starting_value("PrimalDual dual_step", dual_step, lambda: 1 / norm**2)
        tau = starting_value("PrimalDual step", step, lambda: 0.99 / (H.norm_bound(context) ** 2 / 2 + gamma * norm**2))
        weight = check_positive("PrimalDual threshold", threshold)
        count = 1 if tied else self.iterations
        like = reference(L, H)
        self.physics = OperatorStack([H], trainable=False)
        self.analysis = Tied(L, self.iterations, tied)
        self.threshold = Positive(weight, count, like)
        self.dual_step = Positive(gamma, count, like)
        self.step = Positive(tau, count, like)
        names = ("analysis", "threshold", "dual_step", "step")
        parts = {name: self.get_submodule(name) for name in names}
        set_learnable("PrimalDual", parts, names if learnable is None else learnable)

    def operators(self) -> UnifiedForm:
        T = self.iterations
        (H,) = self.physics.operators()
        W: dict[tuple[int, int], LinearOperator] = {(0, 0): H.T}
        activations: list[ProximalActivation] = [IdentityActivation()]
        fused: dict[int, FusedRow] = {}
        scalars = zip(self.threshold.values(T), self.dual_step.values(T), self.step.values(T), strict=True)
        for j, (L, (bound, gamma, tau)) in enumerate(zip(self.analysis.operators(T), scalars, strict=True), start=1):
            # States: u_{2j-2} = p_{j-1}, u_{2j-1} = x_{j-1}, u_{2j} = p_j; row r computes u_{r+1}.
            dual, primal = 2 * j - 1, 2 * j
            W[dual, 2 * j - 1] = Scaled(L, gamma)
            W[primal, 2 * j - 1] = Sum(Identity(H.in_shape), Scaled(Compose(H.T, H), -tau))
            W[primal, 2 * j] = Scaled(L.T, -2 * tau)
            W[primal, 0] = Scaled(H.T, tau)
            if j > 1:
                W[dual, 2 * j - 2] = Identity(L.out_shape)
                W[primal, 2 * j - 2] = Scaled(L.T, tau)
            fused[primal] = _primal_step(H, L, tau, j)
            activations += [Box(-bound, bound, validate=False), self.constraint]
        K = {2 * T + 1: Identity(H.in_shape)}
        return assemble(self.in_shape, W, [None] * (2 * T + 1), activations, K, like=self.like, fused=fused)

    def convergence(self, context: Context = None) -> list[StepReport]:
        """τ_j against 1/(‖H‖²/2 + γ_j‖L_j‖²) for every iteration."""
        T = self.iterations
        (H,) = self.physics.operators()
        with torch.no_grad():
            half = H.norm_bound(context) ** 2 / 2
            layers = zip(self.analysis.operators(T), self.dual_step.values(T), self.step.values(T), strict=True)
            return [StepReport(float(tau), 1 / (half + float(gamma) * L.norm_bound() ** 2)) for L, gamma, tau in layers]


def _primal_step(H: LinearOperator, L: LinearOperator, tau: Tensor, j: int) -> FusedRow:
    """x − τ Hᵀ(H x − y) − τ Lᵀ(2 p_j − p_{j-1}), with Hᵀ and Lᵀ applied once each."""

    def row(u: Sequence[Tensor], context: Context) -> Tensor:
        x, new = u[2 * j - 1], u[2 * j]
        dual = 2 * new - u[2 * j - 2] if j > 1 else 2 * new
        residual = H.forward(x, context) - u[0]
        return x - tau * (H.adjoint(residual, context) + L.adjoint(dual, context))

    return row
