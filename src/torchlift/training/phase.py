"""One stretch of training: which lifting, which solver, how long."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.data import Batches
from torchlift.distributed import Mesh
from torchlift.liftings import Bregman, Lifting
from torchlift.losses import Loss
from torchlift.networks import Chain, Network
from torchlift.objective import Objective, RelativeStep, SweepDescent, TrainingBatches, TrainingProblem
from torchlift.objective.distributed_problem import DistributedProblem
from torchlift.objective.layer_part import LayerPart
from torchlift.objective.partition import partition
from torchlift.objective.problem import Split
from torchlift.objective.sharded_batches import ShardedBatches
from torchlift.objective.store import StateStore, check_state_dtype
from torchlift.solvers import (
    ADMM,
    PDHG,
    Backtracking,
    BlockCoordinateDescent,
    GaussNewton,
    ImplicitStochasticGradient,
    LinearisedBCD,
    ProximalGradient,
    Solver,
)
from torchlift.training.methods import Budget, Method, SolverMethod, TorchMethod, TorchOptimiser
from torchlift.training.weights import WAYS

#: Steps that a run takes at least when nothing is said about its length.
LEAST_STEPS = 1000
#: Epochs that a run takes at least when nothing is said about its length.
LEAST_EPOCHS = 10
#: Samples per batch when nothing is said about it.
BATCH = 100
#: The first relative step from weights that were fitted layer by layer.
FITTED = 0.004

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
        state_dtype: dtype in which "warm" lifted variables are kept, such as torch.bfloat16.
        state_storage: where they are kept: "memory", or a folder for a memory-mapped file.
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
    state_dtype: torch.dtype | None = None
    state_storage: str | Path = "memory"

    def __post_init__(self) -> None:
        if self.lifting is not None and not isinstance(self.lifting, Lifting):
            invalid_type("train lifting", "a lifting such as Bregman()", self.lifting)
        _check_solver(self.solver)
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
        _check_name("states", self.states, STATES)
        if self.weights is not None:
            _check_name("weights", self.weights, ("keep", *WAYS))
        if self.state_dtype is not None:
            check_state_dtype("train state_dtype", self.state_dtype)
        if not isinstance(self.state_storage, str | Path):
            invalid_type("train state_storage", "'memory' or a folder", self.state_storage)

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

    def check(self, network: Network, loss: Loss, mesh: Mesh | None = None) -> None:
        """Refuse what cannot be done with this network and loss, before anything is."""
        if self.weights not in (None, "keep") and not isinstance(network, Chain):
            hint = "LISTA and PrimalDual start at their own algorithms: leave `weights` out."
            invalid_value(f"train weights={self.weights!r}", "a chain of layers", type(network).__name__, hint)
        self._check_precision(network)
        solver = self.resolved_solver(self.objective(network, loss))
        if mesh is not None and mesh.layers > 1:
            self._check_layers(network, solver, mesh)

    def _check_precision(self, network: Network) -> None:
        """Lifted steps are computed in the parameters' own dtype, which must have room for squares of gradients."""
        like, hard = network.like, self.lifting is not None and self.lifting.hard
        if like is None or hard:
            return
        hint = "Try network.bfloat16(), or lifting=Conventional()."
        if like.dtype == torch.float16:
            invalid_value("train parameters", "bfloat16, float32 or float64", like.dtype, hint)
        if torch.is_autocast_enabled(like.device.type):
            invalid_value("train", "no autocast around lifted training", f"autocast on {like.device.type}", hint)

    def _check_layers(self, network: Network, solver: Solver[Any, Any] | TorchOptimiser, mesh: Mesh) -> None:
        """What the axis "layers" serves: chains, and solvers whose steps do not run through the network."""
        partition(network, mesh.layers)
        contrastive = self.lifting is not None and self.lifting.contrastive  # whose layers do move at the same time
        if isinstance(solver, SweepDescent | TorchOptimiser) and not contrastive:
            hint = "Give a lifting and a solver such as LinearisedBCD(), or use the axis data."
            expected = "a solver of lifted variables, whose layers move at the same time"
            invalid_value("mesh axis layers", expected, solver_name(solver), hint)
        if self.states == "warm" and not self.full:
            hint = "Use states='forward', batch_size='full', or the axis data."
            invalid_value("mesh axis layers", "lifted variables that start anew in every batch", "states='warm'", hint)

    def method(
        self, objective: Objective, batches: Batches, budget: Budget, seed: int, mesh: Mesh | None = None
    ) -> Method:
        """The solver, put to work on the data; on this process's part of them where there is a mesh."""
        solver = self.resolved_solver(objective)
        if mesh is not None:
            batches = ShardedBatches(batches, mesh, by_sample=self.states == "warm" and not self.full)
        if isinstance(solver, TorchOptimiser):
            return TorchMethod(solver, objective, batches, budget)
        split: Split = "odd-even" if _exact(solver) else "whole"
        part = LayerPart(objective, mesh) if mesh is not None and mesh.layers > 1 else None
        if self.full and not isinstance(solver, SweepDescent | ImplicitStochasticGradient):
            y, x, context = batches.batch(0)
            if isinstance(batches, ShardedBatches):
                share = batches.part(0)[1]
                problem = DistributedProblem(objective, y, x, share, part, split=split, context=context)
            else:
                problem = TrainingProblem(objective, y, x, split=split, context=context)
            generator = torch.Generator().manual_seed(seed)
            how = "forward" if self.states == "warm" else self.states
            return SolverMethod(solver, problem, problem.start(how, generator))
        store = self.store(objective, batches) if self.states == "warm" else None
        start = "forward" if self.states == "warm" else self.states
        parts = TrainingBatches(objective, batches, split=split, start=start, budget=budget, store=store, part=part)
        if isinstance(solver, SweepDescent):
            solver = replace(solver, reuse=True)  # nobody looks at an older state
        return SolverMethod(solver, parts, parts.start())

    @property
    def folder(self) -> Path | None:
        """Where a memory-mapped file for the lifted variables goes."""
        return None if self.state_storage == "memory" else Path(self.state_storage)

    def store(self, objective: Objective, batches: Batches) -> StateStore:
        """Room for the lifted variables of all samples."""
        activations = objective.network.operators().activations
        like = batches.example().y
        return StateStore(
            objective.layout, activations, batches.samples, like, dtype=self.state_dtype, folder=self.folder
        )

    def resolved_solver(self, objective: Objective) -> Solver[Any, Any] | TorchOptimiser:
        """The solver that is meant: lifted gradients by sweeps, exact or linearised descent, or a torch optimiser."""
        solver = self._solver(objective)
        if self.states != "forward" and isinstance(solver, SweepDescent | TorchOptimiser):
            expected, hint = "a solver of lifted variables", "Try LinearisedBCD(), or states='forward'."
            invalid_value(f"train states={self.states!r}", expected, solver_name(solver), hint)
        if self.state_dtype is not None or self.folder is not None:
            name = "state_dtype" if self.state_dtype is not None else "state_storage"
            expected, hint = "lifted variables kept between batches", "Use states='warm' and a batch_size."
            if self.states != "warm":
                invalid_value(f"train {name}", expected, f"states={self.states!r}", hint)
            if not isinstance(solver, ImplicitStochasticGradient):
                invalid_value(f"train {name}", expected, "the full batch, which is at work all the time", hint)
        return solver

    def _solver(self, objective: Objective) -> Solver[Any, Any] | TorchOptimiser:
        solver, lifting = self.solver, objective.lifting
        gradients = lifting.hard or lifting.contrastive  # lifted variables that no solver sees
        depth = len(objective.layout.shapes)
        if solver is None:
            sweeps = self.lifting is None and self.states == "forward" and not self.full
            if sweeps or gradients:
                # Weights that were fitted lie near a solution: longer first steps would leave it again.
                return SweepDescent(RelativeStep(start=FITTED)) if self.weights == "layer-wise" else SweepDescent()
            return self._implicit(LinearisedBCD(ProximalGradient(Backtracking())), depth)
        if isinstance(solver, Solver):
            if gradients and not isinstance(solver, SweepDescent):
                hint = "Use SweepDescent()" + (", or a torch optimiser such as torch.optim.Adam." * lifting.hard or ".")
                where = f"train solver with {type(lifting).__name__}"
                invalid_value(where, "one without lifted variables", solver_name(solver), hint)
            if isinstance(solver, SweepDescent) and self.lifting is not None and not gradients:
                hint = "Leave the lifting out, or use LinearisedBCD() with it."
                invalid_value("train lifting with SweepDescent", "none", type(lifting).__name__, hint)
            return self._implicit(solver, depth)
        if not lifting.hard:
            hint = "Use lifting=Conventional(), or lifted_gradients in a loop of your own."
            got = "no lifting" if self.lifting is None else type(lifting).__name__
            invalid_value("train with a torch optimiser", "back-propagation", got, hint)
        return solver if isinstance(solver, TorchOptimiser) else TorchOptimiser(solver)

    def _implicit(self, solver: Solver[Any, Any], depth: int) -> Solver[Any, Any]:
        """On batches, a solver of the whole problem becomes the inner one of an implicit stochastic gradient."""
        if self.full or isinstance(solver, SweepDescent | ImplicitStochasticGradient):
            return solver
        # After a forward pass all gaps are zero. What the loss asks for reaches one layer more with every inner step,
        # and a layer's weights have a gradient only after that.
        steps = 1 + depth if self.states == "forward" else 1
        return ImplicitStochasticGradient(inner=solver, inner_steps=steps)


def _check_solver(solver: object) -> None:
    """A solver of training problems, or what makes a torch optimiser."""
    inner = solver.inner if isinstance(solver, ImplicitStochasticGradient) else solver
    if isinstance(inner, PDHG | ADMM | GaussNewton):
        wanted = "sums of residuals" if isinstance(inner, GaussNewton) else "saddle problems"
        hint = "Try LinearisedBCD(), BlockCoordinateDescent() or SweepDescent()."
        invalid_value("train solver", "one for training problems", f"{solver_name(inner)}, for {wanted}", hint)
    if solver is None or isinstance(solver, Solver | TorchOptimiser):
        return
    expected = "a solver, or a torch optimiser by its class or a partial"
    if isinstance(solver, type) and issubclass(solver, Solver):
        invalid_value("train solver", expected, f"the class {solver.__name__}", f"Try {solver.__name__}().")
    if not callable(solver):
        hint = f"Try torch.optim.{type(solver).__name__}." if isinstance(solver, torch.optim.Optimizer) else ""
        invalid_type("train solver", expected, solver, hint or "Try SweepDescent().")


def _check_name(what: str, name: object, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(str(name).lower().replace("_", "-"), known, n=1, cutoff=0.4)
        hint = f"Did you mean {near[0]!r}?" if near else ""
        invalid_value(f"train {what}", f"one of {', '.join(map(repr, known))}", repr(name), hint)


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
