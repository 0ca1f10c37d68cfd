"""Baselines without lifting: minimise through the composed network."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.core.tensors import Point, add_scaled
from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.problem import InversionProblem, square_sum
from torchlift.inversion.solver import InversionSolver, input_step
from torchlift.inversion.state import InversionState, Status
from torchlift.solvers import AdamScaling
from torchlift.solvers.scaling import ScalingState


@dataclass(frozen=True, eq=False)
class NestedMemory:
    """∇½‖N(x) − y‖² at the current input, from the forward pass that also gave the objective, and what else is kept."""

    gradient: Tensor
    own: Any


@dataclass(frozen=True, kw_only=True)
class Nested(InversionSolver):
    """For each image, minimise ½‖N(x) − y‖² + ρR(x) + λ/2 ‖x − x₀‖² by back-propagation. Not convex.

    A step costs one forward and one backward pass.
    """

    @abstractmethod
    def begin(self, problem: InversionProblem, state: InversionState) -> Any:
        """What the method remembers besides the gradient."""

    @abstractmethod
    def move(
        self, problem: InversionProblem, state: InversionState, own: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensors, Tensors, Any]:
        """x, the duals, the products and the method's memory after a step, from the gradient of the smooth part."""

    def remember(self, problem: InversionProblem, state: InversionState) -> NestedMemory:
        *_, gradient = passes(problem, state.x)
        return NestedMemory(gradient, self.begin(problem, state))

    def value(self, problem: InversionProblem, state: InversionState) -> Tensor:
        last = problem.layers.activations[-1](state.v[-1])
        gap = problem.layers.output_of(last) - problem.output
        return 0.5 * square_sum(gap) + problem.prior_value(state.x, state.products)

    def step(self, problem: InversionProblem, state: InversionState) -> InversionState:
        """One step; an image whose outputs differ from y while nothing pulls at x has stalled, not converged."""
        new = super().step(problem, state)
        silent = (new.watch.status == Status.CONVERGED) & (square_sum(new.memory.gradient) == 0)
        if not bool(silent.any()):
            return new
        gap = problem.layers.output_of(problem.layers.activations[-1](new.v[-1])) - problem.output
        # flat activations on all ways from x
        status = new.watch.status.masked_fill(silent & (square_sum(gap) > 0), Status.STALLED)
        return replace(new, watch=replace(new.watch, status=status))

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        gradient, own = state.memory.gradient, state.memory.own
        if problem.anchor:
            gradient = gradient + problem.anchor * (state.x - problem.guess)
        x, duals, products, own = self.move(problem, state, own, gradient)
        z, u, v, gradient = passes(problem, x)
        point, memory = Point({"x": x, "z": z, "dual": duals}), NestedMemory(gradient, own)
        return replace(state, point=point, u=u, v=v, products=products, memory=memory)


@dataclass(frozen=True, kw_only=True)
class NestedAdam(Nested):
    """Adam on the composed network.

        x ← P(x − α Adam(∇½‖N(x) − y‖² + ρ Σ_i A_iᵀ∇(g_i)_ε(A_i x)))

    P projects onto the constraints of the prior, and (g)_ε is the Moreau envelope of
    g, a Huber function for total variation: Adam needs gradients, and its scaling
    does not go together with other proximal maps.

    Arguments:
        patience: long by default, since Adam's objective goes up and down.
        step_size: α > 0.
        smoothing: ε > 0.
        scaling: Adam's own settings.

    Reference: Kingma & Ba, Adam (2015); Mahendran & Vedaldi, Understanding deep
    image representations by inverting them (2015).
    """

    patience: int = 500
    step_size: float = 0.05
    smoothing: float = 1e-3
    scaling: AdamScaling = field(default_factory=AdamScaling)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("NestedAdam step_size", self.step_size)
        check_positive("NestedAdam smoothing", self.smoothing)

    def begin(self, problem: InversionProblem, state: InversionState) -> ScalingState:
        return self.scaling.init(state.point.select(["x"]))

    def move(
        self, problem: InversionProblem, state: InversionState, own: ScalingState, gradient: Tensor
    ) -> tuple[Tensor, Tensors, Tensors, ScalingState]:
        gradient = gradient + self._envelope(problem, state)
        direction, own = self.scaling.direction(own, Point({"x": gradient}))
        (x,) = add_scaled(state.point.select(["x"]), direction, {"x": -self.step_size})["x"]
        x = problem.split.prox(x, 0.0) if problem.constrained else x
        return x, state.duals, problem.split.products(x), own

    def _envelope(self, problem: InversionProblem, state: InversionState) -> Tensor:
        """ρ Σ A_iᵀ(w − prox_{εg_i}(w))/ε at w = A_i x, with h where it is no constraint."""
        split = problem.split
        pairs = list(zip(split.terms, state.products, strict=True))
        if split.proximal is not None and not problem.constrained:
            pairs.append((split.proximal, state.x))
        total = torch.zeros_like(state.x)
        for part, w in pairs:
            total = total + part.back((w - part.prox(w, self.smoothing)) / self.smoothing)
        return problem.weights * total


@dataclass(frozen=True, eq=False)
class LocalCurvature:
    """An estimate L of the curvature of ½‖N(x) − y‖² at every image: (B,)."""

    value: Tensor


@dataclass(frozen=True, kw_only=True)
class NestedPDHG(Nested):
    """Condat and Vũ's method on the composed network, as if it were convex.

        x⁺ = prox_{τρh}(x − τ(∇½‖N(x) − y‖² + Aᵀp)),   p⁺ = prox_{σ(ρg)*}(p + σA(2x⁺ − x))

    with τ = 1/L and σ = L/(2‖A‖²). The product of the layers' norms is a hopeless
    bound of the curvature, so that L starts from ‖N'(x)‖² by power iteration and
    doubles for an image whose objective a step would increase, which is then
    undone.

    Arguments:
        power_steps: steps of the power iteration.

    Reference: Valkonen, Inverse Problems 30 (2014), for PDHG with nonlinear maps.
    """

    power_steps: int = 10

    def begin(self, problem: InversionProblem, state: InversionState) -> LocalCurvature:
        return LocalCurvature(_jacobian_square(problem, state.x, self.power_steps) + problem.anchor)

    def move(
        self, problem: InversionProblem, state: InversionState, own: LocalCurvature, gradient: Tensor
    ) -> tuple[Tensor, Tensors, Tensors, LocalCurvature]:
        curvature = own.value
        sigma = curvature / (2 * problem.dual_norm) if problem.dual_norm else 1.0
        args = (problem, state.x, state.duals, state.products, gradient)
        return (*input_step(*args, 1 / curvature, sigma), own)

    def refused(self, state: InversionState, worse: Tensor) -> Tensor:
        return worse & (state.memory.own.value < 1e6)

    def forget(self, state: InversionState) -> InversionState:
        return replace(state, memory=replace(state.memory, own=LocalCurvature(2 * state.memory.own.value)))


def passes(problem: InversionProblem, x: Tensor) -> tuple[Tensors, Tensors, Tensors, Tensor]:
    """z, u and v of a forward pass from x, and ∇½‖N(x) − y‖² by back-propagation."""
    layers = problem.layers
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        z, u, v = layers.states(leaf, problem.context)
        gap = layers.output_of(layers.activations[-1](v[-1])) - problem.output
        (gradient,) = torch.autograd.grad(0.5 * gap.square().sum(), leaf)
    z, u, v = (tuple(tensor.detach() for tensor in part) for part in (z, u, v))
    return z, u, v, gradient


def _jacobian_square(problem: InversionProblem, x: Tensor, steps: int) -> Tensor:
    """‖N'(x)‖² of every image, by power iteration from a fixed random start: (B,), at least 1e-6."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    size = x.new_ones(x.shape[0])
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        output = problem.forward(leaf)
        dual = torch.zeros_like(output).requires_grad_()
        # w ↦ N'ᵀw is linear, so that its derivative in direction d is N'd
        (back,) = torch.autograd.grad(output, leaf, dual, create_graph=True)
        for _ in range(steps):
            length = torch.linalg.vector_norm(direction.flatten(1), dim=1).clamp_min(1e-12)
            direction = direction / along(length, direction)
            (forward,) = torch.autograd.grad(back, dual, direction, retain_graph=True)
            (direction,) = torch.autograd.grad(output, leaf, forward, retain_graph=True)
            size = torch.linalg.vector_norm(direction.flatten(1), dim=1)
    return size.detach().clamp_min(1e-6)
