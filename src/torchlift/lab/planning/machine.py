"""What is to be computed in a step, what devices and links can do, and what a method is predicted to take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torchlift.core.checks import check_interval, check_positive, check_size
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.core.files import read_json


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


METHODS = ("lifting", "back-propagation")
"""What passes are counted for."""


@dataclass(frozen=True)
class Passes:
    """How often a step reads or writes what a layer has, beside its matrix products.

    Arguments:
        states: each number of the layer's activations, B·N of them.
        parameters: each of its weights, N² of them.
        overhead: seconds per layer that no size changes: calls.
    """

    states: float
    parameters: float
    overhead: float


@dataclass(frozen=True)
class Machine:
    """Devices of one kind, joined by links of one kind.

    The defaults are those of `torchlift bench distributed` on a shared cloud
    machine with two cores, one per process, joined by its loopback.

    Arguments:
        flops: operations per second of one device in matrix products; a multiplication and an addition are two.
        memory_bandwidth: bytes per second that one device reads and writes.
        bandwidth: bytes per second of one link, in each direction.
        latency: seconds that a message takes, however short.
        overlap: share of a sum's time in which devices can work on; 0 where links keep the same processors busy.
        passes: by method.
    """

    flops: float = 8.2e10
    memory_bandwidth: float = 4.2e10
    bandwidth: float = 1.2e9
    latency: float = 2.5e-3
    overlap: float = 0.0
    passes: Mapping[str, Passes] = field(
        default_factory=lambda: {
            "lifting": Passes(7.5, 12.0, 1.2e-3),
            "back-propagation": Passes(0.0, 3.6, 3e-4),
        }
    )

    def __post_init__(self) -> None:
        for name in ("flops", "memory_bandwidth", "bandwidth", "latency"):
            check_positive(f"Machine {name}", getattr(self, name))
        check_interval("Machine overlap", self.overlap, "[0, 1]")
        missing = [name for name in METHODS if name not in self.passes]
        if missing:
            invalid_value("Machine passes", f"those of {' and '.join(METHODS)}", f"none of {missing[0]}")

    def but(self, *, overhead: float | None = None, **given: float | None) -> Machine:
        """The same with other numbers where they are not None; `overhead` is that of all passes."""
        passes = self.passes
        if overhead is not None:
            check_positive("Machine overhead", overhead)
            passes = {name: replace(numbers, overhead=overhead) for name, numbers in passes.items()}
        return replace(self, passes=passes, **{name: value for name, value in given.items() if value is not None})

    def record(self) -> dict[str, Any]:
        """The numbers as JSON values."""
        return asdict(self)

    @staticmethod
    def read(path: Path) -> Machine:
        """The machine in a file that `torchlift bench distributed --out` has written."""
        where, hint = f"constants {path}", "Make it by 'torchlift bench distributed --out FOLDER'."
        try:
            content = read_json(path)["machine"]
            passes = {name: Passes(**numbers) for name, numbers in content["passes"].items()}
            return Machine(**{**content, "passes": passes})
        except DataError as error:
            raise DataError(f"{error} {hint}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(message(where, "the record of a bench", type(error).__name__, hint)) from error

    # -- times --------------------------------------------------------------------------------------------------------

    def product(self, samples: float, width: int, number: int) -> float:
        """Seconds of one product of (samples, N) and (N, N): max(2bN²/F, N²s/M), or as long as it takes to read W."""
        return max(2 * samples * width**2 / self.flops, width**2 * number / self.memory_bandwidth)

    def touch(self, numbers: float, number: int) -> float:
        """Seconds to read or write numbers once: n·s/M."""
        return numbers * number / self.memory_bandwidth

    def message(self, size: float) -> float:
        """Seconds to send bytes to a neighbour: λ + n/β."""
        return self.latency + size / self.bandwidth

    def total(self, size: float, devices: int) -> float:
        """Seconds to sum bytes over D devices and tell all: 2λ⌈log₂D⌉ + 2(D − 1)/D · n/β, 0 for one device."""
        if devices == 1:
            return 0.0
        rounds = (devices - 1).bit_length()
        return 2 * self.latency * rounds + 2 * (devices - 1) / devices * size / self.bandwidth
