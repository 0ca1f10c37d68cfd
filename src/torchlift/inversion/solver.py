"""What all inversion algorithms share: what is known of every image, certificates, and what becomes of failures."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from torchlift.core.checks import check_number, check_positive, check_size
from torchlift.core.errors import invalid_type
from torchlift.core.tensors import Point
from torchlift.core.trees import map_leaves
from torchlift.functions.base import along
from torchlift.inversion.layers import Tensors
from torchlift.inversion.problem import InversionProblem, as_rows, square_sum
from torchlift.solvers import Measure, Solver
from torchlift.solvers.base import NAN

T = TypeVar("T")

#: An objective this many times its start (plus one) counts as diverged.
DIVERGENCE = 1e4

#: Objectives below this share of the size of the data count as 0: no tolerance asks for more.
NEGLIGIBLE = 1e-3

#: ε of the Moreau envelopes whose gradients the duals start with, and which stand in for priors without gradients.
SMOOTHING = 1e-3

#: A decrease of the bound on what is left by this share is progress, too.
BOUND_PROGRESS = 0.03


class Status(IntEnum):
    """Where one image stands."""

    RUNNING = 0
    CONVERGED = 1
    STALLED = 2
    DIVERGED = 3
    MAX_STEPS = 4
    TIME_LIMIT = 5
    STOPPED = 6

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = {
    Status.RUNNING: "still running",
    Status.CONVERGED: "the residuals of the optimality conditions reached the tolerance",
    Status.STALLED: "no visible progress any more; the best iterate is returned, not proved optimal to the tolerance",
    Status.DIVERGED: "the objective grew without bound; the best iterate is returned",
    Status.MAX_STEPS: "the number of steps ran out before the tolerance was reached",
    Status.TIME_LIMIT: "the time ran out before the tolerance was reached",
    Status.STOPPED: "stopped on request",
}


@dataclass(frozen=True, eq=False)
class Watch:
    """What is known about every image: (B,) each, `best_x` (B, *in_shape).

    Arguments:
        value: the objective.
        start: the objective at the start.
        best: the least objective so far.
        best_x: the input that had it.
        relative: the bound on what can still be gained, relative to the objective; infinite before the first step.
        mark, least_bound: objective and bound when the image last made progress.
        since: steps since then.
        size: ‖·‖² of the data and variables at the start, which says how far rounding goes.
        status: a `Status`.
        monotone: whether the objective never increased.
        steps: steps made until the image was finished.
    """

    value: Tensor
    start: Tensor
    best: Tensor
    best_x: Tensor
    relative: Tensor
    mark: Tensor
    least_bound: Tensor
    since: Tensor
    size: Tensor
    status: Tensor
    monotone: Tensor
    steps: Tensor

    @classmethod
    def begin(cls, like: Tensor, x: Tensor, size: Tensor) -> Watch:
        """Before the first step; the objective is filled in once it is known."""
        zero, whole = torch.zeros_like(like), torch.zeros_like(like, dtype=torch.int64)
        infinite = torch.full_like(like, torch.inf)
        running, true = torch.full_like(whole, Status.RUNNING), torch.ones_like(whole, dtype=torch.bool)
        return cls(
            *(zero, zero, zero, x),
            *(infinite, torch.full_like(like, 1e30), infinite),
            whole,
            size,
            running,
            true,
            whole,
        )

    @property
    def running(self) -> Tensor:
        return self.status == Status.RUNNING


@dataclass(frozen=True, eq=False)
class InversionState:
    """The variables and what follows from them; every tensor has the images along its first axis.

    Arguments:
        count: steps made.
        x, z, duals: the variables.
        residual: the largest bound of an image that is not finished, relative to its objective; 0 once all are.
        u, v: states u_0 … u_{n−1} and pre-activations v_1 … v_n.
        products: A_i x of the prior.
        memory: what the algorithm remembers, a dataclass of tensors.
        bound: on what can still be gained, see `InversionSolver`: (B,).
        watch: how every image fares.
    """

    count: int
    x: Tensor
    z: Tensors
    duals: Tensors
    residual: float
    u: Tensors
    v: Tensors
    products: Tensors
    memory: Any
    bound: Tensor
    watch: Watch

    @property
    def point(self) -> Point:
        """The variables by name."""
        return Point({"x": self.x, "z": self.z, "dual": self.duals})

    @property
    def step_sizes(self) -> dict[str, float]:
        return {}


def choose(mask: Tensor, yes: T, no: T) -> T:
    """The images of `yes` where the mask (B,) is true, else those of `no`; numbers come from `yes`."""
    index = mask.nonzero()[:, 0]  # copying some rows takes a third of the time of comparing all
    return map_leaves(lambda _, a, b: a if a is b else b.index_copy(0, index, a[index]), yes, no)


def put_back(mask: Tensor, old: Sequence[Tensor], new: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of `new` with the images of `old` where the mask (B,) is true."""
    index = mask.nonzero()[:, 0]
    return [b.index_copy(0, index, a[index]) for a, b in zip(old, new, strict=True)]


def _kept(mask: Tensor, old: InversionState, new: InversionState) -> InversionState:
    """`new` with the variables of some images as they were; memories of images that are finished do not matter."""
    x, bound = put_back(mask, [old.x, old.bound], [new.x, new.bound])
    names = ("z", "duals", "u", "v", "products")
    tensors = {name: tuple(put_back(mask, getattr(old, name), getattr(new, name))) for name in names}
    return replace(new, x=x, bound=bound, **tensors)


def select(state: T, index: Tensor) -> T:
    """Some images only."""
    return map_leaves(lambda _, tensor: tensor[index], state)


@dataclass(frozen=True, kw_only=True)
class InversionSolver(Solver[InversionProblem, Any]):
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
        check_number(f"{name} tolerance", self.tolerance, minimum=0)
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
        state = InversionState(0, x, z, duals, NAN, u, v, products, None, bound, watch)
        state = replace(state, memory=self.remember(problem, state))
        value = self.value(problem, state)
        if not problem.lifted:  # squares of residuals are rounded less than those of what they are differences of
            size = (size * problem.visible_size(value)).sqrt()
        return replace(state, watch=replace(watch, value=value, start=value, best=value, size=size))

    def step(self, problem: InversionProblem, state: InversionState) -> InversionState:
        new = self.advance(problem, state)
        old, value = state.watch, self.value(problem, new)
        running = old.running
        diverged = running & ~(value <= DIVERGENCE * (1 + old.start.abs()))
        slack = rounding(old, value, problem.lifted)
        worse = running & ~diverged & (value > old.value + slack)
        if bool(worse.any()) and bool((back := self.refused(state, worse)).any()):
            new = choose(back, replace(self.forget(state), count=new.count), new)
            value = torch.where(back, old.value, value)
            worse = worse & ~back
        if bool((stay := diverged | ~running).any()):
            new = _kept(stay, state, new)
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
        size = problem.data_size if problem.lifted else problem.visible_size(old.start)
        relative = new.bound / (value.abs() + NEGLIGIBLE * (size + old.start.abs())).clamp_min(1e-30)
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


@dataclass(frozen=True, kw_only=True)
class Nested(InversionSolver):
    """For each image, minimise L(N(x); y) + ρR(x) + λ/2 ‖x − x₀‖². Not convex."""

    lifted: ClassVar[bool] = False

    def value(self, problem: InversionProblem, state: InversionState) -> Tensor:
        return state.memory.smooth + problem.weight * problem.free_split.value(state.x, state.products)

    def pull(self, state: InversionState) -> Tensor:
        """The length of the gradient of the smooth part: (B,)."""
        return length(state.memory.gradient)

    def step(self, problem: InversionProblem, state: InversionState) -> InversionState:
        """One step; an image whose outputs differ from y while nothing pulls at x has stalled, not converged."""
        new = super().step(problem, state)
        ended = (new.watch.status == Status.CONVERGED) & state.watch.running
        if not bool(ended.any()):
            return new
        silent = ended & (self.pull(new) == 0)
        if not bool(silent.any()):
            return new
        # flat activations on all ways from x
        apart = problem.smooth_value(new.x) > 0
        status = new.watch.status.masked_fill(silent & apart, Status.STALLED)
        return replace(new, watch=replace(new.watch, status=status))


def rounding(watch: Watch, value: Tensor, lifted: bool = False) -> Tensor:
    """A difference of objectives that rounding explains: they are sums of products of entries of x, z, v and y.

    Those of the network itself are half the squares of residuals, which are small where the objective is.
    """
    size = watch.size
    if not lifted:
        size = size * (value.abs() / watch.start.abs().clamp_min(1e-30)).clamp_max(1.0).sqrt()
    return torch.finfo(value.dtype).eps * (32 * value.abs() + size)


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
    return torch.linalg.vector_norm(as_rows(tensor), dim=1)
