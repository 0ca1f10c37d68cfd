"""The networks that are measured."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_size
from torchlift.core.errors import invalid_value
from torchlift.networks import MLP
from torchlift.prox import ReLU


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
