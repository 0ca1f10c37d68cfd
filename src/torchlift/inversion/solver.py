"""What all inversion algorithms share: start, books, and what happens to an image that goes wrong."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from torchlift.core.checks import check_number, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.tensors import Point
from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.problem import InversionProblem, square_sum
from torchlift.inversion.state import InversionState, Status, Watch, choose
from torchlift.solvers import Measure, Solver
from torchlift.solvers.base import NAN

#: An objective this many times its start (plus one) counts as diverged.
DIVERGENCE = 1e4


@dataclass(frozen=True, kw_only=True)
class InversionSolver(Solver[InversionProblem, InversionState]):
    """An iteration on all images of a batch at once, each with its own books.

    A finished image stays as it is. One whose objective grows without bound is
    finished too. The books keep the best input of each.

    Arguments:
        tolerance: an image has converged when its x and z change by less than this, relatively; 0 for never.
        patience: an image has stalled when its objective has not reached a new least value for so many steps.
    """

    tolerance: float = 1e-4
    patience: int = 50

    def __post_init__(self) -> None:
        name = type(self).__name__
        if check_number(f"{name} tolerance", self.tolerance) < 0:
            invalid_value(f"{name} tolerance", "a number >= 0", self.tolerance)
        check_size(f"{name} patience", self.patience)

    @abstractmethod
    def remember(self, problem: InversionProblem, state: InversionState) -> Any:
        """The algorithm's memory before the first step."""

    @abstractmethod
    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        """One step of every image, without the books."""

    def value(self, problem: InversionProblem, state: InversionState) -> Tensor:
        """What the algorithm minimises, one per image: (B,)."""
        return problem.value(state.x, state.z, state.v, state.products)

    def refused(self, state: InversionState, worse: Tensor) -> Tensor:
        """Which of the images that a step made worse go back to `state`; none by default."""
        return torch.zeros_like(worse)

    def forget(self, state: InversionState) -> InversionState:
        """The state from which a refused step is tried again, differently."""
        return state

    def check(self, problem: InversionProblem, point: Point) -> None:
        if not isinstance(problem, InversionProblem):
            invalid_type(type(self).__name__, "an InversionProblem", problem, "Call torchlift.invert(network, y).")

    def init(self, problem: InversionProblem, point: Point) -> InversionState:
        (x,) = point["x"]
        x = problem.split.prox(x, 0.0) if problem.constrained else x
        z, u, v = problem.layers.states(x, problem.context)
        products = problem.split.products(x)
        duals = tuple(torch.zeros_like(product) for product in products)
        unopened = cast("Watch", None)  # the books begin with the value of this very state
        state = InversionState(0, Point({"x": x, "z": z, "dual": duals}), NAN, u, v, products, None, unopened)
        state = replace(state, memory=self.remember(problem, state))
        return replace(state, watch=Watch.begin(self.value(problem, state), x))

    def step(self, problem: InversionProblem, state: InversionState) -> InversionState:
        new = self.advance(problem, state)
        old, value = state.watch, self.value(problem, new)
        running = old.running
        diverged = running & ~(value <= DIVERGENCE * (1 + old.start.abs()))
        change, size = _change(state, new)
        slack = _slack(value, size)
        worse = running & ~diverged & (value > old.value + slack)
        if bool(worse.any()) and bool((back := self.refused(state, worse)).any()):
            new = choose(back, replace(self.forget(state), count=new.count), new)
            value, change = torch.where(back, old.value, value), change.masked_fill(back, torch.inf)
            worse = worse & ~back
        if bool((stay := diverged | ~running).any()):
            new = choose(stay, replace(state, count=new.count), new)
            value, change = torch.where(stay, old.value, value), torch.where(stay, old.change, change)
        watch = self._book(old, new, value, change, slack, diverged, worse)
        residual = float(torch.where(watch.running, change, 0.0).max())
        return replace(new, count=state.count + 1, residual=residual, watch=watch)

    def measure(self, problem: InversionProblem, state: InversionState) -> Measure:
        watch = state.watch
        return Measure(float(watch.value.mean()), extra={"running": float(watch.running.sum())})

    def _book(
        self,
        old: Watch,
        new: InversionState,
        value: Tensor,
        change: Tensor,
        slack: Tensor,
        diverged: Tensor,
        worse: Tensor,
    ) -> Watch:
        running = old.running
        improved = running & (value < old.best - slack)
        since = torch.where(improved, 0, old.since + 1)
        status = old.status.masked_fill(running & (since >= self.patience), Status.STALLED)
        status = status.masked_fill(running & (change < self.tolerance), Status.CONVERGED)
        return Watch(
            value=value,
            start=old.start,
            best=torch.where(improved, value, old.best),
            since=since,
            best_x=choose(improved, new.x, old.best_x),
            change=change,
            status=status.masked_fill(diverged, Status.DIVERGED),
            monotone=old.monotone & ~worse & ~diverged,
            steps=old.steps + running,
        )


def input_step(
    problem: InversionProblem,
    x: Tensor,
    duals: Tensors,
    products: Tensors,
    gradient: Tensor,
    tau: float | Tensor,
    sigma: float | Tensor,
) -> tuple[Tensor, Tensors, Tensors]:
    """One step of Condat and Vũ on the input: x⁺, p⁺ and A x⁺.

        x⁺ = prox_{τρh}(x − τ(∇f(x) + Aᵀp)),   p⁺ = prox_{σ(ρg)*}(p + σA(2x⁺ − x))

    It converges for 1/τ − σ‖A‖² ≥ L/2 with L the Lipschitz constant of ∇f.

    Arguments:
        products: A x.
        gradient: ∇f(x).
        tau, sigma: τ, σ; numbers, or one per image (B,).
    """
    split, weight = problem.split, problem.weight
    pull = gradient + split.back(duals, x) if duals else gradient
    new = split.prox(x - along(tau, x) * pull, tau * weight)
    after = split.products(new)
    new_duals = []
    for term, p, ax, before in zip(split.terms, duals, after, products, strict=True):
        new_duals.append(term.dual_prox(p + along(sigma, p) * (2 * ax - before), sigma, weight))
    return new, tuple(new_duals), after


def input_steps(problem: InversionProblem, scale: float) -> tuple[float, float]:
    """τ = scale/L and the largest σ that Condat and Vũ allow with it, (1/τ − L/2)/‖A‖²; L = 0 leaves τ free."""
    curvature = problem.input_curvature() or 1.0
    tau = scale / curvature
    return tau, (1 / tau - curvature / 2) / problem.dual_norm if problem.dual_norm else 1.0


def auxiliary_step(problem: InversionProblem, j: int, z: Tensor, v: Tensor, gradient: Tensor, tau: float) -> Tensor:
    """The proximal step of z_j: argmin_z ⟨g, z⟩ + ‖z − z_j‖²/2τ + μ_j(Φ_j(z) − ⟨z, v_j⟩)

    = prox_{κΨ_j}((z_j − τ(g − μ_j v_j))/(1 + τμ_j)),   κ = τμ_j/(1 + τμ_j).
    """
    weight = tau * problem.mu[j - 1]
    moved = torch.add(z, gradient, alpha=-tau).add_(v, alpha=weight).div_(1 + weight)
    return problem.layers.activations[j - 1].prox(moved, weight / (1 + weight))


def _change(old: InversionState, new: InversionState) -> tuple[Tensor, Tensor]:
    """‖(x, z) − (x, z)_old‖ / ‖(x, z)‖ and ‖(x, z)‖²: (B,) each."""
    moved, size = torch.zeros_like(old.watch.value), torch.zeros_like(old.watch.value)
    for a, b in zip((new.x, *new.z), (old.x, *old.z), strict=True):
        moved, size = moved + square_sum(a - b), size + square_sum(a)
    return (moved / size.clamp_min(torch.finfo(size.dtype).tiny)).sqrt(), size


def _slack(value: Tensor, size: Tensor) -> Tensor:
    """A difference of objectives that rounding explains: they are sums of products of entries of z and v."""
    return torch.finfo(value.dtype).eps * (32 * value.abs() + size)
