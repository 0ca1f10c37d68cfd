# pyright: reportPrivateImportUsage=false
"""Steps relative to the size of each layer, whose length is found from the data: no learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_type
from torchlift.core.tensors import Point, clone, zeros_like
from torchlift.objective.centring import centre, centre_differences, mean_inputs
from torchlift.objective.rules import BLOCK, SweepRule
from torchlift.objective.sweep import Sweep
from torchlift.solvers.momentum import check_fraction

#: Gradients smaller than this share of a layer's largest so far shorten the steps: they are rounding errors soon.
FLOOR = 1e-4
#: How far other parameters than those of chains move where layers of chains move by ρ of their size: matrices of
#: unrolled algorithms, and numbers that are learned by their logarithms.
MATRICES, NUMBERS = 1.4, 12.0
#: The distance is estimated in every one of the first steps, and later in every few, as the floor of entries is looked
#: at: it hardly changes then, and in small networks every call counts.
ALWAYS, OFTEN = 32, 4
#: Entries of dense layers that are moved together: 4 MiB in single precision.
CHUNK = 1 << 20
#: Rows of each layer from which the distance is estimated: all of them would cost as much as the step.
ROWS = 64


@dataclass(frozen=True, eq=False)
class RelativeState:
    """What `RelativeStep` remembers; points are like the parameters.

    Arguments:
        origin: x₀, of the rows from which the distance is estimated.
        first: m.
        total: s, of the same rows.
        second: q, one number per layer.
        entries: q of every entry outside dense layers; (J, 0) for dense ones.
        peak: the largest √q̂ of each layer so far.
        units: c.
        rho: ρ, 0-d.
        gain: r, 0-d.
        count: steps made so far.
    """

    origin: Point
    first: Point
    total: Point
    second: Point
    entries: Point
    peak: Point
    units: Point
    rho: Tensor
    gain: Tensor
    count: int = 0


class _Part(NamedTuple):
    """One parameter x in a step: its gradient, the length of the step, m, √q̂ of layers, their peak, q of entries."""

    x: Tensor
    g: Tensor
    length: Tensor
    m: Tensor
    root: Tensor
    peak: Tensor
    q: Tensor


@dataclass(frozen=True)
class RelativeStep(SweepRule):
    """Momentum steps that move every layer by the same share ρ of its size, ρ found on the way.

    With g_l the gradient of layer l (centred, see `centring`) and c_l the root
    mean square of its starting weights,

        q_l ← β₂q_l + (1 − β₂) mean(g_l²),   ĝ_l = g_l/√q̂_l,   m ← βm + (1 − β)ĝ
        x_l ← x_l − γ ρ c_l m̂_l     (with the new ρ)

    where γ anneals with the budget that is left, as a cosine, and √q̂_l counts
    as at least 10⁻⁴ of its largest value so far, so that steps shorten once
    the loss is fitted to rounding. One q_l per
    layer keeps the direction of its gradient, which noise pixels hardly touch;
    outside dense layers q has one number per entry and m averages g, so that
    steps are those of Adam, x ← x − γ ρ c_l m̂/√q̂.
    Matrices of unrolled algorithms, which know the forward model and start at a
    method that works, have 1.4 times their size for c; numbers learned by
    their logarithms have 12, and never more than the first ρ. ρ is the
    largest lower bound seen so far of the distance to a solution, in units of c:

        r ← β₃r + (1 − β₃) γρ² ⟨ĝ, x₀ − x⟩,   s ← β₃s + (1 − β₃) γρ² c ĝ
        ρ ← max(ρ, r / Σ_l √n_l ‖s_l‖₂)       (‖s_l‖₁ where m has one q per entry)

    with one q per layer everywhere, so that entries count as much as they matter
    to the loss, x₀ − x in the centred coordinates too, and all of it from about
    64 rows of every layer (outputs of dense ones), evenly spaced, in every step at
    first and in every fourth later. It is a bound, of
    max_l ‖x₀ − x*‖/(c_l √n_l) over these rows, where ⟨g_l, x_l − x*_l⟩ ≥ 0 for all l, such as
    in one dense layer with squared errors. Elsewhere it is an estimate.

    Arguments:
        start: the first ρ, and the least.
        limit: the largest sum of ρ over the layers of a chain. One step can then change what the whole network
            amplifies by a factor e^limit at most; where layers sleep the estimate would grow without end. Single
            layers and unrolled algorithms count as two.
        momentum: β in [0, 1).
        memory: β₂ in [0, 1) for layers; the q of entries use √√√β₂, a longer memory.
        patience: β₃ in [0, 1).
        centring: eliminate the biases of dense layers.
        anneal: whether γ falls from 1 to 0; otherwise γ = 1.

    Reference: Mishchenko and Defazio, Prodigy: an expeditiously adaptive parameter-free learner (2024),
    whose estimate of the distance this is, in another norm.
    """

    start: float = 0.015
    limit: float = 1.0
    momentum: float = 0.9
    memory: float = 0.99
    patience: float = 0.99
    centring: bool = True
    anneal: bool = True

    def __post_init__(self) -> None:
        check_positive("RelativeStep start", self.start)
        check_positive("RelativeStep limit", self.limit)
        for name in ("momentum", "memory", "patience"):
            check_fraction(f"RelativeStep {name}", getattr(self, name))
        for name in ("centring", "anneal"):
            if not isinstance(getattr(self, name), bool):
                invalid_type(f"RelativeStep {name}", "True or False", getattr(self, name))

    def init(self, names: Sequence[str], point: Point, sweep: Sweep) -> RelativeState:
        dense = _dense(sweep)
        entries = [
            tensor.new_zeros(len(tensor), 0) if name in dense else torch.zeros_like(tensor)
            for name, tensor in zip(names, point[BLOCK], strict=True)
        ]
        some = point.tensors[0]
        second, peak = (Point({BLOCK: [t.new_zeros(_per_layer(t)) for t in point[BLOCK]]}) for _ in range(2))
        units = Point({BLOCK: _units(names, point[BLOCK])})
        most = self._most(_over_layers(sweep, some.new_tensor([_layers(names, point)]))[0])
        rho = most.clamp(max=self.start)
        origin = clone(Point({BLOCK: _rows(point[BLOCK])}))
        return RelativeState(
            origin,
            zeros_like(point),
            zeros_like(origin),
            second,
            Point({BLOCK: entries}),
            peak,
            units,
            rho,
            some.new_zeros(()),
        )

    def move(
        self,
        names: Sequence[str],
        point: Point,
        sweep: Sweep,
        state: RelativeState,
        count: int,
        share: float,
        reuse: bool = False,
    ) -> tuple[Point, RelativeState]:
        means = centre(sweep) if self.centring else ()
        k = state.count + 1
        gamma = 0.5 * (1 + math.cos(math.pi * (1 - share))) if self.anneal else 1.0
        gradients = [sweep.gradients[name] for name in names]
        if not reuse:  # in new memory, which costs several times as much as the arithmetic
            point = clone(point)
            memory = {name: clone(getattr(state, name)) for name in ("first", "total", "second", "entries")}
            state = replace(state, **memory)
        roots, peak = self._roots(gradients, state, k)
        rho, gain = state.rho, state.gain
        if k <= ALWAYS or k % OFTEN == 0:
            scaled = torch._foreach_div(_rows(gradients), roots)
            moved = torch._foreach_sub(state.origin.tensors, _rows(point[BLOCK]))
            centre_differences(dict(zip(names, moved, strict=True)), means)
            rho, gain = self._distance(moved, scaled, state, gamma, sweep, _layers(names, point))
        # Logarithms keep to their first steps: what the distance of matrices is says nothing about theirs.
        least = rho.clamp(max=self.start)
        lengths = [c * ((rho if c.ndim > 1 else least) * gamma) for c in state.units.tensors]
        columns = (point.tensors, gradients, lengths, state.first.tensors, roots, peak, state.entries.tensors)
        parts = {name: _Part(*each) for name, each in zip(names, zip(*columns, strict=True), strict=True)}
        biases = {mean.weight_name: parts[mean.bias_name].x for mean in means}
        for name, part in parts.items():
            if part.q.numel():
                self._move_entries(part, k)
            else:
                bias = biases.get(name)
                inputs = None if bias is None else mean_inputs(means, name, len(bias))
                self._move_layers(part, inputs, bias, k)
        return point, replace(state, peak=Point({BLOCK: peak}), rho=rho, gain=gain, count=k)

    def size(self, state: RelativeState, count: int) -> float:
        return float(state.rho)

    def _most(self, layers: Tensor) -> Tensor:
        """The largest ρ: `limit` divided by the number of layers of a chain, and by two where there is none."""
        return self.limit / layers.clamp(min=2)

    def _roots(self, gradients: list[Tensor], state: RelativeState, k: int) -> tuple[list[Tensor], list[Tensor]]:
        """√q̂ of every layer, at least its floor, after an update of q in place; the new peaks."""
        # entries have a q of their own; that of their layers only weighs the distance
        seen = [_rows([g])[0] if q.numel() else g for g, q in zip(gradients, state.entries.tensors, strict=True)]
        squares = [_mean_square(g).view(q.shape) for g, q in zip(seen, state.second.tensors, strict=True)]
        torch._foreach_lerp_(state.second.tensors, squares, 1 - self.memory)
        roots = torch._foreach_div(state.second.tensors, 1 - self.memory**k)
        torch._foreach_sqrt_(roots)
        peaks = torch._foreach_maximum(state.peak.tensors, roots)
        torch._foreach_maximum_(roots, _floors(peaks))
        return list(roots), list(peaks)

    def _move_layers(self, part: _Part, inputs: Tensor | None, bias: Tensor | None, k: int) -> None:
        """Dense layers, in place: some of them at a time, while they are in the cache.

        Given ū of all layers and their biases, a step of W leaves c = b + W ū alone, and not b.
        """
        factor, size = -1 / (1 - self.momentum**k), max(1, CHUNK // part.x[0].numel())
        stacks = (part.x, part.g, part.length, part.m, part.root)
        groups = zip(*(t.split(size) for t in stacks), strict=True) if size < len(part.x) else [stacks]
        for start, (x, g, length, m, root) in zip(range(0, len(part.x), size), groups, strict=True):
            m.mul_(self.momentum).addcdiv_(g, root, value=1 - self.momentum)
            x.addcmul_(m, length, value=factor)
            if inputs is not None and bias is not None:
                pull = (m @ inputs[start : start + size, :, None])[:, :, 0]
                bias[start : start + size].addcmul_(pull, length[:, :, 0], value=-factor)

    def _move_entries(self, part: _Part, k: int) -> None:
        """With one q per entry, in place, by torch's fused step of Adam, which reads everything once."""
        x, q, memory = part.x, part.q, self.memory ** (1 / 8)
        if k % OFTEN == 0:
            torch.maximum(q, _floors([part.peak])[0].square_().mul_(1 - memory ** (k - 1)), out=q)
        layers = zip(*(t.unbind(0) if t.ndim > 1 else (t,) for t in (x, part.g, part.m, q)), strict=True)
        count = torch.full((), float(k), device=x.device)
        for (xi, gi, mi, qi), rate in zip(layers, part.length.flatten(), strict=False):
            torch._fused_adam_(
                [xi], [gi], [mi], [qi], [], [count], lr=rate, beta1=self.momentum, beta2=memory, weight_decay=0.0,
                eps=torch.finfo(x.dtype).tiny ** 0.5, amsgrad=False, maximize=False,
            )  # fmt: skip
        torch.autograd.graph.increment_version((x, part.m, q))  # which the fused step forgets

    def _distance(
        self,
        moved: Sequence[Tensor],
        gradients: tuple[Tensor, ...] | list[Tensor],
        state: RelativeState,
        gamma: float,
        sweep: Sweep,
        layers: int,
    ) -> tuple[Tensor, Tensor]:
        """The new ρ and r from x₀ − x, in the coordinates of the gradients; s in place."""
        weight = state.rho.square() * ((1 - self.patience) * gamma)
        inner = torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in zip(moved, gradients, strict=True)]).sum()
        total = state.total.tensors
        torch._foreach_mul_(total, self.patience)
        torch._foreach_addcmul_(total, gradients, torch._foreach_mul(state.units.tensors, weight))
        size = torch.stack([_dual_norm(s, q) for s, q in zip(total, state.entries.tensors, strict=True)]).sum()
        inner, size, depth = _over_layers(sweep, torch.stack([inner, size, torch.full_like(size, layers)]))
        gain = state.gain * self.patience + weight * inner
        tiny = torch.finfo(size.dtype).tiny
        return torch.minimum(torch.maximum(state.rho, gain / size.clamp(min=tiny)), self._most(depth)), gain


def _over_layers(sweep: Sweep, sums: Tensor) -> Tensor:
    """Sums over all layers from those over the layers of this process."""
    return sums if sweep.share is None else sweep.share.mesh.sum_(sums, "layers")


def _layers(names: Sequence[str], point: Point) -> int:
    """Number of layers of a chain that are here."""
    return sum(len(t) for name, t in zip(names, point[BLOCK], strict=True) if ".linear." in name)


def _mean_square(tensor: Tensor) -> Tensor:
    """Of each layer, (J,)."""
    return torch.linalg.vector_norm(tensor.reshape(len(tensor), -1), dim=1).square_().div_(tensor[0].numel())


def _dual_norm(s: Tensor, q: Tensor) -> Tensor:
    """Σ_l √n_l ‖s_l‖₂ with one q per layer, ‖s‖₁ with one per entry: the same for layers of one entry."""
    if q.numel():
        return s.abs().sum()  # several times as fast as a norm of order 1
    return torch.linalg.vector_norm(s.flatten(1), dim=1).sum() * s[0].numel() ** 0.5


def _dense(sweep: Sweep) -> set[str]:
    """Names of the weights and biases of dense layers."""
    names = {layer.weight_name for layer in sweep.layers}
    return names | {layer.bias_name for layer in sweep.layers if layer.bias_name is not None}


def _per_layer(tensor: Tensor) -> tuple[int, ...]:
    return (len(tensor), *(1,) * (tensor.ndim - 1))


def _floors(peaks: Sequence[Tensor]) -> list[Tensor]:
    return [(FLOOR * peak).clamp_(min=torch.finfo(peak.dtype).tiny ** 0.5) for peak in peaks]


def _rows(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The rows from which the distance is estimated; those of a bias are those of its weights."""
    return [t[:, :: max(1, t.shape[1] // ROWS)] if t.ndim > 1 else t for t in tensors]


def _in_chain(name: str) -> bool:
    """Whether this is a parameter of a chain of layers, and not of an unrolled algorithm."""
    return ".linear." in name or name.endswith("bias")


def _units(names: Sequence[str], tensors: Sequence[Tensor]) -> list[Tensor]:
    """c: from the size of each layer's weights; biases have that of their weights, logarithms a constant."""
    found = {name: _size(name, tensor) for name, tensor in zip(names, tensors, strict=True)}
    units = []
    for name, tensor in zip(names, tensors, strict=True):
        weights = found.get(f"{name.removesuffix('bias')}linear.weight") if name.endswith("bias") else None
        units.append(found[name] if weights is None else weights.reshape(_per_layer(tensor)))
    return units


def _size(name: str, tensor: Tensor) -> Tensor:
    if tensor.ndim < 2:  # one number per layer
        return torch.full_like(tensor, NUMBERS)
    size = tensor.square().mean(tuple(range(1, tensor.ndim)), keepdim=True).sqrt()
    size = torch.where(size > 0, size, tensor[0].numel() ** -0.5)
    return size if _in_chain(name) else MATRICES * size
