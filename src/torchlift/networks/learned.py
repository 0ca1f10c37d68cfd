"""The activations of all layers, with the parameters that some of them hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import nn

from torchlift.prox import ProximalActivation
from torchlift.prox.base import ActivationModule, learned


class ActivationList(nn.ModuleList):
    """σ_1, …, σ_J; one that holds parameters, such as `SoftThreshold(nn.Parameter(…))`, is a module, registered once.

    Arguments:
        activations: one per layer; layers may share parameters.
    """

    def __init__(self, activations: Sequence[ProximalActivation]) -> None:
        super().__init__()
        self.fixed = tuple(activations)
        self.places: tuple[int | None, ...] = tuple(map(self._register, activations))

    def current(self) -> tuple[ProximalActivation, ...]:
        """One activation per layer, with the current parameters."""
        held = [cast("ActivationModule", module).activation for module in self]
        return tuple(s if p is None else held[p] for s, p in zip(self.fixed, self.places, strict=True))

    def place_of(self, activation: ProximalActivation) -> int | None:
        """Where the parameters of an activation are, None where it has none."""
        tensors = list(learned(activation).values())
        for place, module in enumerate(self):
            if tensors and [*module.parameters()] and next(module.parameters()) is tensors[0]:
                return place
        return None

    def _register(self, activation: ProximalActivation) -> int | None:
        if not learned(activation):
            return None
        if (place := self.place_of(activation)) is None:
            self.append(ActivationModule(activation))
            place = len(self) - 1
        return place
