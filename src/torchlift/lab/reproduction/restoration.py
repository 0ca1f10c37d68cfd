"""The paper's inverse problems: the 7 × 784 network, ways to train it, and a classifier that reads digits."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from torchlift.cli.pictures import compared
from torchlift.data import as_batches, load_digits, psnr
from torchlift.functions.losses import SquaredError
from torchlift.lab.problem import MU, SIDE, WATCHED, Images, build, load_images, shrunk
from torchlift.lab.reproduction.experiment import Part, Work
from torchlift.lab.trajectory import Row, Trajectory, follow, part_of, trajectory_of
from torchlift.liftings import Bregman, Conventional
from torchlift.networks import MLP, Network
from torchlift.objective import TrainingProblem
from torchlift.prox import ReLU
from torchlift.report.records import Pictures
from torchlift.solvers import LinearisedBCD, ProximalAdam
from torchlift.training import BackPropagation, Phase, TrainStep, initialise_weights, train
from torchlift.training.lifted_step import LiftedStep
from torchlift.training.step import load_snapshot, snapshot

SPLITS = ("training", "validation")


@dataclass(frozen=True, eq=False)
class Reader:
    """A classifier, and the accuracy from which on digits count as recognisable.

    The bar lies half way between chance, which is what an image that does not depend on the input
    gets, and the accuracy on clean images. It was set before anything was measured.

    Arguments:
        network: scores of ten classes.
        labels: of the first training and validation images.
        clean: accuracy on these images.
    """

    network: Network
    labels: Mapping[str, Tensor]
    clean: Mapping[str, float]

    def chance(self, split: str) -> float:
        """The accuracy of always saying the most frequent label."""
        return float(self.labels[split].bincount().max() / len(self.labels[split]))

    def bar(self, split: str) -> float:
        return (self.chance(split) + self.clean[split]) / 2

    def record(self) -> dict[str, dict[str, float]]:
        return {
            split: {"clean": self.clean[split], "chance": self.chance(split), "needed": self.bar(split)}
            for split in SPLITS
        }

    @property
    def note(self) -> str:
        """When digits count as recognisable, for a table."""
        bars = " and ".join(f"{self.bar(split):.1%} of the {split} images" for split in SPLITS)
        return (
            f"Digits count as recognisable where a classifier of clean digits reads {bars}: "
            "half way between chance and clean images."
        )

    def accuracy(self, images: Tensor, split: str) -> float:
        """The share of the images of a split, in their order, that are read correctly."""
        return float(self.right(images, split).mean())

    def right(self, images: Tensor, split: str) -> Tensor:
        """1 for each image that is read correctly, 0 for the others."""
        return _right(self.network, images.cpu(), self.labels[split])


def reader(work: Work, training: int, validation: int, side: int = SIDE) -> Reader:
    """The classifier of an experiment's work, trained as one of its parts, to read the first images of each split."""
    network = MLP([side**2, 256, 10], ReLU(), generator=torch.Generator().manual_seed(work.seed))
    digits, held_out = load_digits("train"), load_digits("validation")
    pictures = {"training": digits.images[:training], "validation": held_out.images[:validation]}
    images = {split: shrunk(shown, side).flatten(1) for split, shown in pictures.items()}
    labels = {"training": digits.labels[:training], "validation": held_out.labels[:validation]}

    def make() -> Part:
        count = work.choose(100, 5000, 5000)
        data = (shrunk(digits.images[:count], side).flatten(1), digits.labels[:count])
        train(network, data, epochs=work.choose(2, 10, 10), seed=work.seed, progress=False).raise_if_failed()
        return snapshot(network), {
            split: float(_right(network, images[split], labels[split]).mean()) for split in SPLITS
        }

    tensors, clean = work.part(f"a classifier of clean digits, {side} × {side} pixels", make)
    load_snapshot(network, dict(tensors))
    return Reader(network, labels, {split: float(clean[split]) for split in SPLITS})


@torch.no_grad()
def _right(network: Network, images: Tensor, labels: Tensor) -> Tensor:
    return (network(images).argmax(1) == labels).float()


#: Samples shown.
SHOWN = 5

#: What the paper takes; fewer steps leave what is not there yet open.
PUBLISHED_STEPS = 50_000


@dataclass(frozen=True)
class Size:
    """How large the trainings of an experiment are.

    Arguments:
        side: pixels in a row of an image; the network is as wide as an image.
        training, validation: images.
        steps: on all images at once, in the published settings.
        every: steps between measurements.
        seeds: how many times all of it is done.
        batch_steps: on batches, in the recommended settings.
    """

    side: int
    training: int
    validation: int
    steps: int
    every: int
    seeds: int = 1
    batch_steps: int = 0

    def asked(self, work: Work) -> Self:
        """The same with the numbers of steps and seeds that were asked for."""
        return replace(self, steps=work.steps or self.steps, seeds=work.seeds or self.seeds)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What one training led to.

    Arguments:
        trajectory: its rows.
        psnr: of each validation image.
        accuracy: of the classifier on the outputs of each split.
        recognised: whether that is enough.
        silent: whether the output does not depend on the input.
        outputs: for the watched "training" and all "validation" images.
    """

    trajectory: Trajectory
    psnr: Tensor
    accuracy: Mapping[str, float]
    recognised: Mapping[str, bool]
    silent: bool
    outputs: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return float(self.psnr.mean())

    @property
    def best(self) -> Row:
        """What was measured at the step that every other validation image chooses."""
        return max(self.trajectory.rows, key=lambda row: row["selection psnr"])

    @property
    def readable(self) -> bool:
        """Whether the outputs for training and for validation images are recognisable."""
        return all(self.recognised.values())

    @property
    def remark(self) -> str:
        """What went wrong, if anything did."""
        return self.trajectory.failure or ("output does not depend on the input" if self.silent else "")


def remaining(runs: Sequence[Outcome]) -> str:
    """What all steps of the paper would take."""
    last = runs[0].trajectory.last
    hours = last["processor"] / max(1, last["step"]) * PUBLISHED_STEPS / 3600
    return f"all {PUBLISHED_STEPS:,} steps would take {hours:.1f} h of one core for each training (--steps, --resume)"


def pictures(name: str, title: str, rows: Mapping[str, Tensor], truth: str) -> Pictures:
    """Rows of square images, each with its PSNR to the row `truth` below it."""
    side = math.isqrt(rows[truth][0].numel())
    return compared(name, title, rows, truth, (side, side), note="PSNR under each image.")


@torch.no_grad()
def silent(network: MLP, y: Tensor) -> bool:
    """Whether the last hidden layer is zero for all inputs.

    Then the output is d whatever comes in, and the gradient of the loss in all
    parameters but d is exactly zero: back-propagation never changes them.
    """
    return not any(bool(part.any()) for part in (network.states(batch).z[-1] for batch in y.split(1000)))


def conventional(network: MLP, images: Images, rate: float) -> TrainStep:
    """Back-propagation as published: Adam, all images in every step.

    In a silent network a step on all images is a step on their mean, since only d moves and its
    gradient is d − x̄: one image with the mean as its target makes the same iterates in no time.
    """
    y, x = (images.y[:1], images.x.mean(0, keepdim=True)) if silent(network, images.y) else (images.y, images.x)
    optimiser = BackPropagation(partial(torch.optim.Adam, lr=rate))
    phase = Phase(Conventional(), optimiser, batch_size="full", weights="keep")
    batches = as_batches((y, x), batch_size=None)
    return phase.begin(network, SquaredError(), batches)


def lifted_bregman(network: MLP, images: Images, rate: float, states: str = "input", seed: int = 0) -> TrainStep:
    """As published: Adam's step of θ, then its proximal step of z, all images, z begins as the replicated input."""
    solver = LinearisedBCD(ProximalAdam(rate))
    phase = Phase(Bregman(MU), solver, batch_size="full", weights="keep", states=states)
    batches = as_batches((images.y, images.x), batch_size=None)
    return phase.begin(network, SquaredError(), batches, seed=seed)


def recommended(
    network: MLP, images: Images, steps: int, seed: int, *, batch_size: int, back_propagation: bool, rate: float
) -> TrainStep:
    """What we advise: an identity start and batches, then the defaults of `train`, or Adam with annealing."""
    initialise_weights(network, (images.y, images.x), "identity", generator=torch.Generator().manual_seed(seed))
    adam = BackPropagation(partial(torch.optim.Adam, lr=rate), "cosine")
    phase = Phase(Conventional(), adam, batch_size=batch_size) if back_propagation else Phase(batch_size=batch_size)
    batches = as_batches((images.y, images.x), batch_size=min(batch_size, len(images.y)), seed=seed)
    return phase.begin(network, SquaredError(), batches, lambda count: 1 - count / steps, seed)


@dataclass(frozen=True, eq=False)
class Trainings:
    """What all trainings of an experiment share.

    Arguments:
        work: the experiment's.
        size: of networks, data and trainings.
        read: the classifier of the images that are measured.
        images: by seed, that of the work first.
    """

    work: Work
    size: Size
    read: Reader
    images: Mapping[int, Images]

    @classmethod
    def of(cls, work: Work, task: str, size: Size) -> Trainings:
        read = reader(work, min(size.training, WATCHED), size.validation, size.side)
        seeds, sizes = range(work.seed, work.seed + size.seeds), (size.training, size.validation)
        return cls(work, size, read, {seed: load_images(task, *sizes, seed, size.side, work.device) for seed in seeds})

    @property
    def first(self) -> Images:
        """The images of the seed of the work."""
        return self.images[self.work.seed]

    def run(
        self,
        name: str,
        threshold: float,
        method: Callable[[MLP, Images], TrainStep],
        *,
        seed: int | None = None,
        steps: int | None = None,
    ) -> Outcome:
        """One training as a part of the experiment: the measured rows, and the outputs that the last parameters give.

        Arguments:
            name: of the part.
            threshold: of the network's activation.
            method: what trains the network, put to work on it.
            seed: of weights and images; that of the work if not given.
            steps: how many; those of the size if not given.
        """
        work, read, steps = self.work, self.read, steps or self.size.steps
        seed = work.seed if seed is None else seed
        images, folder = self.images[seed], work.training_folder(name)

        def part() -> Part:
            network = build(threshold, seed, side=images.side).to(images.y.device)
            step = method(network, images)
            look = partial(measure, network, images, read, step)
            trajectory = follow(step, look, every=self.size.every, steps=steps, folder=folder)
            with torch.no_grad():
                outputs = {"training": network(images.y[:WATCHED]), "validation": network(images.validation_y)}
            tensors = {split: output.cpu() for split, output in outputs.items()}
            return part_of(tensors, trajectory, silent=silent(network, images.y))

        outputs, record = work.part(f"{name}, {steps} steps", part)
        if work.steps is None:
            shutil.rmtree(folder, ignore_errors=True)  # the part is safe, its checkpoints are large
        accuracy = {split: read.accuracy(outputs[split], split) for split in SPLITS}
        recognised = {split: accuracy[split] >= read.bar(split) for split in SPLITS}
        quality = psnr(outputs["validation"], images.validation_x.cpu())
        return Outcome(trajectory_of(record), quality, accuracy, recognised, bool(record["silent"]), outputs)


@torch.no_grad()
def measure(network: MLP, images: Images, read: Reader, method: TrainStep) -> Row:
    """Mean squared error per pixel, mean PSNR and share of digits read, for some training and all validation images.

    "selection psnr" is that of every other validation image, which may choose a step; "held-out" is the rest.
    """
    row: Row = {}
    watched = (images.y[:WATCHED], images.x[:WATCHED])
    for name, (y, x) in {"training": watched, "validation": (images.validation_y, images.validation_x)}.items():
        output = network(y)
        row[f"{name} error"] = float((output - x).square().mean())
        quality, right = psnr(output, x), read.right(output, name)
        row |= {f"{name} psnr": float(quality.mean()), f"{name} read": float(right.mean())}
        if name == "validation":
            row |= {"selection psnr": float(quality[::2].mean())}
            row |= {"held-out psnr": float(quality[1::2].mean()), "held-out read": float(right[1::2].mean())}
    if isinstance(method, LiftedStep) and isinstance(method.problem, TrainingProblem):
        problem = method.problem
        report = problem.objective.report(problem.y, problem.x, problem.states(method.state.point))
        row |= {"objective": report.total, "gaps": list(report.gaps)}
    return row
