"""Baselines without lifting: minimise through the composed network."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.core.tensors import Point, add_scaled
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.solver import InversionSolver, constrained, input_step
from torchlift.inversion.state import InversionState
from torchlift.priors.functions import along
from torchlift.solvers import AdamScaling
from torchlift.solvers.scaling import ScalingState


@dataclass(frozen=True, kw_only=True)
class Nested(InversionSolver):
    """For each image, minimise ½‖N(x) − y‖² + ρR(x) + λ/2 ‖x − x₀‖² by back-propagation. Not convex."""

    @abstractmethod
    def move(self, problem: InversionProblem, state: InversionState, gradient: Tensor) -> InversionState:
        """x, the duals, the products and the memory after a step, from the gradient of the smooth part."""

    def value(self, problem: InversionProblem, state: InversionState) -> Tensor:
        gap = self._output(problem, state) - problem.output
        return 0.5 * gap.flatten(1).square().sum(1) + problem.prior_value(state.x, state.products)

    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        gradient = data_gradient(problem, state.x)
        if problem.anchor:
            gradient = gradient + problem.anchor * (state.x - problem.guess)
        new = self.move(problem, state, gradient)
        z, u, v = problem.layers.states(new.x, problem.context)
        point = Point({"x": new.x, "z": z, "dual": new.duals})
        return replace(new, point=point, u=u, v=v)

    def _output(self, problem: InversionProblem, state: InversionState) -> Tensor:
        """N(x), from the pre-activations of the state."""
        last = problem.layers.activations[-1](state.v[-1])
        return problem.layers.output_of(last)


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

    def remember(self, problem: InversionProblem, state: InversionState) -> ScalingState:
        return self.scaling.init(state.point.select(["x"]))

    def move(self, problem: InversionProblem, state: InversionState, gradient: Tensor) -> InversionState:
        gradient = gradient + self._envelope(problem, state)
        direction, memory = self.scaling.direction(state.memory, Point({"x": gradient}))
        (x,) = add_scaled(state.point.select(["x"]), direction, {"x": -self.step_size})["x"]
        x = problem.split.prox(x, 0.0) if constrained(problem) else x
        point = Point({"x": x, "z": state.z, "dual": state.duals})
        return replace(state, point=point, products=problem.split.products(x), memory=memory)

    def _envelope(self, problem: InversionProblem, state: InversionState) -> Tensor:
        """ρ Σ A_iᵀ(w − prox_{εg_i}(w))/ε at w = A_i x, with h where it is no constraint."""
        split = problem.split
        pairs = list(zip(split.terms, state.products, strict=True))
        if split.proximal is not None and not constrained(problem):
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

    def remember(self, problem: InversionProblem, state: InversionState) -> LocalCurvature:
        return LocalCurvature(_jacobian_square(problem, state.x, self.power_steps) + problem.anchor)

    def move(self, problem: InversionProblem, state: InversionState, gradient: Tensor) -> InversionState:
        curvature = state.memory.value
        sigma = curvature / (2 * problem.dual_norm) if problem.dual_norm else 1.0
        args = (problem, state.x, state.duals, state.products, gradient)
        x, duals, products = input_step(*args, 1 / curvature, sigma)
        return replace(state, point=Point({"x": x, "z": state.z, "dual": duals}), products=products)

    def refused(self, state: InversionState, worse: Tensor) -> Tensor:
        return worse & (state.memory.value < 1e6)

    def forget(self, state: InversionState) -> InversionState:
        return replace(state, memory=LocalCurvature(2 * state.memory.value))


def data_gradient(problem: InversionProblem, x: Tensor) -> Tensor:
    """∇½‖N(x) − y‖² by back-propagation."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        gap = problem.forward(leaf) - problem.output
        (gradient,) = torch.autograd.grad(0.5 * gap.square().sum(), leaf)
    return gradient


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
