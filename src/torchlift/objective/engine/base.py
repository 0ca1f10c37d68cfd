"""What every engine offers: all layers of a network evaluated at given lifted variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from torchlift.objective.engine.states import Layout, States
from torchlift.operators import Context
from torchlift.prox import ProximalActivation


@dataclass(frozen=True, eq=False)
class Part:
    """Layers `start` + 1, …, `start` + `count`, evaluated together.

    Where `stacked`, z and v have a leading axis of length `count`; otherwise
    `count` is 1 and they are (B, *shape).
    """

    start: int
    count: int
    stacked: bool
    activation: ProximalActivation
    weight: float | Tensor
    z: Tensor
    v: Tensor

    def per_layer(self, terms: Tensor) -> Tensor:
        """Sums of per-entry (or per-group) terms, one number per layer."""
        return terms.flatten(1).sum(1) if self.stacked else terms.sum()[None]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """All pre-activations, the output, and how far M u is from V z."""

    parts: tuple[Part, ...]
    output: Tensor
    coupling: tuple[Tensor, ...] = ()
    """Residuals (M u − V z)_j where the coupling is a penalty; empty where it is hard."""


@dataclass
class Gradients:
    """Partial gradients of an objective."""

    z: States
    """Gradients in the lifted variables (smooth part); `z.u` holds those in u where it is free."""
    parameters: dict[str, Tensor] = field(default_factory=dict)
    """Gradients in the parameters, by the names of `network.named_parameters()`; one per stack of layers."""


@dataclass(frozen=True)
class Setting:
    """What an engine needs to know beside the network.

    Arguments:
        lifting: the penalty D.
        loss: the loss L.
        weights: μ_1, …, μ_J.
        coupling: weight of the quadratic coupling, or None where it is hard.
    """

    lifting: Any
    loss: Any
    weights: tuple[float, ...]
    coupling: float | None = None


Want: TypeAlias = Literal["both", "states", "parameters"]


class Engine(ABC):
    """Evaluates W u + b for all layers, its adjoint and its parameter gradients."""

    name: str
    layout: Layout

    def __init__(self, network: Any, setting: Setting) -> None:
        self.network = network
        self.setting = setting

    @abstractmethod
    def evaluate(self, y: Tensor, z: States, context: Context = None) -> Evaluation:
        """v = W u + b for all layers and N = K u + d, without an autograd tape."""

    @torch.no_grad()
    def activations(self, y: Tensor, z: States, context: Context = None, out: States | None = None) -> States:
        """σ(W u + b) for all layers: what z would be if every layer were consistent."""
        result = z.empty_like(y.dtype) if out is None else out
        for part in self.evaluate(y, z, context).parts:
            assert not part.stacked  # engines that stack layers have a method of their own
            result[part.start].copy_(part.activation(part.v))
        return result

    @abstractmethod
    def gradients(
        self,
        y: Tensor,
        x: Tensor,
        z: States,
        context: Context = None,
        out: Gradients | None = None,
        want: Want = "both",
    ) -> Gradients:
        """All partial gradients of the mean objective over the batch; to be called under `torch.no_grad()`.

        Arguments:
            out: gradients of an earlier call whose memory may be used again.
            want: "states" or "parameters" where only those are needed; the
                others may be left unset.
        """

    def trainable(self) -> Mapping[str, Tensor]:
        """Parameters that take gradients, by name."""
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}
