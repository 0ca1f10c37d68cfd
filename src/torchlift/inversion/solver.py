"""What all inversion algorithms share: start, certificates, and what happens to an image that goes wrong."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import check_number, check_positive, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.tensors import Point
from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.problem import InversionProblem, square_sum
from torchlift.inversion.state import InversionState, Status, Watch, choose
from torchlift.solvers import Measure, Solver
from torchlift.solvers.base import NAN
from torchlift.solvers.momentum import next_momentum

#: An objective this many times its start (plus one) counts as diverged.
DIVERGENCE = 1e4

#: Objectives below this share of the size of the data count as 0: no tolerance asks for more.
NEGLIGIBLE = 1e-3

#: ε of the Moreau envelopes whose gradients the duals start with, and which stand in for priors without gradients.
SMOOTHING = 1e-3

#: A decrease of the bound on what is left by this share is progress, too.
BOUND_PROGRESS = 0.03


@dataclass(frozen=True, kw_only=True)
class InversionSolver(Solver[InversionProblem, InversionState]):
    """An iteration on all images of a batch at once, each judged alone.

    Every step bounds what an image can still gain, to first order, from the
    residuals of the optimality conditions:

        bound = Σ_blocks ‖residual‖·‖block‖ + Σ_i [ρg_i(A_i x) + (ρg_i)*(p_i) − ⟨A_i x, p_i⟩]

    For convex problems the objective minus its minimum is at most the bound if no
    block is further from the solution than it is long. An image has converged when
    the bound is at most tolerance·(objective + 10⁻³·data), where data is
    ½‖y‖² plus the objective of the start. A finished image stays as it is. One
    whose objective grows without bound is finished too.

    Arguments:
        tolerance: relative, see above; 0 for never.
        patience: an image has stalled when neither its objective nor its bound improved for so many steps.
        visible: share by which an objective must decrease to have improved.
    """

    #: Whether the activations z are variables of their own.
    lifted: ClassVar[bool] = True
    #: Whether the objective of every image decreases, so that it alone says what progress is.
    monotonic: ClassVar[bool] = False

    tolerance: float = 1e-3
    patience: int = 100
    visible: float = 1e-5

    def __post_init__(self) -> None:
        name = type(self).__name__
        if check_number(f"{name} tolerance", self.tolerance) < 0:
            invalid_value(f"{name} tolerance", "a number >= 0", self.tolerance)
        check_size(f"{name} patience", self.patience)
        check_positive(f"{name} visible", self.visible)

    @abstractmethod
    def remember(self, problem: InversionProblem, state: InversionState) -> Any:
        """The algorithm's memory before the first step."""

    @abstractmethod
    def advance(self, problem: InversionProblem, state: InversionState) -> InversionState:
        """One step of every image with its new bound; `step` judges it."""

    @abstractmethod
    def value(self, problem: InversionProblem, state: InversionState) -> Tensor:
        """What the algorithm minimises, one per image: (B,)."""

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
        z, u, v = problem.chain.states(x, problem.context) if self.lifted else ((), (), ())
        products = problem.split.products(x)
        duals = envelope_duals(problem, products, SMOOTHING)
        bound = torch.full_like(problem.weight, torch.inf)
        size = problem.data_size + sum(square_sum(tensor) for tensor in (x, *z))
        watch = Watch.begin(problem.weight, x, size)
        state = InversionState(0, Point({"x": x, "z": z, "dual": duals}), NAN, u, v, products, None, bound, watch)
        state = replace(state, memory=self.remember(problem, state))
        value = self.value(problem, state)
        return replace(state, watch=replace(watch, value=value, start=value, best=value))

    def step(self, problem: InversionProblem, state: InversionState) -> InversionState:
        new = self.advance(problem, state)
        old, value = state.watch, self.value(problem, new)
        running = old.running
        diverged = running & ~(value <= DIVERGENCE * (1 + old.start.abs()))
        slack = rounding(old, value)
        worse = running & ~diverged & (value > old.value + slack)
        if bool(worse.any()) and bool((back := self.refused(state, worse)).any()):
            new = choose(back, replace(self.forget(state), count=new.count), new)
            value = torch.where(back, old.value, value)
            worse = worse & ~back
        if bool((stay := diverged | ~running).any()):
            new = choose(stay, replace(state, count=new.count), new)
            value = torch.where(stay, old.value, value)
        watch = self._judge(problem, old, new, value, slack, diverged, worse)
        left = torch.where(watch.running, watch.relative, 0.0)
        return replace(new, count=state.count + 1, residual=float(left.max()), watch=watch)

    def measure(self, problem: InversionProblem, state: InversionState) -> Measure:
        watch = state.watch
        return Measure(float(watch.value.mean()), extra={"running": float(watch.running.sum())})

    def _judge(
        self,
        problem: InversionProblem,
        old: Watch,
        new: InversionState,
        value: Tensor,
        slack: Tensor,
        diverged: Tensor,
        worse: Tensor,
    ) -> Watch:
        running = old.running
        relative = new.bound / (value.abs() + NEGLIGIBLE * (problem.data_size + old.start.abs())).clamp_min(1e-30)
        # a decreasing objective was never lower than now
        lower = None if self.monotonic and not problem.blind else running & (value < old.best)
        progress = value < old.mark - slack - self.visible * old.mark.abs()
        if not self.monotonic or problem.blind:
            progress = progress | (new.bound < (1 - BOUND_PROGRESS) * old.least_bound)
        since = torch.where(progress, 0, old.since + 1)
        status = old.status.masked_fill(running & (since >= self.patience), Status.STALLED)
        if self.tolerance > 0:
            status = status.masked_fill(running & (relative <= self.tolerance), Status.CONVERGED)
        return replace(
            old,
            value=value,
            best=value if lower is None else torch.where(lower, value, old.best),
            mark=torch.where(progress, torch.minimum(value, old.mark), old.mark),
            least_bound=torch.where(progress, torch.minimum(new.bound, old.least_bound), old.least_bound),
            since=since,
            best_x=new.x if lower is None else choose(lower, new.x, old.best_x),
            relative=torch.where(running, relative, old.relative),
            status=status.masked_fill(diverged, Status.DIVERGED),
            monotone=old.monotone & ~worse & ~diverged,
            steps=old.steps + running,
        )


def rounding(watch: Watch, value: Tensor) -> Tensor:
    """A difference of objectives that rounding explains: they are sums of products of entries of x, z, v and y."""
    return torch.finfo(value.dtype).eps * (32 * value.abs() + watch.size)


def envelope_duals(problem: InversionProblem, products: Tensors, smoothing: float) -> Tensors:
    """ρ(w − prox_{εg_i}(w))/ε at w = A_i x: gradients of Moreau envelopes, and subgradients of ρg_i close by."""
    pairs = zip(problem.split.terms, products, strict=True)
    gaps = (w - term.prox(w, smoothing) for term, w in pairs)
    return tuple(along(problem.weight / smoothing, gap) * gap for gap in gaps)


def block_bound(residual: Tensor, block: Tensor, origin: Tensor | None = None) -> Tensor:
    """‖residual‖ times the length of a block, or its distance from where it began if that is larger: (B,)."""
    size = length(block)
    if origin is not None:
        size = torch.maximum(size, length(block - origin))
    return length(residual) * size


def length(tensor: Tensor) -> Tensor:
    """‖·‖ of every image: (B,)."""
    return torch.linalg.vector_norm(tensor.flatten(1), dim=1)


def prior_step(
    problem: InversionProblem, b: Tensor, tau: float | Tensor, duals: Tensors, inner: int
) -> tuple[Tensor, Tensors, Tensors]:
    """argmin_x ½‖x − b‖² + τρR(x) by `inner` accelerated dual steps from known duals: x, p and A x.

        x(p) = prox_{τρh}(b − τAᵀp),   p ← prox_{σ(ρg)*}(q + σA x(q)),   σ = 1/(τ‖A‖²)

    x = x(p) for the p that is returned. Duals of one proximal step serve the next,
    so that few of them are enough; without terms g∘A the map is exact.

    Arguments:
        tau: τ, a number or one per image (B,).

    Reference: Beck & Teboulle, IEEE Transactions on Image Processing 18 (2009).
    """
    split, weight = problem.split, problem.weight
    if not duals:
        return split.prox(b, tau * weight), (), ()
    steps = along(tau, b)
    sigma = 1 / (tau * problem.dual_norm)
    p = q = duals
    t = 1.0
    for k in range(inner):
        x = split.prox(b - steps * split.back(q, b), tau * weight)
        triples = zip(split.terms, q, split.products(x), strict=True)
        new = tuple(term.dual_prox(a + along(sigma, a) * ax, sigma, weight) for term, a, ax in triples)
        t, before = next_momentum(t), t
        if k < inner - 1:
            q = tuple(torch.lerp(old, a, 1 + (before - 1) / t) for a, old in zip(new, p, strict=True))
        p = new
    x = split.prox(b - steps * split.back(p, b), tau * weight)
    return x, p, split.products(x)


def input_step(
    problem: InversionProblem,
    state: InversionState,
    gradient: Tensor,
    tau: float | Tensor,
    sigma: float | Tensor,
) -> tuple[Tensor, Tensors, Tensors, Tensor]:
    """One step of Condat and Vũ on the input: x⁺, p⁺, A x⁺ and the bound of `InversionSolver` for x.

        x⁺ = prox_{τρh}(x − τ(∇f(x) + Aᵀp)),   p⁺ = prox_{σ(ρg)*}(p + σA(2x⁺ − x))

    It converges for 1/τ − σ‖A‖² ≥ L/2 with L the Lipschitz constant of ∇f.

    Arguments:
        gradient: ∇f(x).
        tau, sigma: τ, σ; numbers, or one per image (B,).
    """
    split, weight, x, duals = problem.split, problem.weight, state.x, state.duals
    gradient = gradient + split.back(duals, x) if duals else gradient
    new = split.prox(x - along(tau, x) * gradient, tau * weight)
    after = split.products(new)
    new_duals = []
    for term, p, ax, before in zip(split.terms, duals, after, state.products, strict=True):
        new_duals.append(term.dual_prox(p + along(sigma, p) * (2 * ax - before), sigma, weight))
    residual = (2 / along(tau, x)) * (x - new)
    if duals:
        residual = residual.abs() + split.back(tuple(a - b for a, b in zip(new_duals, duals, strict=True)), x).abs()
    bound = block_bound(residual, new, problem.guess) + problem.dual_gap(after, tuple(new_duals))
    return new, tuple(new_duals), after, bound


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
