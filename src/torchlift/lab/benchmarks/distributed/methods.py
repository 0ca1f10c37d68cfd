"""The networks that are measured, and steps of lifted training and of back-propagation as torch has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from torchlift.core.checks import Shape, check_size
from torchlift.core.errors import invalid_value
from torchlift.data import as_batches
from torchlift.functions.losses import SquaredError
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import Objective, TrainingProblem
from torchlift.parallel import Mesh, MeshShard, ShardedProblem, as_mesh, split_evenly, stage_of
from torchlift.parallel.partition import partition
from torchlift.prox import ReLU
from torchlift.solvers import ProximalGradient, Solver
from torchlift.training import SweepDescent, Work


@dataclass(frozen=True)
class Size:
    """A multilayer perceptron with ReLU and as many inputs and outputs as units, and its full batch.

    Arguments:
        layers: hidden layers J; with the output map there are J + 1 weight matrices.
        width: units N of each.
        batch: samples B.
    """

    layers: int
    width: int
    batch: int

    @staticmethod
    def parse(text: str) -> Size:
        """From "8x784x1000"."""
        numbers = text.split("x")
        if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
            hint = "Try 8x784x1000."
            invalid_value("bench distributed sizes", "layers x width x batch", repr(text), hint)
        return Size(*(check_size("bench distributed sizes", int(number)) for number in numbers))

    def __str__(self) -> str:
        return f"{self.layers}x{self.width}x{self.batch}"

    @property
    def maps(self) -> int:
        """Weight matrices."""
        return self.layers + 1

    @property
    def parameters(self) -> int:
        return self.maps * self.width * (self.width + 1)

    def network(self) -> MLP:
        """The same weights whenever it is asked for."""
        generator = torch.Generator().manual_seed(0)
        return MLP([self.width] * (self.layers + 2), ReLU(), generator=generator)

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets, the same whenever they are asked for."""
        generator = torch.Generator().manual_seed(1)
        y, x = (torch.randn(self.batch, self.width, generator=generator) for _ in range(2))
        return y, x


MU = 0.5
#: So short that nothing ever diverges; how far a step goes does not change its time.
STEP = 1e-4


class Steps:
    """One step of a solver per call."""

    def __init__(self, problem: Any, solver: Solver[Any, Any], start: Any) -> None:
        self.problem, self.solver = problem, solver
        self.state = solver.init(problem, start)

    @torch.no_grad()
    def __call__(self) -> None:
        self.state = self.solver.step(self.problem, self.state)


def jacobi(size: Size, mesh: Mesh | None = None) -> Steps:
    """All layers' lifted variables and weights moved at the same point: three products per layer, one gradient."""
    objective, (y, x) = Objective(size.network(), Bregman(MU)), size.data()
    if mesh is None:
        problem = TrainingProblem(objective, y, x)
    else:
        parts = split_evenly(size.batch, mesh.data)
        shard, rows = MeshShard(mesh, tuple(part.stop - part.start for part in parts)), parts[mesh.data_rank]
        problem = ShardedProblem(objective, y[rows], x[rows], shard, stage_of(objective, mesh))
    return Steps(problem, ProximalGradient(STEP), problem.start())


def sweeps(size: Size, mesh: Mesh | None = None) -> Callable[[], object]:
    """The default of `train`: one backward sweep from the forward pass, and a relative step of the weights."""
    batches = as_batches(size.data(), batch_size=size.batch)
    work = Work(size.network(), SquaredError(), batches, mesh=as_mesh(mesh))
    return SweepDescent().init(work).step


def back_propagation(size: Size) -> Callable[[], None]:
    """Autograd and plain gradient descent."""
    y, x = size.data()
    return _trained(size.network().to_sequential(), y, x)


def data_parallel(size: Size, mesh: Mesh) -> Callable[[], None]:
    """The same by `DistributedDataParallel`."""
    from torch.nn.parallel import DistributedDataParallel

    rows, (y, x) = split_evenly(size.batch, mesh.data)[mesh.data_rank], size.data()
    return _trained(DistributedDataParallel(size.network().to_sequential()), y[rows], x[rows])


def pipelined(size: Size, mesh: Mesh, micro_batches: int) -> Callable[[], None]:
    """The same by `torch.distributed.pipelining`, cut where our layers are cut."""
    network, (y, x) = size.network(), size.data()
    stretch = partition(network, mesh.layers)[mesh.layer_rank]
    modules = nn.Sequential(*list(network.to_sequential())[slice(*stretch.modules)])
    shape = (size.batch // micro_batches, size.width)
    propagate = pipeline(modules, mesh, micro_batches, (shape, shape), _loss)
    return _descent(modules, lambda: propagate(y, x))


def pipeline(
    module: nn.Module, mesh: Mesh, micro_batches: int, shapes: tuple[Shape, Shape], loss: Callable[..., Tensor]
) -> Callable[[Tensor, Tensor], None]:
    """Forward and back through all stages by schedule 1F1B; gradients are added to those of this process's stage.

    Arguments:
        module: the stage of this process.
        mesh: its "layers" are the stages.
        micro_batches: parts of a batch.
        shapes: of the stage's inputs and outputs, of one micro-batch.
        loss: of outputs and targets.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    first, last = mesh.neighbour(-1) is None, mesh.neighbour(1) is None
    stage = PipelineStage(
        module, mesh.layer_rank, mesh.layers, torch.device("cpu"), group=mesh.group("layers"),
        input_args=torch.empty(shapes[0], requires_grad=not first),
        output_args=torch.empty(shapes[1], requires_grad=True),
    )  # fmt: skip
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=loss)

    def propagate(y: Tensor, x: Tensor) -> None:
        schedule.step(*([y] if first else []), **({"target": x, "losses": []} if last else {}))

    return propagate


def _trained(module: nn.Module, y: Tensor, x: Tensor) -> Callable[[], None]:
    return _descent(module, lambda: _loss(module(y), x).backward())


def _descent(module: nn.Module, propagate: Callable[[], object]) -> Callable[[], None]:
    """A step of plain gradient descent."""
    optimiser = torch.optim.SGD(module.parameters(), lr=STEP)

    def step() -> None:
        optimiser.zero_grad()
        propagate()
        optimiser.step()

    return step


def _loss(prediction: Tensor, target: Tensor) -> Tensor:
    """The mean over samples of ½‖prediction − target‖²."""
    return 0.5 * (prediction - target).square().sum() / len(target)
