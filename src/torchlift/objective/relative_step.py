# pyright: reportPrivateImportUsage=false
"""Steps relative to the size of each layer, whose length is found from the data: no learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_type
from torchlift.core.tensors import Point, clone, zeros_like
from torchlift.objective.centring import centre, centre_differences, uncentre_points
from torchlift.objective.rules import BLOCK, SweepRule
from torchlift.objective.sweep import Sweep
from torchlift.solvers.momentum import check_fraction

#: Gradients smaller than this share of a layer's largest so far shorten the steps: they are rounding errors soon.
FLOOR = 1e-4
#: The distance is estimated from every one of the first steps, later from every few: it costs as much as the step.
ALWAYS, OFTEN = 32, 4


@dataclass(frozen=True, eq=False)
class RelativeState:
    """What `RelativeStep` remembers; points are like the parameters.

    Arguments:
        origin: x₀.
        first: m.
        total: s.
        second: q, one number per layer or per entry.
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
    peak: Point
    units: Point
    rho: Tensor
    gain: Tensor
    count: int = 0


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
    parameters outside dense layers have one q per entry, as in Adam. ρ is the
    largest lower bound seen so far of the distance to a solution, in units of c:

        r ← β₃r + (1 − β₃) γρ² ⟨ĝ, x₀ − x⟩,   s ← β₃s + (1 − β₃) γρ² c ĝ
        ρ ← max(ρ, r / Σ_l √n_l ‖s_l‖₂)       (‖s_l‖₁ where there is one q per entry)

    with x₀ − x in the centred coordinates too, in every step at first and in every
    fourth later. It is a bound, of
    max_l ‖x₀ − x*‖/(c_l √n_l), where ⟨g_l, x_l − x*_l⟩ ≥ 0 for all l, such as
    in one dense layer with squared errors. Elsewhere it is an estimate.

    Arguments:
        start: the first ρ, and the least.
        limit: the largest sum of ρ over all layers. One step can then change what the whole network amplifies
            by a factor e^limit at most; where layers sleep the estimate would grow without end.
        momentum: β in [0, 1).
        memory: β₂ in [0, 1) for layers; entries use √√√β₂, a longer memory.
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
        second = [
            tensor.new_zeros(_per_layer(tensor)) if name in dense else torch.zeros_like(tensor)
            for name, tensor in zip(names, point[BLOCK], strict=True)
        ]
        some = point.tensors[0]
        peak = Point({BLOCK: [tensor.new_zeros(_per_layer(tensor)) for tensor in point[BLOCK]]})
        units = Point({BLOCK: _units(names, point[BLOCK])})
        rho = some.new_full((), min(self.start, self._most(names, point)))
        return RelativeState(
            clone(point),
            zeros_like(point),
            zeros_like(point),
            Point({BLOCK: second}),
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
        dense = _dense(sweep)
        if not reuse:  # in new memory, which costs several times as much as the arithmetic
            point = clone(point)
            state = replace(state, first=clone(state.first), total=clone(state.total), second=clone(state.second))
        roots, peak = self._roots(gradients, state, [name in dense for name in names], k)
        first = state.first.tensors
        torch._foreach_mul_(first, self.momentum)
        torch._foreach_addcdiv_(first, gradients, roots, value=1 - self.momentum)
        rho, gain = state.rho, state.gain
        if k <= ALWAYS or k % OFTEN == 0:
            torch._foreach_div_(gradients, roots)
            moved = torch._foreach_sub(state.origin.tensors, point.tensors)
            centre_differences(dict(zip(names, moved, strict=True)), means)
            rho, gain = self._distance(moved, gradients, state, gamma)
            rho = rho.clamp(max=self._most(names, point))
        lengths = torch._foreach_mul(state.units.tensors, rho * (-gamma / (1 - self.momentum**k)))
        torch._foreach_addcmul_(point.tensors, first, lengths)
        uncentre_points(names, point.tensors, first, lengths, means)
        return point, replace(state, peak=Point({BLOCK: peak}), rho=rho, gain=gain, count=k)

    def size(self, state: RelativeState, count: int) -> float:
        return float(state.rho)

    def _most(self, names: Sequence[str], point: Point) -> float:
        """The largest ρ: `limit` divided by the number of layers."""
        weights = [t for name, t in zip(names, point[BLOCK], strict=True) if t.ndim > 1 and not name.endswith("bias")]
        return self.limit / max(1, sum(map(len, weights)))

    def _roots(
        self, gradients: list[Tensor], state: RelativeState, by_layers: list[bool], k: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """√q̂, at least its floor, after an update of q in place; the new peaks."""
        roots, peaks = [], []
        for g, q, peak, by_layer in zip(gradients, state.second.tensors, state.peak.tensors, by_layers, strict=True):
            memory = self.memory if by_layer else self.memory ** (1 / 8)
            if by_layer:
                q.lerp_(_root_mean_square(g).square_().view(q.shape), 1 - memory)
            else:
                q.mul_(memory).addcmul_(g, g, value=1 - memory)
            root = (q / (1 - memory**k)).sqrt_()
            size = root if by_layer else _root_mean_square(root)
            peak = torch.maximum(peak, size.view(peak.shape))
            least = (FLOOR * peak).clamp_(min=torch.finfo(g.dtype).tiny ** 0.5)
            roots.append(torch.maximum(root, least, out=root))
            peaks.append(peak)
        return roots, peaks

    def _distance(
        self, moved: Sequence[Tensor], gradients: list[Tensor], state: RelativeState, gamma: float
    ) -> tuple[Tensor, Tensor]:
        """The new ρ and r from x₀ − x, in the coordinates of the gradients; s in place."""
        weight = state.rho.square() * ((1 - self.patience) * gamma)
        inner = torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in zip(moved, gradients, strict=True)]).sum()
        gain = state.gain * self.patience + weight * inner
        total = state.total.tensors
        torch._foreach_mul_(total, self.patience)
        torch._foreach_addcmul_(total, gradients, torch._foreach_mul(state.units.tensors, weight))
        size = torch.stack([_dual_norm(s, q) for s, q in zip(total, state.second.tensors, strict=True)]).sum()
        tiny = torch.finfo(size.dtype).tiny
        return torch.maximum(state.rho, gain / size.clamp(min=tiny)), gain


def _root_mean_square(tensor: Tensor) -> Tensor:
    """Of each layer, (J,)."""
    return torch.linalg.vector_norm(tensor.reshape(len(tensor), -1), dim=1) / tensor[0].numel() ** 0.5


def _dual_norm(s: Tensor, q: Tensor) -> Tensor:
    """Σ_l √n_l ‖s_l‖₂ with one q per layer, ‖s‖₁ with one per entry: the same for layers of one entry."""
    if s.shape == q.shape:
        return torch.linalg.vector_norm(s, ord=1)
    return torch.linalg.vector_norm(s.flatten(1), dim=1).sum() * s[0].numel() ** 0.5


def _dense(sweep: Sweep) -> set[str]:
    """Names of the weights and biases of dense layers."""
    names = {layer.weight_name for layer in sweep.layers}
    return names | {layer.bias_name for layer in sweep.layers if layer.bias_name is not None}


def _per_layer(tensor: Tensor) -> tuple[int, ...]:
    return (len(tensor), *(1,) * (tensor.ndim - 1))


def _units(names: Sequence[str], tensors: Sequence[Tensor]) -> list[Tensor]:
    """c: the size of each layer's weights; biases have that of their weights, logarithms of numbers have 1."""
    found = {name: _size(tensor) for name, tensor in zip(names, tensors, strict=True)}
    units = []
    for name, tensor in zip(names, tensors, strict=True):
        weights = found.get(f"{name.removesuffix('bias')}linear.weight") if name.endswith("bias") else None
        units.append(found[name] if weights is None else weights.reshape(_per_layer(tensor)))
    return units


def _size(tensor: Tensor) -> Tensor:
    if tensor.ndim < 2:  # one number per layer
        return torch.ones_like(tensor)
    size = tensor.square().mean(tuple(range(1, tensor.ndim)), keepdim=True).sqrt()
    return torch.where(size > 0, size, tensor[0].numel() ** -0.5)
