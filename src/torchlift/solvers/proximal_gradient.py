"""Proximal gradient: one iteration, with momentum, scaling and step size as parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchlift.core.checks import check_instance
from torchlift.core.errors import invalid_value
from torchlift.core.problem import Problem
from torchlift.core.tensors import Point
from torchlift.solvers.base import NAN, Measure, Solver, State
from torchlift.solvers.momentum import Momentum, MomentumState, Nesterov, NoMomentum
from torchlift.solvers.scaling import AdamScaling, NoScaling, Scaling, ScalingState
from torchlift.solvers.step_size import Constant, FromBound, Proposal, StepRule, StepState, as_rule


@dataclass(frozen=True, eq=False)
class ProximalGradientState(State):
    """The point and the states of the parts."""

    momentum: MomentumState
    scaling: ScalingState
    rule: StepState

    @property
    def step_sizes(self) -> Mapping[str, float]:
        return dict(zip(self.momentum.previous.blocks, self.rule.sizes, strict=True))


@dataclass(frozen=True)
class ProximalGradient(Solver[Problem, ProximalGradientState]):
    """Minimises f + g, f smooth and g with a proximal map.

        x ← prox_{αg}(base − αP⁻¹∇f(at))

    where momentum gives `at` and `base` (both x without it), scaling gives P
    (I without it) and the rule gives α. Plain gradient descent is the case g = 0.

    Needs α ≤ 1/L for guaranteed decrease, α < 2/L for convergence (L the Lipschitz
    constant of ∇f); see the parts for theirs.

    Arguments:
        step_size: a step rule, or a number for a constant step.
        momentum: NoMomentum(), HeavyBall(β) or Nesterov().
        scaling: NoScaling(), AdamScaling(), Diagonal(p) or Matrix(P).
        blocks: move only these blocks; all by default.
        proximal: with False, refuse blocks that are not smooth.

    Reference: Parikh & Boyd, Proximal Algorithms (2014), section 4.2.
    """

    step_size: StepRule | float = field(default_factory=FromBound)
    momentum: Momentum = field(default_factory=NoMomentum)
    scaling: Scaling = field(default_factory=NoScaling)
    blocks: tuple[str, ...] | None = None
    proximal: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "step_size", as_rule(self.step_size))
        for name, kind in (("momentum", Momentum), ("scaling", Scaling)):
            check_instance(f"ProximalGradient {name}", getattr(self, name), kind)
        if self.blocks is not None:
            if isinstance(self.blocks, str) or not self.blocks:
                invalid_value("ProximalGradient blocks", "a non-empty tuple of names", repr(self.blocks))
            object.__setattr__(self, "blocks", tuple(self.blocks))

    def check(self, problem: Problem, point: Point) -> None:
        check_problem("ProximalGradient", problem, point)
        active = self._active(problem)
        for name in active:
            if name not in problem.blocks:
                invalid_value("ProximalGradient blocks", f"some of {list(problem.blocks)}", repr(name))
            if not self.proximal and not problem.smooth(name):
                hint = "Use ProximalGradient or FISTA, which take the prox of the nonsmooth part."
                invalid_value(f"GradientDescent on block {name!r}", "a smooth block", "a nonsmooth one", hint)
            check_proximable("ProximalGradient", problem, name)
        self.scaling.check(problem, active, point)
        self._rule.check(problem, active, point, self.scaling)

    def init(self, problem: Problem, point: Point) -> ProximalGradientState:
        active = self._active(problem)
        moving = point.select(active)
        return ProximalGradientState(
            0,
            point,
            NAN,
            self.momentum.init(moving),
            self.scaling.init(moving),
            self._rule.init(problem, active, point),
        )

    def step(self, problem: Problem, state: ProximalGradientState) -> ProximalGradientState:
        old = state.point.select(self._active(problem))
        at, base = self.momentum.points(state.momentum, old)
        whole = state.point.merge(at)
        gradient = problem.gradient(whole, at.blocks)
        direction, scaling = self.scaling.direction(state.scaling, gradient)
        proposal = Proposal(problem, whole, base, gradient, direction, self.scaling, scaling)
        new, rule = self._rule.take(proposal, state.rule, state.count)
        return ProximalGradientState(
            state.count + 1,
            state.point.merge(new),
            proposal.residual(new, rule.sizes),
            self.momentum.update(state.momentum, old, at, new),
            scaling,
            rule,
        )

    def measure(self, problem: Problem, state: ProximalGradientState) -> Measure:
        parts = dict(problem.parts(state.point))
        restarts = {"restarts": float(state.momentum.restarts)} if isinstance(self.momentum, Nesterov) else {}
        return Measure(sum(parts.values()), extra=parts | restarts)

    @property
    def _rule(self) -> StepRule:
        return as_rule(self.step_size)

    def _active(self, problem: Problem) -> Sequence[str]:
        return problem.blocks if self.blocks is None else self.blocks


def check_problem(where: str, problem: Any, point: Point) -> None:
    """A `Problem` and a point with its blocks."""
    hint = "A SaddleProblem is for PDHG and ADMM." if hasattr(problem, "terms") else "Try CompositeProblem(...)."
    check_instance(where, problem, Problem, hint=hint)
    if point.blocks != problem.blocks:
        invalid_value(f"{where} start", f"the blocks {list(problem.blocks)}", list(point))


def check_proximable(where: str, problem: Problem, block: str) -> None:
    """Refuse a block whose nonsmooth part has no proximal map."""
    if not problem.proximable(block):
        hint = "Use PDHG or ADMM if it is a prox after a linear map, or a smoothed version."
        invalid_value(f"{where} on block {block!r}", "a proximal map", "none", hint)


def GradientDescent(step: StepRule | float | None = None, momentum: Momentum | None = None) -> ProximalGradient:
    """x ← x − α∇f(x), for smooth problems; refuses others. The step is 1/L by default."""
    return ProximalGradient(
        FromBound() if step is None else step, NoMomentum() if momentum is None else momentum, proximal=False
    )


def FISTA(step: StepRule | float | None = None, *, restart: bool = True) -> ProximalGradient:
    """Accelerated proximal gradient with adaptive restart. The step is 1/L by default."""
    return ProximalGradient(FromBound() if step is None else step, Nesterov(restart=restart))


def ProximalAdam(
    lr: StepRule | float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    *,
    matched: bool = False,
    prox_scale: float = 1.0,
) -> ProximalGradient:
    """Adam with a proximal step, as in the paper; see `AdamScaling` for `matched` and `prox_scale`."""
    rule = Constant(lr) if isinstance(lr, float | int) else lr
    return ProximalGradient(rule, scaling=AdamScaling(*betas, eps, matched, prox_scale))
