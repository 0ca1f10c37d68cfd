"""Backward sweeps through the lifted variables, with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.core.tensors import Point
from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.solver import InversionSolver, auxiliary_bound, auxiliary_step, block_bound, prior_step
from torchlift.inversion.state import InversionState
from torchlift.solvers.momentum import next_momentum


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
class Sweep(InversionSolver):
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

    scale: float = 1.0
    momentum: bool = True
    inner: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("Sweep inner", self.inner)
        if not check_positive("Sweep scale", self.scale) < 2:
            invalid_value("Sweep scale", "a number in (0, 2)", self.scale, "Steps of 2/L and more diverge.")

    def remember(self, problem: InversionProblem, state: InversionState) -> Momentum:
        still = tuple(tuple(torch.zeros_like(state.v[r]) for r in each.rows) for each in problem.chain.jacobians)
        ones = state.x.new_ones(state.x.shape[0])
        return Momentum(ones, torch.zeros_like(state.x), tuple(map(torch.zeros_like, state.z)), still)

    def value(self, problem: InversionProblem, state: InversionState) -> Tensor:
        return problem.value(state.x, state.z, state.v, state.products)

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
            gradient = gradient + problem.anchor * (at - problem.guess)
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
        point = Point({"x": x, "z": z, "dual": duals})
        u, v = tuple(u), tuple(v)
        return replace(state, point=point, u=u, v=v, products=products, memory=changes, bound=bound)

    def refused(self, state: InversionState, worse: Tensor) -> Tensor:
        return worse & (state.memory.t > 1)

    def forget(self, state: InversionState) -> InversionState:
        return replace(state, memory=replace(state.memory, t=torch.ones_like(state.memory.t)))


def _extrapolated(current: Sequence[Tensor], change: Sequence[Tensor], beta: Tensor) -> list[Tensor]:
    """a + β·change for each tensor."""
    pairs = zip(current, change, strict=True)
    return [torch.addcmul(a, torch.as_tensor(along(beta, a)), b) for a, b in pairs]
