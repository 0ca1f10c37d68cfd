"""What every engine offers and reads: all layers of a network evaluated at given lifted variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.core.tensors import copy_into
from torchlift.networks.form import UnifiedForm
from torchlift.operators import Context
from torchlift.prox import ProximalActivation


@dataclass(frozen=True)
class Layout:
    """Where each layer's variable lies: neighbouring layers of equal shape share one buffer.

    Arguments:
        shapes: shape of one sample of z_1, …, z_J.
        holds_input: whether the first buffer starts with a copy of the input
            y, so that the inputs of its layers are one slice and their
            outputs the next.
    """

    shapes: tuple[Shape, ...]
    holds_input: bool = False

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(first layer, count) of each buffer."""
        runs, start = [], 0
        for _, group in groupby(self.shapes):
            count = len(tuple(group))
            runs.append((start, count))
            start += count
        return tuple(runs)

    def allocate(self, batch: int, like: Tensor, dtype: torch.dtype | None = None) -> States:
        """Uninitialised states for a batch."""
        storage = []
        for g, (start, count) in enumerate(self.runs):
            slots = count + (1 if g == 0 and self.holds_input else 0)
            storage.append(
                torch.empty(slots, batch, *self.shapes[start], dtype=dtype or like.dtype, device=like.device)
            )
        return States(self, tuple(storage), batch=batch)

    def hold(self, layers: Iterable[Tensor], like: Tensor, dtype: torch.dtype | None = None) -> States:
        """States with the values of these layers, for a batch as large as `like`."""
        states = self.allocate(len(like), like, dtype)
        copy_into(layers, states)
        return states


class States(Sequence[Tensor]):
    """z_1, …, z_J for a batch: `states[j]` is a view (B, *shape) into one of a few buffers.

    Views of single layers are made when asked for; code that treats all
    layers alike works on `buffers`.
    """

    def __init__(self, layout: Layout, storage: tuple[Tensor, ...], u: States | None = None, batch: int = 0) -> None:
        self.layout = layout
        self.storage = storage
        self.batch = storage[0].shape[1] if storage else batch
        self.u = u
        """The states u_1, …, u_J where the coupling is not hard, else None."""
        self._input: tuple[Tensor, int] | None = None
        skip = 1 if layout.holds_input else 0
        self.buffers: tuple[Tensor, ...] = (storage[0][skip:], *storage[1:]) if storage else ()
        """One tensor (layers, B, *shape) per run of equal layers, the input left out."""
        self._places: list[tuple[int, int]] | None = None
        self._views: dict[tuple[int, int, int], Tensor] = {}

    @property
    def dtype(self) -> torch.dtype:
        return self.storage[0].dtype

    def __len__(self) -> int:
        return len(self.layout.shapes)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        if self._places is None:
            self._places = [(g, i) for g, (_, count) in enumerate(self.layout.runs) for i in range(count)]
        places = self._places[index]
        if isinstance(places, list):
            return [self.buffers[g][i] for g, i in places]
        return self.buffers[places[0]][places[1]]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[j] for j in range(len(self)))

    def view(self, group: int, index: int, count: int) -> Tensor:
        """Layers index, …, index + count − 1 of a buffer, or one layer without its axis for count 0.

        Index −1 is the input. Views are kept, because engines ask for the same
        ones in every step.
        """
        key = (group, index, count)
        if key not in self._views:
            shift = 1 if group == 0 and self.layout.holds_input else 0
            buffer = self.storage[group]
            self._views[key] = buffer.narrow(0, index + shift, count) if count else buffer[index + shift]
        return self._views[key]

    def in_dtype(self, dtype: torch.dtype) -> States:
        """These states, or a copy of them in another dtype."""
        if not self.storage or self.dtype == dtype:
            return self
        return States(self.layout, tuple(part.to(dtype) for part in self.storage), batch=self.batch)

    def set_input(self, y: Tensor) -> None:
        """Make sure that the first buffer starts with y; copies only when y is new or was changed in place."""
        if self.layout.holds_input and (self._input is None or self._input[0] is not y or self._input[1] != y._version):
            self.storage[0][0].copy_(y)
            self._input = (y, y._version)

    def map(self, function: Callable[[Tensor], Tensor]) -> States:
        """New states with function applied to every buffer; the input slot is copied as it is."""
        twin = self.empty_like()
        for new, old in zip(twin.buffers, self.buffers, strict=True):
            new.copy_(function(old))
        twin.u = None if self.u is None else self.u.map(function)
        return twin

    def clone(self) -> States:
        twin = States(self.layout, tuple(part.clone() for part in self.storage), batch=self.batch)
        twin._input = self._input
        twin.u = None if self.u is None else self.u.clone()
        return twin

    def empty_like(self, dtype: torch.dtype | None = None) -> States:
        """States of the same layout whose values are not set."""
        twin = States(
            self.layout, tuple(torch.empty_like(part, dtype=dtype) for part in self.storage), batch=self.batch
        )
        if self.layout.holds_input:
            twin.storage[0][0].copy_(self.storage[0][0])
        return twin

    def gradient_like(self, dtype: torch.dtype | None = None) -> States:
        """Unset states for a gradient: the same layers, without a slot for the input."""
        layout = Layout(self.layout.shapes)
        storage = tuple(torch.empty_like(buffer, dtype=dtype) for buffer in self.buffers)
        return States(layout, storage, batch=self.batch)

    def numel(self) -> int:
        size = sum(buffer.numel() for buffer in self.buffers)
        return size + (self.u.numel() if self.u is not None else 0)

    def check(self, layout: Layout, batch: int) -> None:
        """Refuse states of another network or another batch."""
        if layout is not self.layout and layout != self.layout:
            invalid_value("states", f"layers of shapes {list(layout.shapes)}", list(self.layout.shapes))
        if self.batch != batch:
            invalid_value("states", f"a batch of {batch}", self.batch, "Initialise the states from the same batch.")

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(buffer.shape)) for buffer in self.buffers)
        return f"States({len(self)} layers, buffers {shapes}, {self.dtype})"


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

    def rows(
        self, form: UnifiedForm, z: Sequence[Tensor], v: Sequence[Tensor] | Mapping[int, Tensor]
    ) -> tuple[Part, ...]:
        """Every row of W as a part of its own."""
        weights = self.setting.weights
        return tuple(Part(j, 1, False, form.activations[j], weights[j], z[j], v[j]) for j in range(form.depth))

    def trainable(self) -> Mapping[str, Tensor]:
        """Parameters that take gradients, by name."""
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}
