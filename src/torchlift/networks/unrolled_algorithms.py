"""Unrolled algorithms for y = Hx: iterative soft-thresholding (LISTA) and primal-dual networks (Condat–Vũ)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_choice, check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.networks.form import FusedRow, UnifiedForm, assemble
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
from torchlift.prox import Box, ProximalActivation, SoftThreshold, as_activation
from torchlift.prox import Identity as IdentityActivation


class StepReport(NamedTuple):
    """Whether one layer's step sizes still satisfy the convergence condition of the algorithm behind it."""

    value: float
    limit: float

    @property
    def satisfied(self) -> bool:
        return self.value < self.limit


class LISTA(Unrolled):
    """Unrolls the lasso ½‖H L u − y‖² + λ‖u‖₁ with x = L u.

    Form "ista" starts at u_1 = L_1ᵀHᵀ y and takes T iterations, ends with N(y) = L_{T+2} u_{T+1}:

        u_j = soft(u_{j-1} − γ_j L_jᵀHᵀ(H L_j u_{j-1} − y), γ_j λ_j),   j = 2, …, T + 1.

    Form "coupled" learns B_j in place of γ L_jᵀHᵀ, starts at u_0 = 0 and keeps the L in H L shared:

        u_j = soft(u_{j-1} + B_j (y − H L u_{j-1}), θ_j),   j = 1, …, T.

    The matrices I − γ LᵀHᵀH L are applied, never formed. Steps and thresholds
    are positive by parametrisation; γ starts below 1/‖H L‖², and where it
    goes from there is reported by `convergence`, not enforced.

    Arguments:
        H: forward model, image → measurement; may depend on the sample through the context. An operator, or a
            `LinearPhysics` of deepinv.
        dictionary: L, code → image: an operator or a matrix.
        iterations: T.
        threshold: starting value of every λ_j.
        step: starting value of every γ_j; 0.99/‖H L‖² by default.
        form: "ista" or "coupled".
        tied: whether all layers share their weights.
        learnable: which of "dictionary", "threshold", "step" (or "coupling") are trained.
        context: an example context, for the norm of an H that depends on the sample.

    Reference: Gregor and LeCun, Learning fast approximations of sparse coding, ICML 2010;
    coupled form: Chen, Liu, Wang and Yin, NeurIPS 2018.
    """

    def __init__(
        self,
        H: LinearOperator | nn.Module,
        dictionary: LinearOperator | Tensor,
        iterations: int,
        *,
        threshold: float = 0.1,
        step: float | None = None,
        form: str = "ista",
        tied: bool = False,
        learnable: Collection[str] | None = None,
        context: Context = None,
    ) -> None:
        images = dictionary.out_shape if isinstance(dictionary, LinearOperator) else None
        H = forward_model("LISTA H", H, images, context)
        L = as_operator("LISTA dictionary", dictionary, out_shape=H.in_shape)
        check_choice("LISTA form", form, ("ista", "coupled"))
        super().__init__(H.out_shape, H.in_shape)
        self.iterations = check_size("LISTA iterations", iterations)
        self.form = form
        A = H @ L
        gamma = starting_value("LISTA step", step, lambda: 0.99 / A.norm_bound(context) ** 2)
        weight = check_positive("LISTA threshold", threshold)
        count = 1 if tied else self.iterations
        like = reference(L, H)
        self.physics = OperatorStack([H], trainable=False)
        if form == "ista":
            self.dictionary = Tied(L, self.iterations + 2, tied)
            self.threshold = Positive(weight, count, like)
            self.step = Positive(gamma, count, like)
            parts = {"dictionary": self.dictionary, "threshold": self.threshold, "step": self.step}
        else:
            self.dictionary = Tied(L, 1, True)
            start = (gamma * A.to_dense(context).T).contiguous()  # a matrix of its own, on flattened samples
            B = as_operator("LISTA coupling", start, in_shape=A.out_shape, out_shape=A.in_shape)
            self.coupling = Tied(B, self.iterations, tied)
            self.threshold = Positive(gamma * weight, count, like)
            parts = {"dictionary": self.dictionary, "threshold": self.threshold, "coupling": self.coupling}
        set_learnable("LISTA", parts, parts if learnable is None else learnable)

    def operators(self) -> UnifiedForm:
        return self._coupled() if self.form == "coupled" else self._ista()

    def convergence(self, context: Context = None) -> list[StepReport]:
        """γ_j against 1/‖H L_j‖² for every iteration of form "ista"."""
        if self.form != "ista":
            invalid_value("LISTA.convergence", "form 'ista'", repr(self.form), "Coupled weights have no step size.")
        (H,) = self.physics.operators()
        T = self.iterations
        with torch.no_grad():
            pairs = zip(self.dictionary.operators(T + 2)[1:-1], self.step.values(T), strict=True)
            return [StepReport(float(gamma), 1 / (H @ L).norm_bound(context) ** 2) for L, gamma in pairs]

    def _ista(self) -> UnifiedForm:
        T = self.iterations
        (H,) = self.physics.operators()
        first, *inner, last = self.dictionary.operators(T + 2)
        steps, weights = self.step.values(T), self.threshold.values(T)
        # Constructors instead of @, + and *: torch.compile does not trace operators of user classes.
        W: dict[tuple[int, int], LinearOperator] = {(0, 0): Compose(H, first).T}
        activations: list[ProximalActivation] = [IdentityActivation()]
        fused: dict[int, FusedRow] = {}
        for j, (L, gamma, weight) in enumerate(zip(inner, steps, weights, strict=True), start=1):
            A = Compose(H, L)
            W[j, j] = Sum(Identity(A.in_shape), Scaled(Compose(A.T, A), -gamma))
            W[j, 0] = Scaled(A.T, gamma)
            fused[j] = _gradient_step(A, gamma, j)
            activations.append(SoftThreshold(gamma * weight, validate=False))
        return assemble(self.in_shape, W, [None] * (T + 1), activations, {T + 1: last}, like=self.like, fused=fused)

    def _coupled(self) -> UnifiedForm:
        T = self.iterations
        (H,) = self.physics.operators()
        (L,) = self.dictionary.operators(1)
        A = Compose(H, L)
        W: dict[tuple[int, int], LinearOperator] = {}
        activations, fused = [], {}
        for j, (B, theta) in enumerate(zip(self.coupling.operators(T), self.threshold.values(T), strict=True)):
            W[j, 0] = B
            if j > 0:
                W[j, j] = Sum(Identity(A.in_shape), Scaled(Compose(B, A), -1.0))
                fused[j] = _correction(B, A, j)
            activations.append(SoftThreshold(theta, validate=False))
        return assemble(self.in_shape, W, [None] * T, activations, {T: L}, like=self.like, fused=fused)


def _gradient_step(A: LinearOperator, gamma: Tensor, j: int) -> FusedRow:
    """u − γ Aᵀ(A u − y), with Aᵀ applied once."""

    def row(u: Sequence[Tensor], context: Context) -> Tensor:
        return u[j] - gamma * A.adjoint(A.forward(u[j], context) - u[0], context)

    return row


def _correction(B: LinearOperator, A: LinearOperator, j: int) -> FusedRow:
    """u + B (y − A u), with B applied once."""

    def row(u: Sequence[Tensor], context: Context) -> Tensor:
        return u[j] + B.forward(u[0] - A.forward(u[j], context), context)

    return row


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
