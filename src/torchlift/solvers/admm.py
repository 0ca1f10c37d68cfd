"""The alternating direction method of multipliers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_interval, check_positive, check_size
from torchlift.core.cholesky import cholesky
from torchlift.core.errors import invalid_type
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point
from torchlift.operators import Identity
from torchlift.solvers.base import NAN, Measure, Solver, State
from torchlift.solvers.conjugate_gradient import conjugate_gradient
from torchlift.solvers.saddle import SaddleProblem, Term, adjoint_sum, check_saddle, joint_norm, relative_gap


@dataclass(frozen=True, eq=False)
class ADMMState(State):
    """x, p = ρw and z (the blocks "x", "dual", "split" of `point`), the scaled duals w, ρ, a factor of the x-system."""

    scaled: tuple[Tensor, ...]
    penalty: float
    factor: Tensor
    factor_penalty: float = 0.0
    changes: int = 0
    primal_residual: float = NAN
    dual_residual: float = NAN

    @property
    def step_sizes(self) -> Mapping[str, float]:
        return {"dual": self.penalty}


@dataclass(frozen=True)
class ADMM(Solver[SaddleProblem, ADMMState]):
    """Minimises f(x) + g(x) + Σ h_i(A_i x), f quadratic, by splitting z_i = A_i x (and z = x for g).

        x ← argmin f(x) + ρ/2 Σ‖A_i x − z_i + w_i‖²     (a linear system)
        a_i = γA_i x + (1 − γ)z_i,   z_i ← prox_{h_i/ρ}(a_i + w_i),   w_i ← w_i + a_i − z_i

    Converges for every ρ > 0 and γ in (0, 2). ρ is doubled or halved when the
    primal residual ‖Kx − z‖ and the dual residual ρ‖Kᵀ(z − z_before)‖ differ by
    more than a factor of 10, at most `balance_changes` times, so that it settles.
    The recorded value is f(x) + Σ h_i(z_i), finite where constraints are met in z.

    Arguments:
        penalty: ρ > 0 to start with.
        relaxation: γ in (0, 2).
        balance_changes: how often ρ may change; 0 keeps it.
        cholesky_up_to: factorise the x-system up to this many unknowns per sample, else conjugate gradients.
        tolerance: relative residual of the conjugate gradients.

    Reference: Boyd et al., Distributed Optimization and Statistical Learning via
    ADMM (2011), sections 3.1, 3.4.1 and 3.4.3.
    """

    solves: ClassVar[str] = "saddle problems"

    penalty: float = 1.0
    relaxation: float = 1.6
    balance_changes: int = 50
    cholesky_up_to: int = 1024
    tolerance: float = 1e-10

    def __post_init__(self) -> None:
        check_positive("ADMM penalty", self.penalty)
        check_interval("ADMM relaxation", self.relaxation, "(0, 2)")
        check_size("ADMM balance_changes", self.balance_changes, minimum=0)
        check_size("ADMM cholesky_up_to", self.cholesky_up_to, minimum=0)
        check_interval("ADMM tolerance", self.tolerance, "(0, 1)")

    def check(self, problem: SaddleProblem, point: Point) -> None:
        check_saddle("ADMM", problem, point)
        if problem.f is not None and not callable(getattr(problem.f, "normal", None)):
            hint = "Use LeastSquares or SquaredDistance, give it as g if it has a prox, or use PDHG."
            invalid_type("ADMM f", "a quadratic function (with `normal`)", problem.f, hint)

    def init(self, problem: SaddleProblem, point: Point) -> ADMMState:
        x, duals = problem.start(point)
        terms = _terms(problem)
        if problem.g is not None:
            duals = (*duals, _dual_of_g(problem, point, x, duals))
        splits = tuple(term.forward(x) for term in terms)
        size = math.prod(x.shape[1:])
        alike = all(part.context is None for part in problem.terms) and getattr(problem.f, "context", None) is None
        dense = size <= self.cholesky_up_to and alike
        return ADMMState(
            count=0,
            point=Point({"x": x, "dual": duals, "split": splits}),
            residual=NAN,
            scaled=tuple(p / self.penalty for p in duals),
            penalty=float(self.penalty),
            factor=x.new_zeros((size, size) if dense else (0, 0)),
        )

    def step(self, problem: SaddleProblem, state: ADMMState) -> ADMMState:
        terms, rho, before = _terms(problem), state.penalty, state.point["split"]
        factor = state.factor if state.factor_penalty == rho else _factorise(problem, state)
        x = self._solve(problem, state, factor)
        products = [term.forward(x) for term in terms]
        relaxed = [self.relaxation * ax + (1 - self.relaxation) * z for ax, z in zip(products, before, strict=True)]
        sums = [a + w for a, w in zip(relaxed, state.scaled, strict=True)]
        splits = tuple(term.function.prox(s, 1 / rho) for term, s in zip(terms, sums, strict=True))
        scaled = tuple(s - z for s, z in zip(sums, splits, strict=True))
        primal = joint_norm([ax - z for ax, z in zip(products, splits, strict=True)])
        moved = tuple(new - old for new, old in zip(splits, before, strict=True))
        dual = rho * joint_norm([adjoint_sum(terms, moved)])
        penalty, scaled = self._balance(state, primal, dual, scaled)
        duals = tuple(penalty * w for w in scaled)
        return ADMMState(
            count=state.count + 1,
            point=Point({"x": x, "dual": duals, "split": splits}),
            residual=max(primal, dual),
            scaled=scaled,
            penalty=penalty,
            factor=factor,
            factor_penalty=rho,
            changes=state.changes + (penalty != rho),
            primal_residual=primal,
            dual_residual=dual,
        )

    def measure(self, problem: SaddleProblem, state: ADMMState) -> Measure:
        (x,), terms = state.point["x"], _terms(problem)
        value = sum(float(term.function.value(z).sum()) for term, z in zip(terms, state.point["split"], strict=True))
        value += 0.0 if problem.f is None else float(problem.f.value(x).sum())
        extra = {"primal_residual": state.primal_residual, "dual_residual": state.dual_residual}
        dual = problem.dual_value(state.point["dual"][: len(problem.terms)])
        gap = None if dual is None else relative_gap(problem.value(x), dual)
        return Measure(value, gap, extra)

    def _solve(self, problem: SaddleProblem, state: ADMMState, factor: Tensor) -> Tensor:
        (old,), terms, rho = state.point["x"], _terms(problem), state.penalty
        target = tuple(z - w for z, w in zip(state.point["split"], state.scaled, strict=True))
        right = rho * adjoint_sum(terms, target)
        if problem.f is not None:
            right = right - problem.f.grad(torch.zeros_like(old))
        if factor.numel():
            return torch.cholesky_solve(right.reshape(len(old), -1).T, factor).T.reshape(old.shape)
        solution = conjugate_gradient(
            lambda v: _system(problem, rho, v), right, old, tolerance=self.tolerance, batched=True
        )
        if solution.result.failed:
            raise StepFailure(solution.result, "in the conjugate gradients of the x-update")
        return solution.x

    def _balance(
        self, state: ADMMState, primal: float, dual: float, scaled: tuple[Tensor, ...]
    ) -> tuple[float, tuple[Tensor, ...]]:
        if state.changes >= self.balance_changes or 0.1 * dual <= primal <= 10 * dual:
            return state.penalty, scaled
        factor = 2.0 if primal > 10 * dual else 0.5
        return state.penalty * factor, tuple(w / factor for w in scaled)


def _terms(problem: SaddleProblem) -> tuple[Term, ...]:
    """All terms, with g as one after the identity."""
    if problem.g is None:
        return problem.terms
    return (*problem.terms, Term(problem.g, Identity(problem.terms[0].operator.in_shape)))


def _dual_of_g(problem: SaddleProblem, point: Point, x: Tensor, duals: tuple[Tensor, ...]) -> Tensor:
    """The dual of g: as given, else −∇f(x) − Σ A_iᵀp_i by optimality, else 0 without other duals."""
    if "dual" not in point:
        return torch.zeros_like(x)
    if len(point["dual"]) > len(duals):
        return point["dual"][-1]
    back = problem.adjoint(duals)
    return -back if problem.f is None else -back - problem.f.grad(x)


def _system(problem: SaddleProblem, rho: float, v: Tensor) -> Tensor:
    """(H_f + ρΣA_iᵀA_i)v."""
    terms = _terms(problem)
    product = rho * adjoint_sum(terms, tuple(term.forward(v) for term in terms))
    normal = getattr(problem.f, "normal", None)
    return product if normal is None else product + normal(v)


def _factorise(problem: SaddleProblem, state: ADMMState) -> Tensor:
    """A Cholesky factor of the system, or the empty tensor where conjugate gradients serve."""
    size = len(state.factor)
    if size == 0:
        return state.factor
    (x,) = state.point["x"]
    basis = torch.eye(size, dtype=x.dtype, device=x.device).reshape(size, *x.shape[1:])
    matrix = _system(problem, state.penalty, basis).reshape(size, size)
    factor = cholesky((matrix + matrix.T) / 2)
    if factor is None:
        detail = "the x-update has no unique solution: nothing in f, g or the terms sees some direction of x"
        raise StepFailure(Result.NOT_POSITIVE_DEFINITE, detail)
    return factor
