"""Methods with lifted variables: solvers, on batches or on all samples, and the contrastive difference of energies."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.core.shard import Shard
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point
from torchlift.data import Batch
from torchlift.objective import Objective, TrainingBatches, TrainingProblem
from torchlift.objective.contrast import contrast
from torchlift.objective.latent_cache import LatentCache
from torchlift.objective.problem import Split
from torchlift.parallel import Mesh, load_sharded, stage_of, training_batches, training_problem
from torchlift.parallel.partition import describe, partition
from torchlift.solvers import ImplicitStochasticGradient, Solver, state_from_parts, state_to_parts
from torchlift.solvers.state import state_points
from torchlift.training.gradient_step import GradientMethod, GradientStep
from torchlift.training.step import LatentSettings, Needs, StateDict, TrainMethod, TrainStep, Work

#: Before the names of tensors that the problem holds, not the solver.
_PROBLEM = "problem."


@dataclass(frozen=True)
class LiftedDescent(TrainMethod):
    """Lifted variables of their own, moved together with the parameters by a solver.

    Arguments:
        solver: of blocks of variables, or of batches; on batches the former becomes the inner solver of an implicit
            stochastic gradient.
    """

    solver: Solver[Any, Any]

    needs = Needs(latents=True, axes=frozenset({"data", "layers"}))

    def __post_init__(self) -> None:
        kind = self.solver.solves
        if kind not in ("blocks", "batches"):
            hint = "Try LinearisedBCD(), BlockCoordinateDescent() or leave the solver out."
            name = type(self.solver).__name__
            invalid_value("train solver", "one for training problems", f"{name}, for {kind}", hint)

    @property
    def title(self) -> str:
        return type(self.solver).__name__

    def check(self, work: Work) -> None:
        latents, stochastic = work.latents, self._solver(work).solves == "batches"
        name = "state_dtype" if latents.dtype is not None else "state_storage" if latents.folder is not None else None
        if name is not None:
            expected, hint = "lifted variables kept between batches", "Use states='warm' and a batch_size."
            if latents.start != "warm":
                invalid_value(f"train {name}", expected, f"states={latents.start!r}", hint)
            if not stochastic:
                invalid_value(f"train {name}", expected, "the full batch, which is at work all the time", hint)
        if work.mesh.layers > 1 and latents.start == "warm" and not work.full:
            hint = "Use states='forward', batch_size='full', or the axis data."
            invalid_value("mesh axis layers", "lifted variables that start anew in every batch", "states='warm'", hint)
        if latents.coordinates == "errors" and work.mesh.size > 1:
            hint = "Use one process, or coordinates='states'."
            invalid_value(
                "mesh", "one process for coordinates='errors', whose layers wait for each other", work.mesh, hint
            )
        self.layout(work)
        _objective(work)

    def layout(self, work: Work) -> str:
        return describe(partition(work.network, work.mesh.layers)) if work.mesh.layers > 1 else ""  # type: ignore

    def init(self, work: Work) -> LiftedStep:
        solver, objective, latents = self._solver(work), _objective(work), work.latents
        split: Split = "odd-even" if getattr(solver, "inner", solver).exact else "whole"
        cached = latents.start == "warm"
        start = "forward" if cached else latents.start
        if work.full and solver.solves == "blocks":
            problem = training_problem(objective, work.batches, work.mesh, split=split)
            generator = torch.Generator().manual_seed(work.seed)
            return LiftedStep(solver, problem, problem.start(start, generator), work.mesh)
        cache = latent_cache(objective, work) if cached else None
        by_sample = cached and not work.full
        options = {"split": split, "start": start, "cache": cache}
        problem = training_batches(objective, work.batches, work.mesh, by_sample=by_sample, **options)
        return LiftedStep(solver, problem, problem.start(), work.mesh)

    def _solver(self, work: Work) -> Solver[Any, Any]:
        """On batches, a solver of the whole problem becomes the inner one of an implicit stochastic gradient."""
        if work.full or self.solver.solves == "batches":
            return self.solver
        # After a forward pass all gaps are zero. The loss gradient propagates one layer per inner step, and a layer's
        # weights have a gradient only after that.
        depth: Any = work.network.depth
        late = work.latents.start == "forward" and work.latents.coordinates == "states"
        steps = 1 + int(depth) if late else 1
        return ImplicitStochasticGradient(inner=self.solver, inner_steps=steps)


def _objective(work: Work) -> Objective:
    latents: LatentSettings = work.latents
    return Objective(
        work.network,  # type: ignore[arg-type]
        work.lifting,
        work.loss,
        coupling=latents.coupling,
        states=latents.regularisers,
        parameters=latents.parameter_regularisers,
        coordinates=latents.coordinates,
    )


def latent_cache(objective: Objective, work: Work) -> LatentCache:
    """Room for the lifted variables of all samples."""
    activations = objective.network.operators().activations
    settings = {"dtype": work.latents.dtype, "folder": work.latents.folder, "u_layout": objective.u_layout}
    return LatentCache(objective.layout, activations, work.batches.samples, work.batches.example().y, **settings)


class LiftedStep(TrainStep):
    """A solver at work.

    Arguments:
        solver: its settings.
        problem: `TrainingBatches` or `TrainingProblem`.
        start: where to begin.
        mesh: the processes that share the problem.
    """

    def __init__(self, solver: Solver[Any, Any], problem: Any, start: Point, mesh: Mesh) -> None:
        solver.check(problem, start)
        self.solver, self.problem, self.mesh = solver, problem, mesh
        self.state = solver.init(problem, start)

    @property
    def count(self) -> int:
        return self.state.count

    @property
    def learning_rate(self) -> float | None:
        return next(iter(self.state.step_sizes.values()), None)

    @property
    def persists(self) -> bool:
        """Whether lifted variables stay from step to step."""
        return isinstance(self.problem, TrainingProblem)

    @torch.no_grad()
    def step(self) -> float:
        state = self.solver.step(self.problem, self.state)
        loss = float(getattr(state, "loss", math.nan))
        if math.isinf(loss) or (math.isnan(loss) and hasattr(state, "loss")):
            raise StepFailure(Result.NOT_FINITE, "the loss is not finite")
        self.state = state
        return loss

    def publish(self) -> None:
        self.problem.publish(getattr(self.state, "answer", self.state.point))

    def state_dict(self) -> StateDict:
        tensors, numbers = state_to_parts(self.state)
        return self._sharded(self.state, tensors) | self._problem_tensors(), numbers

    def load_state_dict(self, state: StateDict) -> None:
        saved, numbers = state
        if self.mesh.size == 1:
            tensors = {name: tensor for name, tensor in saved.items() if not name.startswith(_PROBLEM)}
            self.state = state_from_parts(self.state, tensors, numbers)
            self.problem.load_state_dict(
                {name.removeprefix(_PROBLEM): t for name, t in saved.items() if name.startswith(_PROBLEM)}
            )
            return
        empty = {name: torch.empty_like(tensor) for name, tensor in state_to_parts(self.state)[0].items()}
        new = state_from_parts(self.state, empty, numbers)
        load_sharded(self._sharded(new, empty) | self._problem_tensors(), saved)  # type: ignore[arg-type]
        self.state = new

    def _sharded(self, state: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
        """On a mesh the points of a state are slices; of its other tensors every process has a copy."""
        if self.mesh.size == 1:
            return dict(tensors)
        points = state_points(state)
        prefixes = tuple(f"{path}." for path in points)
        sharded: dict[str, Any] = {name: t for name, t in tensors.items() if not name.startswith(prefixes)}
        for path, point in points.items():
            sharded |= {f"{path}.{name}": tensor for name, tensor in self.problem.sharded(point).items()}
        return sharded

    def _problem_tensors(self) -> dict[str, Any]:
        return {f"{_PROBLEM}{name}": tensor for name, tensor in self.problem.state_dict().items()}

    def objective_value(self) -> tuple[float, float | None] | None:
        if not isinstance(self.problem, TrainingProblem):
            return None
        report = self.problem.report(self.state.point)
        return report.total, sum(report.gaps) / len(report.gaps) if report.gaps else None

    @torch.no_grad()
    def mean_loss(self) -> float | None:
        problem = self.problem
        if isinstance(problem, TrainingBatches):
            return None if hasattr(self.state, "loss") else problem.value(self.state.point)
        return problem.mean_loss()


@dataclass(frozen=True)
class ContrastiveDescent(GradientMethod):
    """The difference of two energies, both minimised over the lifted variables: see `objective.contrast`."""

    needs = Needs(latents=True, axes=frozenset({"data", "layers"}), settings=False, lifting="contrastive")

    def check(self, work: Work) -> None:
        if self.stages > 1:
            hint = "Its layers are divided by the mesh axis layers."
            invalid_value("ContrastiveDescent stages", "1: no signal arrives late there", self.stages, hint)
        super().check(work)

    def layout(self, work: Work) -> str:
        return describe(partition(work.network, work.mesh.layers)) if work.mesh.layers > 1 else ""  # type: ignore

    def init(self, work: Work) -> GradientStep:
        return GradientStep(self, work, _ContrastiveGradient(work))

    def gradients(self, work: Work, shard: Shard) -> AbstractContextManager[object]:
        return nullcontext()


class _ContrastiveGradient:
    """The gradient of the contrastive scheme, by layers where a mesh divides those."""

    def __init__(self, work: Work) -> None:
        self.objective = Objective(work.network, work.lifting, work.loss)  # type: ignore[arg-type]
        self.stage = stage_of(self.objective, work.mesh)
        self._budget = work.budget

    def __call__(self, batch: Batch, shard: Shard) -> tuple[Tensor, Tensor]:
        self.stage.load()
        loss, output, gradients = contrast(self.stage, *batch, shard, lambda: self._budget(0) <= 0)
        # every process makes the whole step
        whole = self.stage.gather([gradients[name] for name in self.stage.names])
        targets = [p for p in self.objective.network.parameters() if p.requires_grad]
        for parameter, gradient in zip(targets, whole, strict=True):
            parameter.grad = gradient
        return loss, output
