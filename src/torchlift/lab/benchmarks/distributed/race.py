"""Seconds to a quality, for whole trainings on one and on two processes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from torchlift.core.errors import invalid_value
from torchlift.data import Batches, as_batches, load_digits, load_mnist
from torchlift.functions.losses import CrossEntropy, Loss, SquaredError
from torchlift.lab.benchmarks.distributed.bench import launch, seconds_together
from torchlift.lab.benchmarks.distributed.methods import pipeline
from torchlift.lab.benchmarks.league_cases import cifar_classes, load_cifar
from torchlift.lab.benchmarks.step_modules import AUTOENCODER, VGG, dense
from torchlift.parallel import Mesh, as_mesh, cut_sequential, split_evenly, take_over
from torchlift.training import BackPropagation, SweepDescent, TrainMethod, Work
from torchlift.training.starts.recording import lsuv_of_module

#: Part of the final quality of one process that others may lose.
LOST = 0.02
#: Learning rate of AdamW, with cosine annealing like all others.
RATE = 1e-3
#: Evaluations of a training.
ROUNDS = 20


@dataclass(frozen=True, eq=False)
class Task:
    """What is trained, and how it is judged.

    Arguments:
        network: makes it, the same weights whenever it is asked for.
        train: inputs and targets.
        test: those it is judged by.
        loss: of its outputs.
        batch: samples of a step.
        epochs: of the budget.
        labels: judged by the share of wrong answers, not by the loss.
        target: the error to reach; None for the last one of one process, and 2 % of it.
    """

    network: Callable[[], nn.Sequential]
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    loss: Loss
    batch: int
    epochs: float
    labels: bool
    target: float | None = None

    @property
    def steps(self) -> int:
        return max(ROUNDS, math.ceil(self.epochs * len(self.train[0]) / self.batch))

    @torch.no_grad()
    def error(self, network: nn.Module) -> float:
        """Wrong answers in per cent, or the mean loss; less is better."""
        y, x = self.test
        output = torch.cat([network(part) for part in y.split(1000)])
        return 100 * float((output.argmax(1) != x).double().mean()) if self.labels else float(self.loss.mean(output, x))


def mnist(epochs: float = 10.0) -> Task:
    """Ten hidden layers of 600 ReLU, batch 256, rescaled (LSUV) so that the default start is alive for everybody."""
    train, test = load_mnist("train"), load_mnist("test")
    y = train.images.flatten(1)

    def network() -> nn.Sequential:
        chain = seeded(partial(dense, [784, *[600] * 10, 10], nn.ReLU))
        lsuv_of_module(chain, y[:500])
        return chain

    whole = len(y) - len(y) % 256  # pipelines cut every batch into equal parts
    return Task(network, (y[:whole], train.labels[:whole]), (test.images.flatten(1), test.labels), CrossEntropy(), 256,
                epochs, labels=True)  # fmt: skip


def autoencoder(epochs: float = 26.0) -> Task:
    """784-500-250-30-250-500-784 with tanh on the bundled digits, batch 128."""
    y, test = (load_digits(split).images.flatten(1) for split in ("train", "test"))
    y = y[: len(y) - len(y) % 128]
    network = partial(seeded, partial(dense, AUTOENCODER, nn.Tanh))
    return Task(network, (y, y), (test, test), SquaredError(), 128, epochs, labels=False)


def cifar(epochs: float = 2.0, *, folder: str) -> Task:
    """Three convolutions with batch norm and a dense layer on CIFAR-10, batch 256, to 30 % wrong answers."""
    train, test = (load_cifar(Path(folder), split) for split in ("train", "test"))
    order = torch.randperm(len(train[1]), generator=torch.Generator().manual_seed(0))  # files are sorted by class
    order = order[: len(order) - len(order) % 256]
    judges = slice(None, None, 4)  # all of them would take longer than the steps
    train, test = (train[0][order], train[1][order]), (test[0][judges], test[1][judges])
    return Task(partial(seeded, _vgg), train, test, CrossEntropy(), 256, epochs, labels=True, target=30.0)


def _vgg() -> nn.Sequential:
    """`VGG` as a chain, which pipelines cut."""
    vgg = VGG()
    pairs = zip(vgg.convs, vgg.norms, strict=True)
    blocks = (part for conv, norm in pairs for part in (conv, norm, nn.ReLU(), nn.MaxPool2d(2)))
    return nn.Sequential(*blocks, nn.Flatten(), vgg.head)


def tiny(epochs: float = 1.0) -> Task:
    """Three small layers, to see that everything runs."""
    y = torch.rand(64, 6, generator=torch.Generator().manual_seed(1))
    network = partial(seeded, partial(dense, [6, 8, 8, 6], nn.Tanh))
    return Task(network, (y, y), (y, y), SquaredError(), 16, epochs, labels=False)


TASKS: Mapping[str, Callable[..., Task]] = {"mnist": mnist, "autoencoder": autoencoder, "cifar": cifar, "tiny": tiny}


def seeded(build: Callable[[], nn.Sequential]) -> nn.Sequential:
    """A chain with torch's start, the same whenever it is asked for."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return build()


# -- contestants ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runner:
    """A training that goes on step by step.

    Arguments:
        step: one step.
        judged: the network with the parameters to judge; all processes of the training take part.
        alone: whether the first process works while the others wait.
    """

    step: Callable[[], object]
    judged: Callable[[], AbstractContextManager[nn.Module]]
    alone: bool = False


def lifted(task: Task, method: TrainMethod, mesh: str | None = None) -> Runner:
    """A method of torchlift, on a mesh."""
    network, steps = task.network(), task.steps
    work = Work(network, task.loss, _batches(task), lambda k: max(1 - k / steps, 0.0), mesh=as_mesh(mesh))
    training = method.init(work)

    @contextmanager
    def judged() -> Iterator[nn.Module]:
        with training.evaluating():
            yield network

    return Runner(training.step, judged, mesh is None)


def data_parallel(task: Task, mesh: Mesh | None = None) -> Runner:
    """`DistributedDataParallel` with AdamW, or AdamW on one process."""
    from torch.nn.parallel import DistributedDataParallel

    network = task.network()
    module = network if mesh is None else DistributedDataParallel(network)
    rows = slice(None) if mesh is None else split_evenly(task.batch, mesh.data)[mesh.data_rank]
    step = _adamw(task, network, lambda y, x: task.loss.mean(module(y[rows]), x[rows]).backward())
    return Runner(step, lambda: nullcontext(network), mesh is None)


def pipelined(task: Task, mesh: Mesh, micro_batches: int) -> Runner:
    """Schedule 1F1B of torch with AdamW, cut where our stages are cut."""
    network = task.network()
    ranges = cut_sequential(network, task.train[0][:1], mesh.layers)
    stages = [nn.Sequential(*list(network)[slice(*part.modules)]) for part in ranges]
    stage, part, samples = stages[mesh.layer_rank], ranges[mesh.layer_rank], task.batch // micro_batches
    shapes = (samples, *part.in_shape), (samples, *part.out_shape)
    step = _adamw(task, stage, pipeline(stage, mesh, micro_batches, shapes, task.loss.mean))

    @contextmanager
    def judged() -> Iterator[nn.Module]:
        with torch.no_grad():
            for owner, module in enumerate(stages):
                take_over(mesh, module, owner, "layers")
        yield network

    return Runner(step, judged)


def _adamw(task: Task, module: nn.Module, propagate: Callable[[Tensor, Tensor], object]) -> Callable[[], None]:
    """Steps of AdamW whose rate falls to 0 as those of our methods do."""
    optimiser = torch.optim.AdamW(module.parameters(), lr=RATE, fused=True)
    share = lambda k: 0.5 * (1 + math.cos(math.pi * min(k / task.steps, 1.0)))  # noqa: E731
    schedule, batches = torch.optim.lr_scheduler.LambdaLR(optimiser, share), _batches(task)

    def step() -> None:
        y, x, _ = batches.batch(schedule.last_epoch)
        optimiser.zero_grad()
        propagate(y, x)
        optimiser.step()
        schedule.step()

    return step


def _batches(task: Task) -> Batches:
    return as_batches(task.train, batch_size=task.batch, seed=0)


def contestants(task: Task, processes: int, micro_batches: tuple[int, ...]) -> dict[str, Runner]:
    """All that take part, by name; the first one sets the target."""
    data, layers = f"data={processes}", f"layers={processes}"
    adam = BackPropagation(partial(torch.optim.AdamW, lr=RATE, fused=True), "cosine")
    return {
        "sweeps": lifted(task, SweepDescent()),
        "late sweeps, layers": lifted(task, SweepDescent(), layers),
        "sweeps, data": lifted(task, SweepDescent(), data),
        "AdamW": data_parallel(task),
        "AdamW, DistributedDataParallel": data_parallel(task, as_mesh(data)),
        **{f"AdamW, 1F1B, {m} micro-batches": pipelined(task, as_mesh(layers), m) for m in micro_batches},
        "late AdamW, layers": lifted(task, adam, layers),
    }


# -- the race ---------------------------------------------------------------------------------------------------------


def race(
    tasks: Mapping[str, float | None],
    processes: int = 2,
    micro_batches: tuple[int, ...] = (4, 8),
    cifar: Path | None = None,
) -> list[Any]:
    """One record per task, ready for JSON.

    All trainings make as many steps from the same weights, on the same batches, in
    turns of a twentieth, so that noise hits them alike, and are judged from half of the
    way on, after each turn: rates fall to zero, so nobody is near its best before. Evaluations are not timed. The
    target is the last error of one process with sweeps, and 2 % of it for everybody, or the task's own; seconds
    to it are those of the first evaluation that reaches it, and none where none does.

    Arguments:
        tasks: names of `TASKS`, with epochs; None for the usual ones.
        processes: of one thread each.
        micro_batches: of the pipelines.
        cifar: folder of image files train/CLASS/NAME and test/CLASS/NAME, which the task "cifar" needs.
    """
    for name in tasks:
        if name not in TASKS:
            invalid_value("bench distributed race", f"some of {', '.join(TASKS)}", repr(name))
    if "cifar" in tasks:
        if cifar is None:
            invalid_value("bench distributed race cifar", "a folder of images", "none", "Give --cifar DIR.")
        for split in ("train", "test"):  # here, and not in processes that would say it with a traceback
            cifar_classes(cifar, split)
    settings = {
        name: ({} if epochs is None else {"epochs": epochs}) | ({"folder": str(cifar)} if name == "cifar" else {})
        for name, epochs in tasks.items()
    }
    return [
        json.loads(launch(_run, processes, name, json.dumps([chosen, processes, micro_batches])))
        for name, chosen in settings.items()
    ]


def _run(name: str, settings: str) -> str:
    chosen, processes, micro_batches = json.loads(settings)
    task = TASKS[name](**chosen)
    field = contestants(task, processes, tuple(micro_batches))
    seconds, curves = dict.fromkeys(field, 0.0), {who: [] for who in field}
    ends = [task.steps * (k + 1) // ROUNDS for k in range(ROUNDS)]
    for begin, end in zip([0, *ends], ends, strict=False):
        for who, runner in field.items():
            seconds[who] += seconds_together(runner.step, end - begin, alone=runner.alone)
            if 2 * end >= task.steps:
                curves[who].append([end, seconds[who], _judge(runner, task)])
    if dist.get_rank():
        return ""  # the first process has judged
    return json.dumps({"task": name, "steps": task.steps, "batch": task.batch, **judged(curves, task.target)})


def _judge(runner: Runner, task: Task) -> float:
    if runner.alone and dist.get_rank():
        return math.nan
    with runner.judged() as network:
        training = network.training
        network.eval()
        error = task.error(network) if dist.get_rank() == 0 else math.nan
        network.train(training)
    return error


def judged(curves: Mapping[str, list[list[float]]], target: float | None = None) -> dict[str, Any]:
    """The target of the first contestant, and who comes there when.

    Arguments:
        curves: [steps, seconds, error] of every evaluation, by contestant.
        target: another one, which the first contestant need not reach.

    Returns:
        by contestant the "seconds" of all steps, the "error" at the end, seconds "to_target", None where it was not
        reached, and the "speed_up": times as fast to the target as the first one.
    """
    first = next(iter(curves.values()))
    target = first[-1][2] * (1 + LOST) if target is None else target
    reached = {who: next((s for _, s, error in curve if error <= target), None) for who, curve in curves.items()}
    alone = reached[next(iter(curves))]
    rows = {
        who: {
            "seconds": curve[-1][1],
            "error": curve[-1][2],
            "to_target": there,
            "speed_up": None if there is None or alone is None else alone / there,
        }
        for (who, curve), there in zip(curves.items(), reached.values(), strict=True)
    }
    return {"target": target, "rows": rows, "curves": curves}
