"""The default algorithm: backward sweeps with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_value
from torchlift.core.tensors import Point
from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.solver import InversionSolver, auxiliary_step, input_step, input_steps
from torchlift.inversion.state import InversionState
from torchlift.solvers.momentum import next_momentum


@dataclass(frozen=True, eq=False)
class Momentum:
    """The last changes of everything that is extrapolated, and Nesterov's t of every image.

    Arguments:
        t: (B,), 1 where an image starts anew.
        x, z, products: of the variables and of A_i x.
        v: of the pre-activations that each variable (x, z_1, …) moves.
    """

    t: Tensor
    x: Tensor
    z: Tensors
    products: Tensors
    v: tuple[Tensors, ...]


@dataclass(frozen=True, kw_only=True)
class Sweep(InversionSolver):
    """Backward Gauss–Seidel sweeps: z_{n−1}, …, z_1, then one primal-dual step of x.

        z̃_j = z_j + β(z_j − z_j of the sweep before), likewise x̃
        z_j ← prox_{κΨ_j}((z̃_j − τ_j(∇_{z_j}(layers above at z̃_j) − μ_j v_j))/(1 + τ_j μ_j)),  κ = τ_j μ_j/(1 + τ_j μ_j)
        x, p ← a step of Condat and Vũ from x̃

    τ_j = 1/L_j with L_j = Σ_r μ_r‖∂v_r/∂z_j‖², in a chain μ_{j+1}‖W_{j+1}‖². β
    is Nesterov's. A sweep that would increase the objective of an image is
    undone for this image and its momentum starts anew, so that the objective
    decreases; without momentum only the nonsmooth part of the prior can still
    increase it, which `Inversion.monotone` reports. Extrapolated pre-activations
    are linear combinations of known ones: a sweep costs one forward and one
    adjoint pass, like back-propagation.

    Arguments:
        scale: τ_x = scale/L_x, in (0, 2).
        momentum: whether β ≠ 0.

    Reference: Xu & Yin, SIAM Journal on Imaging Sciences 6 (2013), for block
    coordinate descent with extrapolation; Condat, Journal of Optimization Theory
    and Applications 158 (2013); O'Donoghue & Candès, Foundations of Computational
    Mathematics 15 (2015), for restarts.
    """

    scale: float = 1.0
    momentum: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not check_positive("Sweep scale", self.scale) < 2:
            invalid_value("Sweep scale", "a number in (0, 2)", self.scale, "Steps of 2/L and more diverge.")

    def remember(self, problem: InversionProblem, state: InversionState) -> Momentum:
        still = tuple(tuple(torch.zeros_like(state.v[r]) for r in each.rows) for each in problem.layers.influences)
        z, products = (tuple(map(torch.zeros_like, each)) for each in (state.z, state.products))
        ones = state.x.new_ones(state.x.shape[0])
        return Momentum(ones, torch.zeros_like(state.x), z, products, still)

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        layers, memory, context = problem.layers, state.memory, problem.context
        t = next_momentum(memory.t) if self.momentum else memory.t
        beta = (memory.t - 1) / t
        u, v, z = list(state.u), list(state.v), list(state.z)
        moved: list[Sequence[Tensor]] = [() for _ in layers.influences]
        for j in range(layers.count - 1, 0, -1):
            pre = _extrapolated([v[r] for r in layers.influences[j].rows], memory.v[j], beta)
            (at,) = _extrapolated([z[j - 1]], [memory.z[j - 1]], beta)
            tau = 1 / (problem.curvatures[j] or 1.0)
            z[j - 1] = auxiliary_step(problem, j, at, v[j - 1], problem.pull(j, z, pre), tau)
            moved[j] = layers.update(j, u, v, z, context)

        pre = _extrapolated([v[r] for r in layers.influences[0].rows], memory.v[0], beta)
        (at,) = _extrapolated([state.x], [memory.x], beta)
        known = tuple(_extrapolated(state.products, memory.products, beta))
        gradient = problem.pull(0, z, pre)
        if problem.anchor:
            gradient = gradient + problem.anchor * (at - problem.guess)
        x, duals, products = input_step(problem, at, state.duals, known, gradient, *input_steps(problem, self.scale))
        u[0] = x
        moved[0] = layers.update(0, u, v, z, context)
        changes = Momentum(
            t=t,
            x=x - state.x,
            z=tuple(a - b for a, b in zip(z, state.z, strict=True)),
            products=tuple(a - b for a, b in zip(products, state.products, strict=True)),
            v=tuple(map(tuple, moved)),
        )
        point = Point({"x": x, "z": z, "dual": duals})
        return replace(state, point=point, u=tuple(u), v=tuple(v), products=products, memory=changes)

    def refused(self, state: InversionState, worse: Tensor) -> Tensor:
        return worse & (state.memory.t > 1)

    def forget(self, state: InversionState) -> InversionState:
        return replace(state, memory=replace(state.memory, t=torch.ones_like(state.memory.t)))


def _extrapolated(current: Sequence[Tensor], change: Sequence[Tensor], beta: Tensor) -> list[Tensor]:
    """a + β·change for each tensor."""
    pairs = zip(current, change, strict=True)
    return [torch.addcmul(a, torch.as_tensor(along(beta, a)), b) for a, b in pairs]
