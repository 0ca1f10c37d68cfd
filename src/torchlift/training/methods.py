"""Ways to change a network's parameters step by step, each of which can be saved and resumed."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torchlift.checkpoint import Piece, Stored, whole_piece
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.solution import Result, StepFailure
from torchlift.core.tensors import Point
from torchlift.data import Batches
from torchlift.distributed import Mesh, Share
from torchlift.objective import Objective, TrainingBatches, TrainingProblem, back_propagate
from torchlift.objective.centring import Mean, centre
from torchlift.objective.distributed_problem import DistributedProblem
from torchlift.objective.sharded_batches import ShardedBatches
from torchlift.operators import Context
from torchlift.solvers import Solver, state_from_parts, state_to_parts
from torchlift.solvers.state import Number, state_points

Budget = Callable[[int], float]
"""Step k ↦ the share of the budget that is left before it, from 1 down to 0."""

Parts = tuple[dict[str, Tensor], dict[str, Number]]

_KEPT = "problem."


class Method(ABC):
    """Changes parameters by one step at a time."""

    @property
    @abstractmethod
    def count(self) -> int:
        """Steps made so far."""

    @abstractmethod
    def step(self) -> float:
        """Make one step; returns the objective before it, or NaN where that would cost extra."""

    @abstractmethod
    def publish(self) -> None:
        """Put the parameters to use into the network."""

    @abstractmethod
    def parts(self) -> Parts:
        """All that is needed to go on from here."""

    @abstractmethod
    def restore(self, parts: Parts) -> None:
        """Go on from there."""

    def pieces(self, mesh: Mesh) -> tuple[list[Piece], dict[str, Number]]:
        """`parts` of a single process, as pieces that the processes of a mesh hold: by default all have all of it."""
        tensors, numbers = self.parts()
        return spread(tensors, mesh), numbers

    def restore_pieces(self, stored: Stored, numbers: dict[str, Number]) -> None:
        """Go on from there, whatever the mesh was; each process reads what it needs."""
        self.restore((dict(stored), numbers))

    @property
    def learning_rate(self) -> float | None:
        return None

    def objective_value(self) -> tuple[float, float | None] | None:
        """The lifted objective and the mean gap ‖z − σ(W u + b)‖, where z persist."""
        return None

    def mean_loss(self) -> float | None:
        """The mean loss of the published network over all samples, where the steps do not tell it."""
        return None


class SolverMethod(Method):
    """A solver on batches, or on the whole data with lifted variables that persist.

    Args:
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

    def parts(self) -> Parts:
        tensors, numbers = state_to_parts(self.state)
        kept = self.problem.parts() if isinstance(self.problem, TrainingBatches) else {}
        return tensors | {f"{_KEPT}{name}": tensor for name, tensor in kept.items()}, numbers

    def restore(self, parts: Parts) -> None:
        tensors, numbers = parts
        own = {name: tensor for name, tensor in tensors.items() if not name.startswith(_KEPT)}
        self.state = state_from_parts(self.state, own, numbers)
        if isinstance(self.problem, TrainingBatches):
            kept = {name.removeprefix(_KEPT): tensor for name, tensor in tensors.items() if name.startswith(_KEPT)}
            self.problem.restore(kept)

    def pieces(self, mesh: Mesh) -> tuple[list[Piece], dict[str, Number]]:
        return [*self._held(self.state, mesh), *self._kept()], state_to_parts(self.state)[1]

    def restore_pieces(self, stored: Stored, numbers: dict[str, Number]) -> None:
        assert self.problem.mesh is not None  # one process restores parts
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
        found = spread({name: tensor for name, tensor in tensors.items() if not name.startswith(shared)}, mesh)
        for path, point in points.items():
            found += [replace(piece, name=f"{path}.{piece.name}") for piece in problem.pieces(point)]
        return found

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


@dataclass(frozen=True)
class TorchOptimiser:
    """Back-propagation with any optimiser of torch.

    Arguments:
        factory: makes it from the parameters: a class, or functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9).
        anneal: multiply its learning rates by a factor that falls from 1 to 0 over the budget.
        centring: eliminate the biases of dense layers, as `RelativeStep` does.
    """

    factory: Callable[..., torch.optim.Optimizer]
    anneal: Literal["cosine", "linear"] | None = None
    centring: bool = False

    def __post_init__(self) -> None:
        if not callable(self.factory):
            hint = "Try TorchOptimiser(torch.optim.Adam)."
            invalid_type("TorchOptimiser factory", "a function of the parameters", self.factory, hint)
        if self.anneal not in ("cosine", "linear", None):
            invalid_value("TorchOptimiser anneal", "'cosine', 'linear' or None", repr(self.anneal))
        if not isinstance(self.centring, bool):
            invalid_type("TorchOptimiser centring", "True or False", self.centring)


class TorchMethod(Method):
    """Back-propagation through the network, in place.

    Args:
        setting: the optimiser.
        objective: network and loss.
        batches, budget: the data and how much of it is left.
    """

    def __init__(self, setting: TorchOptimiser, objective: Objective, batches: Batches, budget: Budget) -> None:
        self.network, self.loss = objective.network, objective.loss
        self.batches, self.budget, self.anneal, self.centring = batches, budget, setting.anneal, setting.centring
        trainable = [p for p in self.network.parameters() if p.requires_grad]
        self.optimiser = setting.factory(trainable)
        if not isinstance(self.optimiser, torch.optim.Optimizer):
            invalid_type("TorchOptimiser factory", "a function that makes a torch optimiser", self.optimiser)
        self.rates = [group["lr"] for group in self.optimiser.param_groups]
        self._count = 0

    @property
    def count(self) -> int:
        return self._count

    @property
    def learning_rate(self) -> float | None:
        return float(self.optimiser.param_groups[0]["lr"])

    @torch.enable_grad()
    def step(self) -> float:
        y, x, context = self.batches.batch(self.count)
        share = self.batches.part(self.count)[1] if isinstance(self.batches, ShardedBatches) else None
        factor = self._factor(self.budget(self.count))
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        values: list[float] = []  # some optimisers ask more than once
        shifts: list[tuple[Mean, Tensor]] = []

        def closure() -> Any:
            loss, found, where = self._back_propagate(y, x, context, share)
            shifts.extend(found if not values else ())  # later calls come from within a step
            values.append(float(loss))
            if not math.isfinite(values[0]):  # a line search may well try points where it is not
                raise StepFailure(Result.NOT_FINITE, f"the loss is {values[0]}{where()}")
            return loss

        self.optimiser.step(closure)
        self._uncentre(shifts)
        self._count += 1
        return values[0]

    def _back_propagate(
        self, y: Tensor, x: Tensor, context: Context, share: Share | None
    ) -> tuple[Tensor, list[tuple[Mean, Tensor]], Callable[[], str]]:
        """Fill `.grad`; returns the mean loss, W ū of every centred layer, and who is to blame if it is not finite."""
        self.optimiser.zero_grad()
        if self.centring:
            sweep = back_propagate(self.network, self.loss, y, x, context, share)
            means = centre(sweep)
            for name, gradient in sweep.gradients.items():
                self.network.get_parameter(name).grad = gradient
            shifts = [(mean, self._pulled(mean)) for mean in means]
            return sweep.loss, shifts, lambda: _where(share, sweep.output)
        output = self.network(y, context)
        self.loss.check(tuple(output.shape), x, values=False)
        seen = output.detach()
        output.backward(self.loss.grad(seen, x) / len(y))
        loss = self.loss.value(seen, x).sum() / len(y)
        if share is not None:
            share.mean_(loss, *(p.grad for p in self.network.parameters() if p.grad is not None))
        return loss, [], lambda: _where(share, seen)

    def _pulled(self, mean: Mean) -> Tensor:
        """W ū."""
        return self.network.get_parameter(mean.weight_name).detach()[mean.layer] @ mean.inputs

    @torch.no_grad()
    def _uncentre(self, shifts: Sequence[tuple[Mean, Tensor]]) -> None:
        """b −= ΔW ū: the optimiser has moved c = b + W ū by what it believed to be a step of b."""
        for mean, before in shifts:
            self.network.get_parameter(mean.bias_name)[mean.layer].sub_(self._pulled(mean) - before)

    def publish(self) -> None:
        """The network holds them already."""

    def parts(self) -> Parts:
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Number] = {"count": self.count}
        for name, parameter in self.network.named_parameters():
            tensors[f"network.{name}"] = parameter.detach()
        for index, memory in self.optimiser.state_dict()["state"].items():
            for key, value in memory.items():
                path = f"optimiser.{index}.{key}"
                if isinstance(value, list):  # L-BFGS has some
                    numbers[f"{path}.length"] = len(value)
                    for position, entry in enumerate(value):
                        self._keep(f"{path}.{position}", entry, tensors, numbers)
                else:
                    self._keep(path, value, tensors, numbers)
        return tensors, numbers

    def restore(self, parts: Parts) -> None:
        tensors, numbers = parts
        mine = {path: tensor for path, tensor in tensors.items() if path.startswith("network.")}
        load_parameters(self.network, {path.removeprefix("network."): tensor for path, tensor in mine.items()})
        memory: dict[int, dict[str, Any]] = {}
        for path, value in (*tensors.items(), *numbers.items()):
            if path.startswith("optimiser."):
                _, index, key, *position = path.split(".")
                entries = memory.setdefault(int(index), {})
                if position:
                    entries.setdefault(key, {})[position[0]] = value
                else:
                    entries[key] = value
        state = {index: {key: _listed(value) for key, value in entries.items()} for index, entries in memory.items()}
        groups = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": state, "param_groups": groups})
        self._count = int(numbers["count"] or 0)

    def _keep(self, path: str, value: object, tensors: dict[str, Tensor], numbers: dict[str, Number]) -> None:
        if isinstance(value, Tensor):
            tensors[path] = value
        elif value is None or isinstance(value, bool | int | float):
            numbers[path] = value
        else:
            name, hint = type(self.optimiser).__name__, "Train without a folder, or choose another optimiser."
            got = f"a {type(value).__name__} in {path!r}"
            invalid_value(f"checkpoint of {name}", "a state of tensors and numbers", got, hint)

    def _factor(self, share: float) -> float:
        if self.anneal is None:
            return 1.0
        return share if self.anneal == "linear" else 0.5 * (1 - math.cos(math.pi * share))


def _where(share: Share | None, output: Tensor) -> str:
    """The processes whose own outputs are not finite, where there are many."""
    found = "" if share is None else share.mesh.which(not bool(output.isfinite().all()))
    return f", on {found}" if found else ""


def spread(tensors: Mapping[str, Tensor], mesh: Mesh) -> list[Piece]:
    """Tensors that all processes have, of which each writes some."""
    return [whole_piece(name, tensor, i % mesh.size == mesh.rank) for i, (name, tensor) in enumerate(tensors.items())]


def _fill(piece: Piece, stored: Stored) -> None:
    """Overwrite a piece by what was saved of it."""
    shape = stored.shape(piece.name) if piece.name in stored else None
    found = stored.part(piece.name, piece.slices) if shape == piece.shape else None
    if found is None or found.dtype != piece.tensor.dtype:
        hint = "Use the solver and the problem that the state was saved with."
        got = "none" if shape is None else f"shape {shape}" if found is None else found.dtype
        invalid_value(f"saved tensor {piece.name!r}", f"{piece.tensor.dtype} of shape {piece.shape}", got, hint)
    piece.tensor.copy_(found)


def _listed(value: Any) -> Any:
    """A list from its length and its entries by position; anything else as it is."""
    return [value[str(i)] for i in range(value["length"])] if isinstance(value, dict) else value


def parameters_of(network: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters, by name."""
    return {name: parameter.detach().clone() for name, parameter in network.named_parameters()}


@torch.no_grad()
def load_parameters(network: nn.Module, values: dict[str, Tensor]) -> None:
    for name, parameter in network.named_parameters():
        parameter.copy_(values[name])
