"""Solvers of lifted variables: on batches, or on all samples with lifted variables that persist."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchlift.core.errors import invalid_value
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point
from torchlift.io import Piece, Stored
from torchlift.objective import Objective, TrainingBatches, TrainingProblem
from torchlift.objective.distributed_problem import DistributedProblem
from torchlift.objective.layer_part import LayerPart
from torchlift.objective.problem import Split
from torchlift.objective.sharded_batches import ShardedBatches
from torchlift.objective.store import StateStore
from torchlift.parallel import Mesh
from torchlift.solvers import ImplicitStochasticGradient, Solver, state_from_parts, state_to_parts
from torchlift.solvers.state import Number, state_points
from torchlift.training.step import LatentSettings, Needs, Parts, TrainMethod, TrainStep, Work, spread

_KEPT = "problem."


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
        if work.mesh is not None and work.mesh.layers > 1 and latents.start == "warm" and not work.full:
            hint = "Use states='forward', batch_size='full', or the axis data."
            invalid_value("mesh axis layers", "lifted variables that start anew in every batch", "states='warm'", hint)
        _objective(work)

    def init(self, work: Work) -> LiftedStep:
        solver, objective = self._solver(work), _objective(work)
        inner = getattr(solver, "inner", solver)
        split: Split = "odd-even" if inner.exact else "whole"
        persistent = work.latents.start == "warm" and not work.full
        batches = work.batches if work.mesh is None else ShardedBatches(work.batches, work.mesh, by_sample=persistent)
        part = LayerPart(objective, work.mesh) if work.mesh is not None and work.mesh.layers > 1 else None
        start = "forward" if work.latents.start == "warm" else work.latents.start
        if work.full and solver.solves == "blocks":
            y, x, context = batches.batch(0)
            if isinstance(batches, ShardedBatches):
                share = batches.part(0)[1]
                problem = DistributedProblem(objective, y, x, share, part, split=split, context=context)
            else:
                problem = TrainingProblem(objective, y, x, split=split, context=context)
            return LiftedStep(solver, problem, problem.start(start, torch.Generator().manual_seed(work.seed)))
        store = latent_store(objective, work) if work.latents.start == "warm" else None
        options = {"split": split, "start": start, "budget": work.budget, "store": store, "part": part}
        problem = TrainingBatches(objective, batches, **options)
        return LiftedStep(solver, problem, problem.start())

    def _solver(self, work: Work) -> Solver[Any, Any]:
        """On batches, a solver of the whole problem becomes the inner one of an implicit stochastic gradient."""
        if work.full or self.solver.solves == "batches":
            return self.solver
        # After a forward pass all gaps are zero. The loss gradient propagates one layer per inner step, and a layer's
        # weights have a gradient only after that.
        depth: Any = work.network.depth
        steps = 1 + int(depth) if work.latents.start == "forward" else 1
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
    )


def latent_store(objective: Objective, work: Work) -> StateStore:
    """Room for the lifted variables of all samples."""
    activations = objective.network.operators().activations
    like, latents = work.batches.example().y, work.latents
    samples = work.batches.samples
    return StateStore(
        objective.layout, activations, samples, like, dtype=latents.dtype, folder=latents.folder,
        u_layout=objective.u_layout,
    )  # fmt: skip


class LiftedStep(TrainStep):
    """A solver at work.

    Arguments:
        solver: its settings.
        problem: `TrainingBatches` or `TrainingProblem`.
        start: where to begin.
    """

    def __init__(self, solver: Solver[Any, Any], problem: TrainingBatches | TrainingProblem, start: Point) -> None:
        solver.check(problem, start)
        self.solver, self.problem = solver, problem
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

    def state_dict(self) -> Parts:
        tensors, numbers = state_to_parts(self.state)
        kept = self.problem.parts() if isinstance(self.problem, TrainingBatches) else {}
        return tensors | {f"{_KEPT}{name}": tensor for name, tensor in kept.items()}, numbers

    def load_state_dict(self, parts: Parts) -> None:
        tensors, numbers = parts
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(_KEPT)}
        self.state = state_from_parts(self.state, own, numbers)
        if isinstance(self.problem, TrainingBatches):
            kept = {name.removeprefix(_KEPT): tensor for name, tensor in tensors.items() if name.startswith(_KEPT)}
            self.problem.restore(kept)

    def pieces(self, mesh: Mesh) -> tuple[list[Piece], dict[str, Number]]:
        return [*self._held(self.state, mesh), *self._kept()], state_to_parts(self.state)[1]

    def load_pieces(self, stored: Stored, numbers: dict[str, Number]) -> None:
        assert self.problem.mesh is not None  # one process loads its state dict
        empty = {name: torch.empty_like(tensor) for name, tensor in state_to_parts(self.state)[0].items()}
        state = state_from_parts(self.state, empty, numbers)
        for piece in (*self._held(state, self.problem.mesh), *self._kept()):
            _fill(piece, stored)
        self.state = state

    def _held(self, state: Any, mesh: Mesh) -> list[Piece]:
        """The pieces of a state, whose points are shared and of whose other tensors every process has a copy."""
        problem = self.problem
        assert isinstance(problem, DistributedProblem | TrainingBatches)  # the problems of a mesh
        points, tensors = state_points(state), state_to_parts(state)[0]
        shared = tuple(f"{path}." for path in points)
        held = spread({name: tensor for name, tensor in tensors.items() if not name.startswith(shared)}, mesh)
        for path, point in points.items():
            held += [replace(piece, name=f"{path}.{piece.name}") for piece in problem.pieces(point)]
        return held

    def _kept(self) -> list[Piece]:
        kept = self.problem.kept() if isinstance(self.problem, TrainingBatches) else []
        return [replace(piece, name=f"{_KEPT}{piece.name}") for piece in kept]

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


def _fill(piece: Piece, stored: Stored) -> None:
    """Overwrite a piece by what was saved of it."""
    shape = stored.shape(piece.name) if piece.name in stored else None
    saved = stored.part(piece.name, piece.slices) if shape == piece.shape else None
    if saved is None or saved.dtype != piece.tensor.dtype:
        hint = "Use the solver and the problem that the state was saved with."
        got = "none" if shape is None else f"shape {shape}" if saved is None else saved.dtype
        invalid_value(f"saved tensor {piece.name!r}", f"{piece.tensor.dtype} of shape {piece.shape}", got, hint)
    piece.tensor.copy_(saved)
