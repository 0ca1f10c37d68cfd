"""Methods without lifted variables: minimise through the composed network, by back-propagation."""

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
from torchlift.inversion.linearised import Linearised
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.proximal import input_step
from torchlift.inversion.solver import (
    SMOOTHING,
    InversionState,
    Nested,
    Watch,
    block_bound,
    choose,
    envelope_duals,
    length,
    rounding,
)
from torchlift.solvers import AdamScaling
from torchlift.solvers.scaling import ScalingState


@dataclass(frozen=True, eq=False)
class NestedMemory:
    """The smooth part f = L(N(x); y) + λ/2 ‖x − x₀‖² at the current input, its gradient, and what else is kept."""

    smooth: Tensor
    gradient: Tensor
    own: Any


@dataclass(frozen=True, kw_only=True)
class Descent(Nested):
    """A method that takes one gradient at the current input per step: one forward and one backward pass."""

    @abstractmethod
    def begin(self, problem: InversionProblem, state: InversionState) -> Any:
        """What the method remembers besides the gradient."""

    @abstractmethod
    def move(
        self, problem: InversionProblem, state: InversionState, own: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensors, Tensors, Tensor, Any]:
        """x, the duals, the products, the bound and the method's memory after a step."""

    def remember(self, problem: InversionProblem, state: InversionState) -> NestedMemory:
        return NestedMemory(*problem.smooth_gradient(state.x), self.begin(problem, state))

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        x, duals, products, bound, own = self.move(problem, state, state.memory.own, state.memory.gradient)
        memory = NestedMemory(*problem.smooth_gradient(x), own)
        return replace(state, x=x, duals=duals, products=products, memory=memory, bound=bound)


@dataclass(frozen=True, kw_only=True)
class NestedAdam(Descent):
    """Adam on the composed network.

        x ← P(x − α Adam(∇f(x) + ρ Σ_i A_iᵀ∇(g_i)_ε(A_i x)))

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
    smoothing: float = SMOOTHING
    scaling: AdamScaling = field(default_factory=AdamScaling)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("NestedAdam step_size", self.step_size)
        check_positive("NestedAdam smoothing", self.smoothing)

    def begin(self, problem: InversionProblem, state: InversionState) -> ScalingState:
        return self.scaling.init(Point({"x": state.x}))

    def move(
        self, problem: InversionProblem, state: InversionState, own: ScalingState, gradient: Tensor
    ) -> tuple[Tensor, Tensors, Tensors, Tensor, ScalingState]:
        gradient = gradient + self._envelope(problem, state)
        direction, own = self.scaling.direction(own, Point({"x": gradient}))
        (x,) = add_scaled(Point({"x": state.x}), direction, {"x": -self.step_size})["x"]
        if problem.constrained:
            x = problem.split.prox(x, 0.0)
            gradient = state.x - problem.split.prox(state.x - gradient, 0.0)
        return x, state.duals, problem.split.products(x), block_bound(gradient, x, problem.guess), own

    def _envelope(self, problem: InversionProblem, state: InversionState) -> Tensor:
        """The gradient of ρ times the Moreau envelopes, with that of h where it is no constraint."""
        split, x = problem.split, state.x
        total = split.back(envelope_duals(problem, state.products, self.smoothing), x)
        if split.proximal is not None and not problem.constrained:
            gap = x - split.proximal.prox(x, self.smoothing)
            total = total + problem.weights / self.smoothing * gap
        return total


@dataclass(frozen=True, eq=False)
class LocalCurvature:
    """An estimate L of the curvature of f at every image: (B,)."""

    value: Tensor


@dataclass(frozen=True, kw_only=True)
class NestedPDHG(Descent):
    """Condat and Vũ's method on the composed network, as if it were convex.

        x⁺ = prox_{τρh}(x − τ(∇f(x) + Aᵀp)),   p⁺ = prox_{σ(ρg)*}(p + σA(2x⁺ − x))

    with τ = 1/L and σ = L/(2‖A‖²). The product of the layers' norms is a hopeless
    bound of the curvature, so that L starts from ‖N'(x)‖² by power iteration and
    doubles for an image where f turns out to be steeper; the step is then undone.

    Arguments:
        power_steps: steps of the power iteration.

    Reference: Valkonen, Inverse Problems 30 (2014), for PDHG with nonlinear maps.
    """

    power_steps: int = 10

    def begin(self, problem: InversionProblem, state: InversionState) -> LocalCurvature:
        return LocalCurvature(curvature_at(problem, state.x, self.power_steps))

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        new = super().advance(problem, state)
        old, curvature = state.memory, state.memory.own.value
        steep = too_steep(old.smooth, old.gradient, new.x - state.x, new.memory.smooth, curvature, state.watch)
        if not bool(steep.any()):
            return new
        again = replace(state, memory=replace(old, own=LocalCurvature(2 * curvature)))
        return choose(steep, again, new)

    def move(
        self, problem: InversionProblem, state: InversionState, own: LocalCurvature, gradient: Tensor
    ) -> tuple[Tensor, Tensors, Tensors, Tensor, LocalCurvature]:
        sigma = own.value / (2 * problem.dual_norm) if problem.dual_norm else 1.0
        return (*input_step(problem, state, gradient, 1 / own.value, sigma), own)


def too_steep(f: Tensor, gradient: Tensor, moved: Tensor, after: Tensor, curvature: Tensor, watch: Watch) -> Tensor:
    """Where f(x + d) > f(x) + ⟨∇f(x), d⟩ + L/2 ‖d‖² by more than rounding explains: L is too small there."""
    flat = moved.flatten(1)
    model = f + torch.linalg.vecdot(gradient.flatten(1), flat) + 0.5 * curvature * torch.linalg.vecdot(flat, flat)
    return ~(after <= model + rounding(watch, f)) & (curvature < 1e12)


def curvature_at(problem: InversionProblem, x: Tensor, steps: int) -> Tensor:
    """An estimate of f's curvature at x: κ‖N'(x)‖² by power iteration, at least 1e-6, plus the anchor's, (B,)."""
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    size = x.new_ones(x.shape[0])
    network = Linearised.at(problem, x)
    for _ in range(steps):
        direction = direction / along(length(direction).clamp_min(1e-12), direction)
        direction = network.adjoint(network.forward(direction))
        size = length(direction)
    steepest = problem.loss.curvature()
    data = (size * (steepest if steepest < torch.inf else 1.0)).clamp_min(1e-6)
    stiffness = problem.stiffness
    return data + (stiffness.flatten(1).amax(1) if isinstance(stiffness, Tensor) else stiffness)
