"""Algorithms on the lifted variables: backward sweeps with momentum, and the source's, all variables at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.proximal import input_step, prior_step
from torchlift.inversion.solver import InversionSolver, InversionState, block_bound, length
from torchlift.solvers.momentum import next_momentum


@dataclass(frozen=True, kw_only=True)
class Lifted(InversionSolver):
    """For each image, minimise Σ_r μ_r B_r(z_r, (W u + b)_r) + ρR(x) + λ/2 ‖x − x₀‖² over x and z.

    Arguments:
        scale: τ = scale/L for x, in (0, 2).
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not check_positive(f"{type(self).__name__} scale", self.scale) < 2:
            hint = "Steps of 2/L and more diverge."
            invalid_value(f"{type(self).__name__} scale", "a number in (0, 2)", self.scale, hint)

    def value(self, problem: InversionProblem, state: InversionState) -> Tensor:
        return problem.value(state.x, state.z, state.v, state.products)


@dataclass(frozen=True, eq=False)
class Momentum:
    """The last changes of everything that is extrapolated, and Nesterov's t of every image.

    Arguments:
        t: (B,), 1 where an image starts anew.
        x, z: of the variables.
        v: of the pre-activations that each variable (x, z_1, …) moves.
    """

    t: Tensor
    x: Tensor
    z: Tensors
    v: tuple[Tensors, ...]


@dataclass(frozen=True, kw_only=True)
class Sweep(Lifted):
    """Backward Gauss–Seidel sweeps: z_{n−1}, …, z_1, then one proximal-gradient step of x.

        z̃_j = z_j + β(z_j − z_j of the sweep before), likewise x̃
        z_j ← prox_{κΨ_j}((z̃_j − τ_j(∇_{z_j}(layers above at z̃_j) − μ_j v_j))/(1 + τ_j μ_j)),  κ = τ_j μ_j/(1 + τ_j μ_j)
        x   ← prox_{τρR}(x̃ − τ∇(layers above at x̃)), by a few dual steps

    τ_j = 1/L_j with L_j = Σ_r μ_r‖∂v_r/∂z_j‖², in a chain μ_{j+1}‖W_{j+1}‖². β
    is Nesterov's. A sweep that would increase the objective of an image is
    undone for this image and its momentum starts anew, so that the objective
    decreases, up to what too few dual steps leave of the prior, which
    `Inversion.monotone` reports. Extrapolated pre-activations are linear
    combinations of known ones: a sweep costs one forward and one adjoint pass,
    like back-propagation.

    Arguments:
        scale: τ = scale/L for x, in (0, 2).
        momentum: whether β ≠ 0.
        inner: dual steps of the prior in every sweep.

    Reference: Xu & Yin, SIAM Journal on Imaging Sciences 6 (2013), for block
    coordinate descent with extrapolation; O'Donoghue & Candès, Foundations of
    Computational Mathematics 15 (2015), for restarts.
    """

    momentum: bool = True
    inner: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("Sweep inner", self.inner)

    def remember(self, problem: InversionProblem, state: InversionState) -> Momentum:
        still = tuple(tuple(torch.zeros_like(state.v[r]) for r in each.rows) for each in problem.chain.jacobians)
        ones = state.x.new_ones(state.x.shape[0])
        return Momentum(ones, torch.zeros_like(state.x), tuple(map(torch.zeros_like, state.z)), still)

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        layers, memory, context = problem.chain, state.memory, problem.context
        t = next_momentum(memory.t) if self.momentum else memory.t
        beta = (memory.t - 1) / t
        u, v, z = list(state.u), list(state.v), list(state.z)
        moved: list[Sequence[Tensor]] = [() for _ in layers.jacobians]
        steps: dict[int, tuple[Tensor, float]] = {}
        for j in range(layers.count - 1, 0, -1):
            pre = _extrapolated([v[r] for r in layers.jacobians[j].rows], memory.v[j], beta)
            (at,) = _extrapolated([z[j - 1]], [memory.z[j - 1]], beta)
            steps[j] = (at, 1 / (problem.curvatures[j] or 1.0))
            z[j - 1] = auxiliary_step(problem, j, at, v[j - 1], problem.vjp(j, z, pre), steps[j][1])
            moved[j] = layers.update(j, u, v, z, context)

        pre = _extrapolated([v[r] for r in layers.jacobians[0].rows], memory.v[0], beta)
        (at,) = _extrapolated([state.x], [memory.x], beta)
        gradient = problem.vjp(0, z, pre)
        if problem.anchor:
            gradient = gradient + problem.stiffness * (at - problem.guess)
        tau = self.scale / (problem.input_curvature() or 1.0)
        x, duals, products = prior_step(problem, at - tau * gradient, tau, state.duals, self.inner)
        u[0] = x
        moved[0] = layers.update(0, u, v, z, context)
        bound = block_bound((2 / tau) * (at - x), x, problem.guess) + problem.dual_gap(products, duals)
        for j, (before, step) in steps.items():
            bound = bound + auxiliary_bound(problem, j, before, z[j - 1], step, state.v[j - 1], v[j - 1])
        changes = Momentum(
            t=t,
            x=x - state.x,
            z=tuple(a - b for a, b in zip(z, state.z, strict=True)),
            v=tuple(map(tuple, moved)),
        )
        moved_to = {"x": x, "z": tuple(z), "duals": duals, "u": tuple(u), "v": tuple(v)}
        return replace(state, **moved_to, products=products, memory=changes, bound=bound)

    def refused(self, state: InversionState, worse: Tensor) -> Tensor:
        return worse & (state.memory.t > 1)

    def forget(self, state: InversionState) -> InversionState:
        return replace(state, memory=replace(state.memory, t=torch.ones_like(state.memory.t)))


def _extrapolated(current: Sequence[Tensor], change: Sequence[Tensor], beta: Tensor) -> list[Tensor]:
    """a + β·change for each tensor."""
    pairs = zip(current, change, strict=True)
    return [torch.addcmul(a, torch.as_tensor(along(beta, a)), b) for a, b in pairs]


@dataclass(frozen=True, kw_only=True)
class Simultaneous(Lifted):
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

    def remember(self, problem: InversionProblem, state: InversionState) -> tuple[()]:
        return ()

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        layers, old, z = problem.chain, state.v, state.z
        rows = [[old[r] for r in jacobian.rows] for jacobian in layers.jacobians]
        gradients = [problem.vjp(j, z, rows[j]) for j in range(layers.count)]
        taus = [self.scale / (curvature or 1.0) for curvature in problem.curvatures]
        hidden = range(1, layers.count)
        new = tuple(auxiliary_step(problem, j, z[j - 1], old[j - 1], gradients[j], taus[j]) for j in hidden)
        gradient = gradients[0]
        if problem.anchor:
            gradient = gradient + problem.stiffness * (state.x - problem.guess)
        curvature = problem.input_curvature() or 1.0
        tau = self.scale / curvature
        # the largest step of the duals that Condat and Vũ allow
        sigma = (1 / tau - curvature / 2) / problem.dual_norm if problem.dual_norm else 1.0
        x, duals, products, bound = input_step(problem, state, gradient, tau, sigma)
        u, v = layers.lifted(x, new, problem.context)
        for j in hidden:
            bound = bound + auxiliary_bound(problem, j, z[j - 1], new[j - 1], taus[j], old[j - 1], v[j - 1])
        return replace(state, x=x, z=new, duals=duals, u=u, v=v, products=products, bound=bound)


def auxiliary_step(problem: InversionProblem, j: int, z: Tensor, v: Tensor, gradient: Tensor, tau: float) -> Tensor:
    """The proximal step of z_j: argmin_z ⟨g, z⟩ + ‖z − z_j‖²/2τ + μ_j(Φ_j(z) − ⟨z, v_j⟩)

    = prox_{κΨ_j}((z_j − τ(g − μ_j v_j))/(1 + τμ_j)),   κ = τμ_j/(1 + τμ_j).
    """
    weight = tau * problem.mu[j - 1]
    moved = torch.add(z, gradient, alpha=-tau).add_(v, alpha=weight).div_(1 + weight)
    return problem.chain.activations[j - 1].prox(moved, weight / (1 + weight))


def auxiliary_bound(
    problem: InversionProblem, j: int, at: Tensor, z: Tensor, tau: float, old_v: Tensor, v: Tensor
) -> Tensor:
    """The bound of `InversionSolver` for z_j after a step from `at`, during which v_j moved: (B,)."""
    return (2 / tau * length(at - z) + problem.mu[j - 1] * length(v - old_v)) * length(z)
