# pyright: reportPrivateImportUsage=false
"""Parameters that are moved together, in few calls into torch and while they are in the cache."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchlift.sweeps.centring import SMALL, Mean

#: How far numbers that are learned by their logarithms move where layers move by ρ of their size.
LOGARITHMS = 12.0
#: Vectors that no layer owns move as if they were no smaller than this share of a start at random.
NEAR_ZERO = 0.1
#: Entries of each layer from which the distance is estimated, in whole rows, and rows at least and at most: all of them
#: would cost as much as the step.
ENTRIES, FEWEST, MOST = 1 << 14, 16, 64
#: Entries that are moved together, while they are in the cache: 4 MiB in single precision.
BUNDLE = 1 << 20

VECTORS = ("second", "peak", "units")
"""What an optimiser keeps of every layer: mean squares of gradients, the largest root of them so far, and c."""


@dataclass(eq=False)
class Entry:
    """One parameter and its place among the layers.

    Arguments:
        tensor: the parameter.
        weight: the first parameter of its group, which it is measured by.
        group: its options.
        first: its first layer among all.
    """

    tensor: Tensor
    weight: Tensor
    group: dict[str, Any]
    first: int

    def __post_init__(self) -> None:
        self.kind: str = self.group["kind"]
        self.stacked: bool = self.group["stacked"]
        self.layers: int = len(self.tensor) if self.stacked else 1
        self.rows = slice(self.first, self.first + self.layers)
        sizes, weight = (each.shape[1:] if self.stacked else each.shape for each in (self.tensor, self.weight))
        #: Only every so many-th row is looked at for the distance; rows of a bias are those of its weights.
        self.every = 1
        if sizes:
            row = math.prod((weight if weight[:1] == sizes[:1] else sizes)[1:])
            self.every = max(1, sizes[0] // min(MOST, max(FEWEST, ENTRIES // max(row, 1))))

    def some(self, tensor: Tensor) -> Tensor:
        """These rows."""
        if self.every == 1:
            return tensor
        return tensor[:, :: self.every] if self.stacked else tensor[:: self.every]

    def by_layer(self, tensor: Tensor) -> Sequence[Tensor]:
        return tensor.unbind(0) if self.stacked else (tensor,)

    def units(self) -> Tensor:
        """c of every layer: the root mean square of its weights, of zeros that of torch's start; 12 for logarithms.

        What no layer owns often starts near zero on purpose, such as positions of tokens (0.02) or the scales of
        residual branches (10⁻⁶), and would stay there if it moved by shares of that.
        """
        if self.kind == "logarithm":
            return torch.full((self.layers,), LOGARITHMS, dtype=torch.promote_types(self.tensor.dtype, torch.float32))
        weight = self.weight.detach()
        alike = self.stacked and weight.ndim > 0 and len(weight) == self.layers
        flat = weight.reshape(self.layers, -1) if alike else weight.reshape(1, -1)
        exact = torch.promote_types(flat.dtype, torch.float32)
        size = torch.linalg.vector_norm(flat, dim=1, dtype=exact) / max(flat.shape[1], 1) ** 0.5
        shape = weight.shape[1:] if alike else weight.shape
        fresh = (3 * math.prod(shape[1:])) ** -0.5 if len(shape) > 1 else max(flat.shape[1], 1) ** -0.5
        if self.group["layers"] == 0 and not self.stacked and weight.numel() > 1:
            size = size.clamp(min=fresh if len(shape) > 1 else NEAR_ZERO * fresh)
        return self.group["scale"] * torch.where(size > 0, size, fresh).expand(self.layers)


class Centred(NamedTuple):
    """Places of a weight and its bias in a part, and the mean input of their layer."""

    weight: int
    bias: int
    mean: Mean


class Distance:
    """What the estimate needs of the parameters of a part: some of their rows, one after the other in memory.

    With ĝ the scaled gradients, x₀ the first parameters and ω the weight of a step,
    `terms` updates s ← β₃s + ω c ĝ and returns ⟨ĝ, x₀ − x⟩ and Σ_l √n_l ‖s_l‖₂, or ‖s‖₁
    of entries. Calls into torch are few, whatever the number of layers.

    Arguments:
        entries: the parameters.
        states: of each; "origin" and "total" become views of one buffer.
        dense: whether s is measured layer by layer.
    """

    def __init__(self, entries: Sequence[Entry], states: Sequence[dict[str, Any]], dense: bool) -> None:
        self.entries, self.dense = entries, dense
        self._whole = all(entry.every == 1 for entry in entries)
        rows = [entry.some(entry.tensor.detach()) for entry in entries]
        self._shapes, self._sizes = [row.shape for row in rows], [row.numel() for row in rows]
        self._origin, self._total = (torch.cat([s[name].reshape(-1) for s in states]) for name in ("origin", "total"))
        for name, flat in (("origin", self._origin), ("total", self._total)):
            for state, view in zip(states, self._views(flat), strict=True):
                state[name] = view
        self._totals = self._by_layer(self._views(self._total))
        counts = [row.numel() for row in self._totals]
        exact: Any = {"dtype": torch.promote_types(rows[0].dtype, torch.float32), "device": rows[0].device}
        self._root_counts = torch.tensor([count**0.5 for count in counts], **exact)
        self._inverse_counts = torch.tensor([1 / max(count, 1) for count in counts], **exact)
        self._g, self._g_rows = self._total, self._totals
        """Gradients from `take` to `terms`, and the same by layer."""

    def take(self, gradients: list[Tensor]) -> None:
        """Look at the gradients of a step."""
        self._g = torch.empty_like(self._total)
        parts = self._views(self._g)
        torch._foreach_copy_(parts, self._rows(gradients))
        self._g_rows = self._by_layer(parts)

    def mean_squares(self) -> Tensor:
        """Of the gradients of every layer."""
        norms = torch.stack(torch._foreach_norm(self._g_rows))
        return norms.to(self._inverse_counts).square_().mul_(self._inverse_counts)

    def terms(
        self,
        tensors: list[Tensor],
        centred: Sequence[Centred],
        inverse_roots: list[Any],
        weights: list[Any],
        patience: float,
    ) -> tuple[Tensor, Tensor]:
        """⟨ĝ, x₀ − x⟩ and the size of s after its update, for the gradients that were looked at last.

        Arguments:
            tensors: x.
            centred: layers in whose centred coordinates x₀ − x is measured.
            inverse_roots: ĝ/g of every layer.
            weights: ω c of every layer.
            patience: β₃.
        """
        flat = torch.empty_like(self._origin)
        moved = self._views(flat)
        torch._foreach_copy_(moved, self._rows(tensors))
        torch.sub(self._origin, flat, out=flat)
        for weight, bias, mean in centred:
            moved[bias].add_(mean.pull(moved[weight], self.entries[weight].every))
        torch._foreach_mul_(self._g_rows, inverse_roots)
        inner = torch.dot(flat, self._g)
        torch._foreach_mul_(self._g_rows, weights)
        self._total.mul_(patience).add_(self._g)
        self._g, self._g_rows = self._total, self._totals  # memory that is not needed between steps
        if not self.dense:
            return inner, self._total.abs().sum()  # several times as fast as a norm of order 1
        norms = torch.stack(torch._foreach_norm(self._totals)).to(self._root_counts)
        return inner, torch.dot(norms, self._root_counts)

    def _rows(self, tensors: list[Tensor]) -> list[Tensor]:
        if self._whole:
            return tensors
        return [entry.some(tensor) for entry, tensor in zip(self.entries, tensors, strict=True)]

    def _views(self, flat: Tensor) -> list[Tensor]:
        return [part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True)]

    def _by_layer(self, views: Sequence[Tensor]) -> list[Tensor]:
        return [row for entry, view in zip(self.entries, views, strict=True) for row in entry.by_layer(view)]


class Part:
    """Parameters of one kind, dtype and device that are moved together.

    Arguments:
        entries: neighbours.
        state: of the optimiser, by parameter.
        own: vectors that hold one number per layer, of which this has views.
    """

    def __init__(self, entries: list[Entry], state: Mapping[Any, dict[str, Any]], own: dict[str, Any]) -> None:
        self.entries = entries
        self.dense = entries[0].kind == "dense"
        self.tensors = [entry.tensor for entry in entries]
        states = [state[tensor] for tensor in self.tensors]
        self.momenta = [s["momentum"] for s in states]
        self.seconds = [] if self.dense else [s["second"] for s in states]
        rows = slice(entries[0].rows.start, entries[-1].rows.stop)
        self.second, self.peak, self.units = (own[name][rows] for name in VECTORS)
        self.squares = self.second
        """Mean squares of the last gradients."""
        self.firsts = [entry.first - rows.start for entry in entries]
        self.layers = rows.stop - rows.start
        self.stacked = any(entry.stacked for entry in entries)
        first = self.tensors[0]
        #: Whether the host may read numbers: it would wait for any other device.
        self.host = first.dtype == own["rho"].dtype and first.device.type == "cpu" and hasattr(torch, "_fused_sgd_")
        sizes = [entry.tensor.numel() // entry.layers for entry in entries for _ in range(entry.layers)]
        self._inverse_counts = own["rho"].new_tensor([1 / max(size, 1) for size in sizes])
        kinds = [entry.kind == "logarithm" for entry in entries for _ in range(entry.layers)]
        self.logarithms = torch.tensor(kinds, device=own["rho"].device) if any(kinds) else None
        self._rates: tuple[list[float], Tensor | float] = ([], 1.0)
        self.row_momenta = self.by_layer(self.momenta)
        self.distance = Distance(entries, states, self.dense)
        small = [momentum.numel() <= SMALL for momentum in self.row_momenta]
        self._small = [i for i, each in enumerate(small) if each]
        self._large = [i for i, each in enumerate(small) if not each]
        self.centred: list[Centred] = []
        """The layers that are centred in the current step."""

    def by_layer(self, tensors: list[Tensor]) -> list[Tensor]:
        """One tensor per layer; views are made anew for parameters, which may be given other memory."""
        if not self.stacked:
            return tensors
        pairs = zip(self.entries, tensors, strict=True)
        return [row for entry, tensor in pairs for row in entry.by_layer(tensor)]

    def gradients(self) -> list[Tensor]:
        return [_gradient(tensor) for tensor in self.tensors]

    def numbers(self, vector: Tensor) -> list[Any]:
        """One number per layer, for operations on lists of tensors."""
        if vector.ndim == 0:
            vector = vector.expand(self.layers)
        return vector.tolist() if self.host else list(vector.unbind(0))

    def rates(self) -> Tensor | float:
        """γ of every layer, or of all where it is the same."""
        rates = [float(entry.group["lr"]) for entry in self.entries]
        if rates != self._rates[0]:
            values = [rate for rate, entry in zip(rates, self.entries, strict=True) for _ in range(entry.layers)]
            alike = len(set(rates)) == 1
            self._rates = rates, rates[0] if alike else self.units.new_tensor(values)
        return self._rates[1]

    def mean_squares(self, gradients: list[Tensor]) -> Tensor:
        """Of every layer."""
        norms = torch.stack(torch._foreach_norm(self.by_layer(gradients)))
        return norms.to(self._inverse_counts).square_().mul_(self._inverse_counts)

    def move_by_numbers(
        self, gradients: list[Tensor], scales: list[float], rates: float | list[float], beta: float
    ) -> None:
        """m ← βm + scale g, x ← x − rate m in one pass over memory, by torch's fused step of SGD.

        Large layers one after the other, small ones in one call.
        """
        options = {"weight_decay": 0.0, "nesterov": False, "maximize": False, "is_first_step": False, "momentum": beta}
        tensors, momenta, alone = self.by_layer(self.tensors), self.row_momenta, self._large
        if isinstance(rates, list):
            alone = range(len(tensors))
        elif self._small:
            chosen = self._small
            scaled = torch._foreach_mul([gradients[i] for i in chosen], [scales[i] for i in chosen])
            torch._fused_sgd_(
                [tensors[i] for i in chosen], scaled, [momenta[i] for i in chosen], lr=rates, dampening=0.0, **options
            )
        for i in alone:
            rate = rates[i] if isinstance(rates, list) else rates
            torch._fused_sgd_([tensors[i]], [gradients[i]], [momenta[i]], lr=rate, dampening=1 - scales[i], **options)
        torch.autograd.graph.increment_version((*self.tensors, *self.momenta))  # which the fused step forgets


def bundles(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Neighbours that are alike and fit the cache together; a group is divided only where it is not alike."""
    found: list[list[Entry]] = []
    room, last = 0, None
    for entry in entries:
        same = last is not None and _alike(entry, last)
        together = last is not None and entry.group is last.group
        if not same or (not together and entry.tensor.numel() > room):
            found.append([])
            room = BUNDLE
        found[-1].append(entry)
        room, last = room - entry.tensor.numel(), entry
    return found


def _alike(one: Entry, other: Entry) -> bool:
    a, b = one.tensor, other.tensor
    return (one.kind == "dense") == (other.kind == "dense") and a.dtype == b.dtype and a.device == b.device


def _gradient(tensor: Tensor) -> Tensor:
    gradient = tensor.grad
    if gradient is None:
        return torch.zeros_like(tensor, memory_format=torch.preserve_format)
    return gradient.to_dense() if gradient.is_sparse else gradient


def entries_of(groups: Sequence[dict[str, Any]]) -> list[Entry]:
    """All parameters, dense ones first, with their places among the layers."""
    entries: list[Entry] = []
    for group in sorted(groups, key=lambda group: group["kind"] != "dense"):
        for tensor in group["params"]:
            first = entries[-1].rows.stop if entries else 0
            entries.append(Entry(tensor, group["params"][0], group, first))
    return entries


def units_of(entries: Sequence[Entry]) -> Tensor:
    """c of all layers; that of a bias is the one of its weights, which is not measured twice."""
    units: list[Tensor] = []
    for entry, last in zip(entries, (None, *entries), strict=False):
        same = last is not None and entry.group is last.group and entry.layers == last.layers
        units.append(units[-1] if same else entry.units())
    return torch.cat(units)
