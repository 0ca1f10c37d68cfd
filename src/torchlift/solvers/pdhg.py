"""The primal-dual hybrid gradient method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_number, check_positive
from torchlift.core.errors import invalid_value
from torchlift.core.tensors import Point
from torchlift.solvers.base import NAN, Measure, Solver, State
from torchlift.solvers.saddle import SaddleProblem, check_saddle, joint_norm, relative_gap


@dataclass(frozen=True, eq=False)
class PDHGState(State):
    """x and p (in `point`), what is known about them, and the step sizes."""

    products: tuple[Tensor, ...]
    back: Tensor
    gradient: Tensor
    tau: float
    sigma: float
    norm: float
    curvature: float
    pace: float
    direction: int = 0
    primal_residual: float = NAN
    dual_residual: float = NAN

    @property
    def step_sizes(self) -> Mapping[str, float]:
        return {"x": self.tau, "dual": self.sigma}


@dataclass(frozen=True)
class PDHG(Solver[SaddleProblem, PDHGState]):
    """Minimises f(x) + g(x) + Σ h_i(A_i x) through its saddle-point form.

        x⁺ = prox_{τg}(x − τ(∇f(x) + Kᵀp))
        p⁺ = prox_{σh*}(p + σK(2x⁺ − x)),   K = (A_1; A_2; …)

    Chambolle and Pock's method, with f that of Condat and Vũ. Step sizes must
    satisfy 1/τ − σ‖K‖² ≥ L_f/2, which is τσ‖K‖² ≤ 1 without f. They come from
    the operators' norm bounds; given ones are checked. The ratio σ/τ is
    balanced so that primal and dual residuals shrink together, by less and
    less, so that convergence is kept.

    Arguments:
        tau, sigma: τ, σ > 0; both or none. Given ones stay fixed.
        ratio: σ/τ to start with, where they are not given.
        balance: adapt the ratio.

    Reference: Chambolle & Pock, Journal of Mathematical Imaging and Vision 40
    (2011), algorithm 1; Condat, Journal of Optimization Theory and Applications
    158 (2013), theorem 3.1; Goldstein, Li & Yuan, Adaptive primal-dual splitting
    methods (2015), algorithm 1.
    """

    solves: ClassVar[str] = "saddle problems"

    tau: float | None = None
    sigma: float | None = None
    ratio: float = 1.0
    balance: bool = True

    def __post_init__(self) -> None:
        if (self.tau is None) != (self.sigma is None):
            invalid_value("PDHG", "both tau and sigma, or neither", f"tau={self.tau}, sigma={self.sigma}")
        if self.tau is not None:
            check_positive("PDHG tau", self.tau)
            check_positive("PDHG sigma", self.sigma)
        check_positive("PDHG ratio", self.ratio)

    def check(self, problem: SaddleProblem, point: Point) -> None:
        check_saddle("PDHG", problem, point)
        curvature = check_number("PDHG curvature of f", problem.curvature())
        if self.tau is None or self.sigma is None:
            return
        norm = problem.norm_bound()
        if 1 / self.tau - self.sigma * norm**2 < curvature / 2 - 1e-12 / self.tau:
            product = self.tau * self.sigma * norm**2
            expected = "1/τ − σ‖K‖² >= L/2" if curvature else "τσ‖K‖² <= 1"
            got = f"τσ‖K‖² = {product:.4g} with ‖K‖ = {norm:.4g}, L = {curvature:.4g}"
            invalid_value("PDHG", expected, got, "Leave out tau and sigma to have them chosen.")

    def init(self, problem: SaddleProblem, point: Point) -> PDHGState:
        x, duals = problem.start(point)
        norm, curvature = problem.norm_bound(), problem.curvature()
        if self.tau is not None and self.sigma is not None:
            tau, sigma = self.tau, self.sigma
        else:
            tau, sigma = step_sizes(self.ratio, norm, curvature)
        return PDHGState(
            count=0,
            point=Point({"x": x, "dual": duals}),
            residual=NAN,
            products=problem.forward(x),
            back=problem.adjoint(duals),
            gradient=_gradient(problem, x),
            tau=tau,
            sigma=sigma,
            norm=norm,
            curvature=curvature,
            pace=0.5,
        )

    def step(self, problem: SaddleProblem, state: PDHGState) -> PDHGState:
        (x,), duals, tau, sigma = state.point["x"], state.point["dual"], state.tau, state.sigma
        moved = x - tau * (state.gradient + state.back)
        new = moved if problem.g is None else problem.g.prox(moved, tau)
        products = problem.forward(new)
        extrapolated = [2 * after - before for after, before in zip(products, state.products, strict=True)]
        new_duals = tuple(
            term.function.prox_conjugate(p + sigma * ax, sigma)
            for term, p, ax in zip(problem.terms, duals, extrapolated, strict=True)
        )
        back, gradient = problem.adjoint(new_duals), _gradient(problem, new)
        primal = joint_norm([(x - new) / tau + (gradient - state.gradient) + (back - state.back)])
        parts = zip(duals, new_duals, products, state.products, strict=True)
        dual = joint_norm([(p - q) / sigma - (before - after) for p, q, after, before in parts])
        tau, sigma, pace, direction = self._balance(state, primal, dual)
        return PDHGState(
            count=state.count + 1,
            point=Point({"x": new, "dual": new_duals}),
            residual=max(primal, dual),
            products=products,
            back=back,
            gradient=gradient,
            tau=tau,
            sigma=sigma,
            norm=state.norm,
            curvature=state.curvature,
            pace=pace,
            direction=direction,
            primal_residual=primal,
            dual_residual=dual,
        )

    def measure(self, problem: SaddleProblem, state: PDHGState) -> Measure:
        value = problem.value(state.point["x"][0], state.products)
        dual = problem.dual_value(state.point["dual"], state.back)
        extra = {"primal_residual": state.primal_residual, "dual_residual": state.dual_residual}
        if dual is not None:
            extra["dual_value"] = dual
        return Measure(value, relative_gap(value, dual), extra)

    def _balance(self, state: PDHGState, primal: float, dual: float) -> tuple[float, float, float, int]:
        """The next τ, σ, and the rate and direction of their change: a larger primal residual asks for a larger τ."""
        tau, sigma, pace = state.tau, state.sigma, state.pace
        # The residuals live in spaces that K connects, so ‖K‖ makes them comparable.
        weighed = dual * state.norm
        if not self.balance or self.tau is not None or 1 / 1.5 <= primal / max(weighed, 1e-300) <= 1.5:
            return tau, sigma, pace, state.direction
        direction = 1 if primal > weighed else -1
        # Turning round means that the right ratio is near. The pace falls in any case, so that its sum is finite.
        pace *= 0.99 if direction == state.direction else 0.9
        ratio = sigma / tau * (1 - pace) ** (2 * direction)
        return *step_sizes(ratio, state.norm, state.curvature), pace, direction


def step_sizes(ratio: float, norm: float, curvature: float) -> tuple[float, float]:
    """The largest τ and σ = ratio·τ with 1/τ − σ‖K‖² ≥ L.

    Half of L would do, but then gradient steps of 2/L make residuals alternate, which misleads the balancing.
    """
    if norm == 0 and curvature == 0:
        return 1.0, ratio
    square = ratio * norm**2
    # the positive root of square·τ² + L·τ = 1, in the form that does not cancel
    tau = 2 / (curvature + math.sqrt(curvature**2 + 4 * square))
    return tau, ratio * tau


def _gradient(problem: SaddleProblem, x: Tensor) -> Tensor:
    return torch.zeros_like(x) if problem.f is None else problem.f.grad(x)
