"""The source's algorithm: all variables at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_value
from torchlift.core.tensors import Point
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.solver import InversionSolver, auxiliary_bound, auxiliary_step, input_step
from torchlift.inversion.state import InversionState


@dataclass(frozen=True, kw_only=True)
class Simultaneous(InversionSolver):
    """One proximal-gradient step of every z_j and one primal-dual step of x, all from the same point.

        z_j ← prox_{κΨ_j}((z_j − τ_j(∇_{z_j}(layers above) − μ_j v_j))/(1 + τ_j μ_j)),   κ = τ_j μ_j/(1 + τ_j μ_j)
        x, p ← a step of Condat and Vũ

    with τ = scale/L for every variable. As printed, the source divides by
    (1 + τ)/τ instead of 1 + τ, which gives blank images, and chooses steps of x
    that need not satisfy Condat and Vũ's condition; here they do. Updates that
    ignore each other need not decrease the objective: the source's scale 1.99
    drifts.

    Arguments:
        scale: in (0, 2).

    Reference: Wang & Benning, A lifted Bregman formulation for the inversion of
    deep neural networks, Frontiers in Applied Mathematics and Statistics 9 (2023).
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not check_positive("Simultaneous scale", self.scale) < 2:
            invalid_value("Simultaneous scale", "a number in (0, 2)", self.scale, "Steps of 2/L and more diverge.")

    def remember(self, problem: InversionProblem, state: InversionState) -> tuple[()]:
        return ()

    def value(self, problem: InversionProblem, state: InversionState) -> Tensor:
        return problem.value(state.x, state.z, state.v, state.products)

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        layers, old, z = problem.chain, state.v, state.z
        rows = [[old[r] for r in jacobian.rows] for jacobian in layers.jacobians]
        gradients = [problem.vjp(j, z, rows[j]) for j in range(layers.count)]
        taus = [self.scale / (curvature or 1.0) for curvature in problem.curvatures]
        hidden = range(1, layers.count)
        new = tuple(auxiliary_step(problem, j, z[j - 1], old[j - 1], gradients[j], taus[j]) for j in hidden)
        gradient = gradients[0]
        if problem.anchor:
            gradient = gradient + problem.anchor * (state.x - problem.guess)
        curvature = problem.input_curvature() or 1.0
        tau = self.scale / curvature
        # the largest step of the duals that Condat and Vũ allow
        sigma = (1 / tau - curvature / 2) / problem.dual_norm if problem.dual_norm else 1.0
        x, duals, products, bound = input_step(problem, state, gradient, tau, sigma)
        u, v = layers.lifted(x, new, problem.context)
        for j in hidden:
            bound = bound + auxiliary_bound(problem, j, z[j - 1], new[j - 1], taus[j], old[j - 1], v[j - 1])
        point = Point({"x": x, "z": new, "dual": duals})
        return replace(state, point=point, u=u, v=v, products=products, bound=bound)
