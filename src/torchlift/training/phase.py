"""One stretch of training: which lifting, which solver, how long."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data import Batches
from torchlift.liftings import Bregman, Lifting
from torchlift.losses import Loss
from torchlift.networks import Network
from torchlift.objective import Objective, SweepDescent, TrainingBatches, TrainingProblem
from torchlift.objective.problem import Split
from torchlift.solvers import (
    Backtracking,
    BlockCoordinateDescent,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalGradient,
    Solver,
)
from torchlift.training.methods import Budget, Method, SolverMethod, TorchMethod, TorchOptimiser

#: Steps that a run takes at least when nothing is said about its length.
LEAST_STEPS = 1000
#: Epochs that a run takes at least when nothing is said about its length.
LEAST_EPOCHS = 10
#: Samples per batch when nothing is said about it.
BATCH = 100

STATES = ("forward", "input", "random", "warm")


@dataclass(frozen=True)
class Phase:
    """A stretch of training. What is None is chosen: see `train`.

    Arguments:
        lifting: what it costs when z ≠ σ(W u + b).
        solver: a solver, or a torch optimiser (a class, a partial, a `TorchOptimiser`) for `Conventional()`.
        batch_size: samples per step, or "full".
        epochs, steps: how long; at most one of them.
        time_limit: seconds after which the phase ends in any case.
        weights: how the weights start: None keeps them, but wakes layers that sleep; "keep" leaves them alone;
            otherwise a way of `initialise_weights`.
        states: where lifted variables start: "forward", "input" or "random"; "warm" keeps those of
            the epoch before and begins with a forward pass.
        name: in records and progress bars.
    """

    lifting: Lifting | None = None
    solver: Solver[Any, Any] | TorchOptimiser | Callable[..., torch.optim.Optimizer] | None = None
    batch_size: int | Literal["full"] | None = None
    epochs: int | None = None
    steps: int | None = None
    time_limit: float | None = None
    weights: str | None = None
    states: str = "forward"
    name: str | None = None

    def __post_init__(self) -> None:
        if self.lifting is not None and not isinstance(self.lifting, Lifting):
            invalid_type("train lifting", "a lifting such as Bregman()", self.lifting)
        if (
            self.solver is not None
            and not isinstance(self.solver, Solver | TorchOptimiser)
            and not callable(self.solver)
        ):
            invalid_type("train solver", "a solver, or a torch optimiser", self.solver, "Try SweepDescent().")
        if isinstance(self.batch_size, str):
            if self.batch_size != "full":
                invalid_value("train batch_size", "a whole number or 'full'", repr(self.batch_size))
        elif self.batch_size is not None:
            check_size("train batch_size", self.batch_size)
        if self.epochs is not None and self.steps is not None:
            invalid_value("train", "epochs or steps", "both", "Leave one of them out.")
        for name in ("epochs", "steps"):
            if getattr(self, name) is not None:
                check_size(f"train {name}", getattr(self, name))
        if self.time_limit is not None:
            check_positive("train time_limit", self.time_limit)
        if self.states not in STATES:
            invalid_value("train states", f"one of {', '.join(STATES)}", repr(self.states))

    @property
    def title(self) -> str:
        """The name, or the lifting and the solver."""
        if self.name is not None:
            return self.name
        lifting = "lifted" if self.lifting is None else type(self.lifting).__name__
        return lifting if self.solver is None else f"{lifting}, {solver_name(self.solver)}"

    @property
    def full(self) -> bool:
        return self.batch_size == "full"

    def total_steps(self, per_epoch: int) -> int | None:
        """None where only time ends the phase."""
        if self.steps is not None:
            return self.steps
        if self.epochs is not None:
            return self.epochs * per_epoch
        if self.time_limit is not None:
            return None
        return max(LEAST_EPOCHS * per_epoch, math.ceil(LEAST_STEPS / per_epoch) * per_epoch)

    def objective(self, network: Network, loss: Loss, state_dtype: torch.dtype | None = None) -> Objective:
        lifting = Bregman() if self.lifting is None else self.lifting
        return Objective(network, lifting, loss, state_dtype=state_dtype)

    def method(self, objective: Objective, batches: Batches, budget: Budget, seed: int) -> Method:
        """The solver, put to work on the data."""
        solver = self.resolved_solver(objective)
        if isinstance(solver, TorchOptimiser):
            return TorchMethod(solver, objective, batches, budget)
        split: Split = "odd-even" if _exact(solver) else "whole"
        if self.full and not isinstance(solver, SweepDescent | ImplicitStochasticGradient):
            y, x, context = batches.batch(0)
            problem = TrainingProblem(objective, y, x, split=split, context=context)
            generator = torch.Generator().manual_seed(seed)
            how = "forward" if self.states == "warm" else self.states
            return SolverMethod(solver, problem, problem.start(how, generator))
        parts = TrainingBatches(objective, batches, split=split, start=self.states, budget=budget)
        return SolverMethod(solver, parts, parts.start())

    def resolved_solver(self, objective: Objective) -> Solver[Any, Any] | TorchOptimiser:
        """The solver that is meant: lifted gradients by sweeps, exact or linearised descent, or a torch optimiser."""
        solver = self.solver
        if solver is None:
            sweeps = self.lifting is None or objective.lifting.hard
            linearised = LinearisedBCD(ProximalGradient(Backtracking()))
            return SweepDescent() if sweeps and not self.full else self._implicit(linearised)
        if isinstance(solver, Solver):
            if objective.lifting.hard and not isinstance(solver, SweepDescent):
                hint = "Use SweepDescent(), or a torch optimiser such as torch.optim.Adam."
                invalid_value(
                    "train solver with Conventional()", "one without lifted variables", solver_name(solver), hint
                )
            return self._implicit(solver)
        if not objective.lifting.hard:
            hint = "Use lifting=Conventional(), or lifted_gradients in a loop of your own."
            invalid_value("train with a torch optimiser", "back-propagation", type(objective.lifting).__name__, hint)
        return solver if isinstance(solver, TorchOptimiser) else TorchOptimiser(solver)

    def _implicit(self, solver: Solver[Any, Any]) -> Solver[Any, Any]:
        """On batches, a solver of the whole problem becomes the inner one of an implicit stochastic gradient."""
        if self.full or isinstance(solver, SweepDescent | ImplicitStochasticGradient):
            return solver
        return ImplicitStochasticGradient(inner=solver, inner_steps=1)


def solver_name(solver: Any) -> str:
    if isinstance(solver, TorchOptimiser):
        return solver_name(solver.factory)
    made = getattr(solver, "func", solver)  # of a functools.partial
    return made.__name__ if isinstance(made, type) else getattr(made, "__name__", type(made).__name__)


def _exact(solver: Solver[Any, Any]) -> bool:
    inner = solver.inner if isinstance(solver, ImplicitStochasticGradient) else solver
    return isinstance(inner, BlockCoordinateDescent)


def default_batch_size(samples: int) -> int:
    """100, or a tenth of the samples where there are few, so that an epoch has some steps."""
    return max(1, min(BATCH, samples // 10)) if samples > 10 else samples
