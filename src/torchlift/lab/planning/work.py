"""What is to be computed in a step."""

from __future__ import annotations

from dataclasses import dataclass

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
