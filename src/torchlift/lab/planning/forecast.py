"""What is to be computed in a step, and what a method is predicted to take for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from torchlift.core.checks import check_size


@dataclass(frozen=True)
class Work:
    """One step of a network of equal dense layers on a batch.

    Arguments:
        layers: weight matrices L, that of the output included.
        width: N; each has N² entries.
        batch: samples B of a step.
        number: bytes s of a number.
    """

    layers: int
    width: int
    batch: int
    number: int = 4

    def __post_init__(self) -> None:
        for name in ("layers", "width", "batch", "number"):
            check_size(f"Work {name}", getattr(self, name))

    @property
    def weights(self) -> int:
        """Bytes of one layer's weights, N²s."""
        return self.width**2 * self.number

    def states(self, samples: float) -> float:
        """Bytes of one layer's activations, bNs."""
        return samples * self.width * self.number

    def most_layers(self, processes: int) -> int:
        """Layers of the process that has most, ⌈L/P⌉."""
        return -(-self.layers // processes)

    def most_products(self, processes: int) -> int:
        """Products of the process that has most: three per layer, but no adjoint of the first layer of all."""
        layers = self.most_layers(processes)
        return 3 * layers - (processes == 1 or self.layers % processes == 1)

    def most_samples(self, processes: int) -> int:
        """Samples of the process that has most, ⌈B/Q⌉."""
        return -(-self.batch // processes)


@dataclass(frozen=True)
class Forecast:
    """One method on some devices.

    Arguments:
        method: its name.
        devices: how many.
        data, layers: how they are divided: samples and layers.
        micro_batches: of a pipeline; 1 for the others.
        work: seconds of a step in which the busiest device computes.
        exchange: seconds in which it waits for links.
        idle: seconds in which it waits for its turn in a pipeline.
        memory: bytes of the device that needs most.
        efficiency: time of one device, divided by the time of all of them together.
        steps: that a training needs for one of back-propagation.
    """

    method: str
    devices: int
    data: int
    layers: int
    micro_batches: int
    work: float
    exchange: float
    idle: float
    memory: float
    efficiency: float = 1.0
    steps: float = 1.0

    @property
    def seconds(self) -> float:
        """Duration of a step."""
        return self.work + self.exchange + self.idle

    @property
    def training(self) -> float:
        """Seconds that bring a training as far as one step of back-propagation."""
        return self.seconds * self.steps

    @property
    def mesh(self) -> str:
        return f"data={self.data},layers={self.layers}"

    def record(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return {**asdict(self), "seconds": self.seconds, "training": self.training, "mesh": self.mesh}


def meshes(devices: int, samples: int, layers: int) -> Iterator[tuple[int, int]]:
    """(data, layers) of all meshes of so many devices, with at least one sample and one layer each."""
    for count in range(1, min(devices, layers) + 1):
        if devices % count == 0 and devices // count <= samples:
            yield devices // count, count
