"""Whether digits can be recognised: read by a classifier that was trained on clean ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.data import load_digits
from torchlift.lab.problem import SIDE, shrunk
from torchlift.lab.reproduction.experiment import Part, Work
from torchlift.networks import MLP, Network
from torchlift.prox import ReLU
from torchlift.training import train
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
