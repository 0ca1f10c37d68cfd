# pyright: reportPrivateImportUsage=false
"""An optimiser without a learning rate: steps relative to the size of each layer, their length found from the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torchlift.core.checks import check_number, check_positive
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.sweeps.centring import SMALL, Centring, Mean
from torchlift.sweeps.orthogonal import ALIKE, orthogonalise
from torchlift.sweeps.parameter_groups import parameter_groups

#: Gradients smaller than this share of a layer's largest so far shorten the steps: they are rounding errors soon.
FLOOR = 1e-4
#: How far numbers that are learned by their logarithms move where layers move by ρ of their size.
LOGARITHMS = 12.0
#: The distance is estimated in each of the first steps and less and less often later: it hardly changes then.
FIRST_STEPS, SOME_STEPS, SOME_EVERY, LATER_EVERY = 32, 256, 4, 32
#: Steps between two updates of the average, which cost as much as a tenth of a step.
AVERAGE_EVERY = 5
#: Entries that are moved together, while they are in the cache: 4 MiB in single precision.
BUNDLE = 1 << 20
#: Rows of each layer from which the distance is estimated: all of them would cost as much as the step.
ROWS = 64

KINDS = ("dense", "entries", "logarithm")
_VECTORS = ("second", "peak", "units")
_ALL: Any = "all parameters"  # a key of the state beside the parameters


class RelativeStep(torch.optim.Optimizer):
    """Momentum steps that move every layer by the same share ρ of its size, ρ found on the way.

        optimiser = tl.RelativeStep(model)

    With g_l the gradient of layer l (centred, see `Centring`) and c_l the root
    mean square of its starting weights,

        q_l ← β₂q_l + (1 − β₂) mean(g_l²),   ĝ_l = g_l/√q̂_l,   m ← βm + (1 − β)ĝ
        x_l ← x_l − γ ρ c_l m̂_l

    where γ is the group's `lr`, 1 unless a scheduler changes it, and √q̂_l counts
    as at least 10⁻⁴ of its largest value so far, so that steps shorten once the
    loss is fitted to rounding. One q_l per dense layer keeps the direction of its
    gradient, which noise pixels hardly touch; elsewhere q has one number per
    entry and m averages g, so that steps are those of Adam, x ← x − γ ρ c_l m̂/√q̂.
    Numbers learned by their logarithms have c = 12, and never more than the first
    ρ. ρ is the largest lower bound seen so far of the distance to a solution, in
    units of c:

        r ← β₃r + (1 − β₃) γρ² ⟨ĝ, x₀ − x⟩,   s ← β₃s + (1 − β₃) γρ² c ĝ
        ρ ← max(ρ, r / Σ_l √n_l ‖s_l‖₂)       (‖s_l‖₁ where q has one number per entry)

    with one q per layer everywhere, so that entries count as much as they matter
    to the loss, x₀ − x in the centred coordinates too, and all of it from about
    64 rows of every layer, evenly spaced, in every step at first and ever less
    often later. It is a bound where ⟨g_l, x_l − x*_l⟩ ≥ 0 for all l, such as in one
    dense layer with squared errors; elsewhere it is an estimate. Nothing is
    read by the host: no device waits in a step.

    Dense layers that are much wider than the batch move along the orthogonal
    factor of g_l, of root mean square 1, in place of ĝ_l, if the network puts out
    many numbers: see `torchlift.sweeps.orthogonal`. It is made from what the layers
    see, so it needs a module and centring.

    A running average of the parameters is kept, which is better than the last
    ones while steps are long: `swap_average` exchanges both, once before and once
    after an evaluation. A gradient that is missing counts as zero. Gradients of
    centred weights are overwritten by their centred form.

    Arguments:
        params: a module, whose layers say what their parameters are; or groups as `parameter_groups` describes them,
            or plain tensors, which then count as entries and are not centred.
        lr: γ.
        start: the first ρ, and the least.
        limit: the largest sum of ρ over the layers. One step can then change what the whole network amplifies by a
            factor e^limit at most; where layers are dead the estimate would grow without end. A network counts as two
            layers or more.
        momentum: β in [0, 1).
        memory: β₂ in [0, 1) for layers; the q of entries use √√√β₂, a longer memory.
        patience: β₃ in [0, 1).
        centring: eliminate the biases of affine layers; needs a module.
        average: weight of the past in the average, 0 for none.

    Reference: Mishchenko and Defazio, Prodigy: an expeditiously adaptive parameter-free learner (2024),
    whose estimate of the distance this is, in another norm.
    """

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        lr: float = 1.0,
        *,
        start: float = 0.015,
        limit: float = 1.0,
        momentum: float = 0.9,
        memory: float = 0.99,
        patience: float = 0.99,
        centring: bool = True,
        average: float = 0.98,
    ) -> None:
        self.start, self.limit = (
            check_positive("RelativeStep start", start),
            check_positive("RelativeStep limit", limit),
        )
        for name, value in (("momentum", momentum), ("memory", memory), ("patience", patience), ("average", average)):
            if not 0 <= check_number(f"RelativeStep {name}", value) < 1:
                invalid_value(f"RelativeStep {name}", "a number in [0, 1)", value)
        if not isinstance(centring, bool):
            invalid_type("RelativeStep centring", "True or False", centring)
        if check_number("RelativeStep lr", lr) < 0:
            invalid_value("RelativeStep lr", "a number >= 0", lr, "1 is the step that is found; a scheduler lowers it.")
        self.momentum, self.memory, self.patience, self.average = momentum, memory, patience, average
        module = params if isinstance(params, nn.Module) else None
        groups: Any = params if module is None else parameter_groups(module)
        self.mean_inputs: Callable[[list[Mean]], None] | None = None
        """Makes mean inputs those of all processes that share a batch; None where the whole batch is here."""
        self._parts: list[_Part] | None = None
        self._most = 0.5
        super().__init__(groups, {"lr": float(lr), "kind": "entries", "stacked": False, "layers": 0, "scale": 1.0})
        self._centring = None if module is None or not centring else Centring(module)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if param_group["kind"] not in KINDS:
            self.param_groups.pop()
            invalid_value("RelativeStep kind", f"one of {', '.join(map(repr, KINDS))}", repr(param_group["kind"]))
        self._parts = None

    def listen(self, centring: Centring) -> None:
        """Ask this one for mean inputs from now on: where the layers' work is done by a copy of the module."""
        if self._centring is not None:
            self._centring = centring

    @property
    def relative_size(self) -> float:
        """ρ; makes the device wait."""
        return float(self.state[_ALL]["rho"]) if _ALL in self.state else self.start

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parts = self._parts or self._arrange()
        means = [] if self._centring is None else self._centring.take()
        if self.mean_inputs is not None:
            self.mean_inputs(means)
        own = self.state[_ALL]
        own["count"] += 1
        count = own["count"]
        estimating = count <= FIRST_STEPS or count % (SOME_EVERY if count <= SOME_STEPS else LATER_EVERY) == 0
        own["estimates"] += estimating
        by_weight = {id(mean.weight): mean for mean in means}
        sums = []
        for part in parts:  # one after the other, while they are in the cache
            gradients = [_gradient(tensor) for tensor in part.tensors]
            centred = part.centre(gradients, by_weight)
            roots = self._roots(part, gradients, own) if part.dense or estimating else None
            if estimating and roots is not None:
                sums.append(self._estimate(part, gradients, roots, centred, own))
            move = self._move_layers if part.dense else self._move_entries
            move(part, gradients, roots, centred, own)
        if estimating:
            self._lengthen(torch.stack(sums).sum(0), own)
        if self.average and count % AVERAGE_EVERY == 0:
            self._update_average(parts, count)
        return loss

    @torch.no_grad()
    def swap_average(self) -> None:
        """Exchange the parameters and their average; twice gives back the parameters."""
        for group in self.param_groups:
            for parameter in group["params"]:
                average = self.state[parameter].get("average") if parameter in self.state else None
                if average is not None:
                    held = parameter.clone()
                    parameter.copy_(average)
                    average.copy_(held)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self._parts = None

    # -- a step in parts ----------------------------------------------------------------------------------------------

    def _arrange(self) -> list[_Part]:
        """Where everything lies; makes the state of parameters that have none."""
        entries = _entries(self.param_groups)
        for entry in entries:
            if "momentum" not in self.state[entry.tensor]:
                self._start(entry)
        first, rows = entries[0].tensor, entries[-1].rows.stop
        reference = torch.zeros((), dtype=torch.promote_types(first.dtype, torch.float32), device=first.device)
        self._most = self.limit / max(sum(group["layers"] for group in self.param_groups), 2)
        if _ALL not in self.state:
            zeros = reference.new_zeros(rows)
            self.state[_ALL] = {
                "count": 0, "estimates": 0, "rho": torch.full_like(reference, min(self.start, self._most)),
                "gain": reference.clone(), "second": zeros, "peak": zeros.clone(),
                "units": torch.cat([entry.units().to(zeros) for entry in entries]),
            }  # fmt: skip
        elif len(self.state[_ALL]["second"]) != rows:
            invalid_value("RelativeStep", "the parameters that it has begun with", "others", "Make a new optimiser.")
        elif "weights" in self.state[_ALL]:
            hint = "Its momentum is kept in other units now: begin anew from the parameters."
            invalid_value("RelativeStep state", "one of this version", "one of an earlier version", hint)
        own = self.state[_ALL]
        for name in ("rho", "gain", *_VECTORS):
            own[name] = own[name].to(reference)
        self._parts = [_Part(bundle, self.state, own) for bundle in _bundles(entries)]
        return self._parts

    def _start(self, entry: _Entry) -> None:
        rows = entry.some(entry.tensor.detach())
        self.state[entry.tensor] |= {
            "momentum": torch.zeros_like(entry.tensor, memory_format=torch.preserve_format),
            "origin": rows.clone(),
            "total": torch.zeros_like(rows),
        }
        if entry.kind != "dense":
            self.state[entry.tensor]["second"] = torch.zeros_like(entry.tensor, memory_format=torch.preserve_format)

    def _roots(self, part: _Part, gradients: list[Tensor], own: dict[str, Any]) -> Tensor:
        """√q̂ of every layer, at least its floor, after an update of q and of the peaks."""
        # entries have a q of their own; that of their layers only weighs the distance
        count = own["count" if part.dense else "estimates"]
        seen = gradients if part.dense else part.some(gradients)
        part.squares = part.mean_squares(seen)
        part.second.lerp_(part.squares, 1 - self.memory)
        roots = (part.second / (1 - self.memory**count)).sqrt_()
        torch.maximum(part.peak, roots, out=part.peak)
        return torch.maximum(roots, _floor(part.peak))

    def _estimate(
        self, part: _Part, gradients: list[Tensor], roots: Tensor, means: Sequence[_Centred], own: dict[str, Any]
    ) -> Tensor:
        """⟨ĝ, x₀ − x⟩ and the size of s, which is updated in place, over the layers of a part."""
        moved = torch._foreach_sub(part.origins, part.some([tensor.detach() for tensor in part.tensors]))
        for weight, bias, mean in means:
            moved[bias].add_(mean.pull(moved[weight], part.entries[weight].every))
        scaled = torch._foreach_div(part.some(gradients), part.pieces(roots))
        inner = torch.stack([torch.dot(a.reshape(-1), b.reshape(-1)) for a, b in zip(moved, scaled, strict=True)])
        torch._foreach_mul_(part.totals, self.patience)
        weights = part.pieces(part.units * self._distance_weight(own))
        torch._foreach_addcmul_(part.totals, scaled, weights)
        sizes = [entry.dual_norm(total) for entry, total in zip(part.entries, part.totals, strict=True)]
        return torch.stack([inner.sum(), torch.stack(sizes).sum()]).to(own["rho"])

    def _distance_weight(self, own: dict[str, Any]) -> Tensor:
        gamma = max(float(group["lr"]) for group in self.param_groups)
        return own["rho"].square() * ((1 - self.patience) * gamma)

    def _lengthen(self, sums: Tensor, own: dict[str, Any]) -> None:
        """The new r and ρ, for the steps to come."""
        own["gain"] = own["gain"] * self.patience + self._distance_weight(own) * sums[0]
        bound = own["gain"] / sums[1].clamp(min=torch.finfo(sums.dtype).tiny)
        own["rho"] = torch.maximum(own["rho"], bound).clamp_(max=self._most)

    def _move_layers(
        self,
        part: _Part,
        gradients: list[Tensor],
        roots: Tensor | None,
        means: Sequence[_Centred],
        own: dict[str, Any],
    ) -> None:
        assert roots is not None  # asked for in every step
        scales = part.units * ((1 - self.momentum) / roots)  # of a gradient in m, which is c m̂ but for the correction
        rates = own["rho"] * part.rates() / (1 - self.momentum ** own["count"])
        rows = part.rows(gradients)
        scales = self._orthogonalise(part, rows, scales, means)
        if part.host:
            part.move_by_numbers(rows, scales.tolist(), rates.tolist(), self.momentum)
        else:
            torch._foreach_mul_(part.row_momenta, self.momentum)
            torch._foreach_addcmul_(part.row_momenta, rows, part.numbers(scales))
            torch._foreach_addcmul_(part.row_tensors, part.row_momenta, part.numbers(rates), value=-1.0)
        for weight, bias, mean in means:
            rate = rates if rates.ndim == 0 else rates[part.firsts[weight]]
            mean.add_pull_(part.tensors[bias], part.momenta[weight], float(rate) if part.host else rate)

    def _orthogonalise(self, part: _Part, rows: list[Tensor], scales: Tensor, means: Sequence[_Centred]) -> Tensor:
        """Put msgn(g) in place of gradients whose factors are known; returns their scales, of mean square 1 too.

        A gradient with other terms than those of its factors, such as that of a penalty, stays as it is.
        """
        known = {
            part.firsts[weight] + layer: factors
            for weight, _, mean in means
            if mean.factors
            for layer, factors in mean.centred_factors().items()
        }
        # steps shorten where gradients are rounding errors, as those of other layers do
        sizes = (part.squares.sqrt() / _floor(part.peak)).clamp_(max=1) if known else part.squares
        for samples in sorted({len(factors.inputs) for factors in known.values()}):
            places = [place for place, factors in known.items() if len(factors.inputs) == samples]
            made = orthogonalise([known[place] for place in places])
            for place, (direction, square, energy) in zip(places, made, strict=True):
                alike = (part.squares[place] - energy).abs() <= ALIKE * energy
                size = part.units[place] * sizes[place] * (1 - self.momentum)
                scales[place] = torch.where(alike, size * square.clamp(min=_tiny(square)).rsqrt(), scales[place])
                if not part.host:
                    rows[place] = torch.where(alike, direction, rows[place])
                elif alike:
                    rows[place] = direction
        return scales

    def _move_entries(
        self,
        part: _Part,
        gradients: list[Tensor],
        roots: Tensor | None,
        means: Sequence[_Centred],
        own: dict[str, Any],
    ) -> None:
        """With one q per entry, by torch's fused step of Adam where it serves, which reads everything once."""
        count, memory = own["count"], self.memory ** (1 / 8)
        before = [mean.pull(part.tensors[weight]) for weight, _, mean in means]
        # Logarithms keep to their first steps: what the distance of matrices is says nothing about theirs.
        rho = torch.where(part.logarithms, own["rho"].clamp(max=self.start), own["rho"])
        lengths = part.pieces(part.units * (rho * part.rates()))
        if roots is not None and count > 1:
            floors = part.pieces(_floor(part.peak).square_().mul_(1 - memory ** (count - 1)))
            for second, floor in zip(part.seconds, floors, strict=True):
                torch.maximum(second, floor, out=second)
        steps = torch.full((), float(count), device=own["rho"].device)
        for entry, g, m, q, length in zip(part.entries, gradients, part.momenta, part.seconds, lengths, strict=True):
            x, eps = entry.tensor, torch.finfo(entry.tensor.dtype).tiny ** 0.5
            if not _fused_adam_serves(x):
                m.lerp_(g, 1 - self.momentum)
                q.lerp_(g.square(), 1 - memory)
                direction = m / (q / (1 - memory**count)).sqrt_().add_(eps)
                x.addcmul_(direction, length / (1 - self.momentum**count), value=-1.0)
                continue
            for xi, gi, mi, qi, rate in entry.layer_by_layer(x, g, m, q, length):
                torch._fused_adam_(
                    [xi], [gi], [mi], [qi], [], [steps], lr=rate, beta1=self.momentum, beta2=memory, weight_decay=0.0,
                    eps=eps, amsgrad=False, maximize=False,
                )  # fmt: skip
            torch.autograd.graph.increment_version((x, m, q))  # which the fused step forgets
        for (weight, bias, mean), pull in zip(means, before, strict=True):
            part.tensors[bias].sub_(mean.pull(part.tensors[weight]) - pull)

    def _update_average(self, parts: Sequence[_Part], count: int) -> None:
        """Every few steps; over all steps at first, so that the start is forgotten."""
        weight = max(1 - self.average**AVERAGE_EVERY, 1 / (1 + 0.2 * count / AVERAGE_EVERY))
        for part in parts:
            states = [self.state[tensor] for tensor in part.tensors]
            if any("average" not in state for state in states):
                for tensor, state in zip(part.tensors, states, strict=True):
                    state["average"] = tensor.detach().clone()
            else:
                torch._foreach_lerp_([state["average"] for state in states], part.tensors, weight)


@dataclass(eq=False)
class _Entry:
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
        sizes = self.tensor.shape[1:] if self.stacked else self.tensor.shape
        #: Only every so many-th row is looked at for the distance; rows of a bias are those of its weights.
        self.every = max(1, sizes[0] // ROWS) if sizes else 1

    @property
    def layers(self) -> int:
        return len(self.tensor) if self.stacked else 1

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.layers)

    @property
    def shape(self) -> tuple[int, ...]:
        """One number per layer, for broadcasting."""
        return (self.layers, *[1] * (self.tensor.ndim - 1)) if self.stacked else (1,) * max(self.tensor.ndim, 1)

    def some(self, tensor: Tensor) -> Tensor:
        """These rows."""
        if self.every == 1:
            return tensor
        return tensor[:, :: self.every] if self.stacked else tensor[:: self.every]

    def units(self) -> Tensor:
        """c of every layer: the root mean square of its weights; a constant for logarithms."""
        if self.kind == "logarithm":
            return torch.full((self.layers,), LOGARITHMS, dtype=torch.promote_types(self.tensor.dtype, torch.float32))
        weight = self.weight.detach()
        alike = self.stacked and weight.ndim > 0 and len(weight) == self.layers
        flat = weight.reshape(self.layers, -1) if alike else weight.reshape(1, -1)
        size = flat.to(torch.promote_types(flat.dtype, torch.float32)).square().mean(1).sqrt()
        return self.group["scale"] * torch.where(size > 0, size, flat.shape[1] ** -0.5).expand(self.layers)

    def dual_norm(self, total: Tensor) -> Tensor:
        """Σ_l √n_l ‖s_l‖₂ with one q per layer, ‖s‖₁ with one per entry: the same for layers of one entry."""
        if self.kind != "dense":
            return total.abs().sum()  # several times as fast as a norm of order 1
        if not self.stacked:
            return torch.linalg.vector_norm(total) * total.numel() ** 0.5
        return torch.linalg.vector_norm(total.flatten(1), dim=1).sum() * total[0].numel() ** 0.5

    def layer_by_layer(self, *tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
        """Tensors like this one, and one number per layer as the last, layer by layer."""
        *like, numbers = tensors
        if not self.stacked:
            return [(*like, numbers.reshape(()))]
        if self.tensor.ndim == 1:  # a stack of numbers, which have one length
            return [(*like, numbers.flatten()[0])]
        return zip(*(tensor.unbind(0) for tensor in like), numbers.flatten().unbind(0), strict=True)


class _Centred(NamedTuple):
    """Places of a weight and its bias in a part, and the mean input of their layer."""

    weight: int
    bias: int
    mean: Mean


class _Part:
    """Parameters of one kind that are moved together, with views of the vectors that hold one number per layer."""

    def __init__(self, entries: list[_Entry], state: Mapping[Any, dict[str, Any]], own: dict[str, Any]) -> None:
        self.entries = entries
        self.dense = entries[0].kind == "dense"
        self.tensors = [entry.tensor for entry in entries]
        self.places = {id(tensor): i for i, tensor in enumerate(self.tensors)}
        states = [state[tensor] for tensor in self.tensors]
        self.momenta, self.origins, self.totals = (
            [s[name] for s in states] for name in ("momentum", "origin", "total")
        )
        self.seconds = [] if self.dense else [s["second"] for s in states]
        rows = slice(entries[0].rows.start, entries[-1].rows.stop)
        self.second, self.peak, self.units = (own[name][rows] for name in _VECTORS)
        self.squares = self.second
        """Mean squares of the last gradients."""
        self.sizes = [entry.layers for entry in entries]
        self.firsts = [entry.first - rows.start for entry in entries]
        first = self.tensors[0]
        alike = all(t.dtype == own["rho"].dtype and t.device == first.device for t in self.tensors)
        self._alike = alike
        self._plain = alike and not any(entry.stacked for entry in entries)
        seen = [tensor.numel() if self.dense else entry.some(tensor).numel() for entry, tensor in self._pairs()]
        counts = [torch.full((e.layers,), max(n // e.layers, 1.0)) for e, n in zip(entries, seen, strict=True)]
        self._counts = torch.cat(counts).to(own["rho"])
        kinds = [entry.kind == "logarithm" for entry in entries for _ in range(entry.layers)]
        self.logarithms = torch.tensor(kinds, device=own["rho"].device)
        self._rates: tuple[tuple[float, ...], Tensor | float] = ((), 1.0)
        #: Whether the host may read numbers: it would wait for any other device.
        self.host = alike and first.device.type == "cpu" and hasattr(torch, "_fused_sgd_")
        self.row_momenta = self.rows(self.momenta)
        small = [momentum.numel() <= SMALL for momentum in self.row_momenta]
        self._small = [i for i, each in enumerate(small) if each]
        self._large = [i for i, each in enumerate(small) if not each]

    @property
    def row_tensors(self) -> list[Tensor]:
        """Views made anew, since a parameter may be given other memory."""
        return self.rows(self.tensors)

    def rows(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One tensor per layer."""
        if not any(entry.stacked for entry in self.entries):
            return list(tensors)
        pairs = zip(self.entries, tensors, strict=True)
        return [row for entry, tensor in pairs for row in (tensor.unbind(0) if entry.stacked else (tensor,))]

    def numbers(self, vector: Tensor) -> tuple[Tensor, ...]:
        """One number per layer, in the dtype of its parameter."""
        numbers = vector.expand(len(self.row_momenta)).unbind(0)
        return tuple(number.to(like) for number, like in zip(numbers, self.row_momenta, strict=True))

    def move_by_numbers(
        self, gradients: list[Tensor], scales: list[float], rates: float | list[float], beta: float
    ) -> None:
        """m ← βm + scale g, x ← x − rate m in one pass over memory, by torch's fused step of SGD.

        Large layers one after the other, small ones in one call.
        """
        options = {"weight_decay": 0.0, "nesterov": False, "maximize": False, "is_first_step": False, "momentum": beta}
        tensors, momenta, alone = self.row_tensors, self.row_momenta, self._large
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

    def rates(self) -> Tensor | float:
        """γ of every layer, or of all where it is the same."""
        rates = tuple(float(entry.group["lr"]) for entry in self.entries)
        if rates != self._rates[0]:
            values = [rate for rate, size in zip(rates, self.sizes, strict=True) for _ in range(size)]
            alike = len(set(rates)) == 1
            self._rates = rates, rates[0] if alike else torch.tensor(values).to(self.units)
        return self._rates[1]

    def some(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Of each the rows from which the distance is estimated."""
        return [entry.some(tensor) for entry, tensor in zip(self.entries, tensors, strict=True)]

    def pieces(self, vector: Tensor) -> tuple[Tensor, ...]:
        """A vector over all layers as one tensor per parameter, shaped to broadcast, in the parameter's dtype."""
        if self._plain:
            return vector.unbind(0)
        parts = zip(self.entries, vector.split(self.sizes), strict=True)
        return tuple(part.view(entry.shape).to(entry.tensor) for entry, part in parts)

    def mean_squares(self, tensors: list[Tensor]) -> Tensor:
        """Of every layer."""
        norms = torch._foreach_norm(self.rows(tensors))
        norms = norms if self._alike else [norm.to(self._counts) for norm in norms]
        return torch.stack(norms).square_().div_(self._counts)

    def centre(self, gradients: list[Tensor], means: Mapping[int, Mean]) -> list[_Centred]:
        """Overwrite gradients of weights by their centred form; returns whose."""
        centred = []
        for place, tensor in enumerate(self.tensors):
            mean = means.get(id(tensor))
            if mean is not None:
                bias = self.places[id(mean.bias)]
                mean.centre_(gradients[place], gradients[bias])
                centred.append(_Centred(place, bias, mean))
        return centred

    def _pairs(self) -> Iterable[tuple[_Entry, Tensor]]:
        return zip(self.entries, self.tensors, strict=True)


def _entries(groups: Sequence[dict[str, Any]]) -> list[_Entry]:
    """All parameters, dense ones first, with their places among the layers."""
    entries: list[_Entry] = []
    for group in sorted(groups, key=lambda group: group["kind"] != "dense"):
        for tensor in group["params"]:
            first = entries[-1].rows.stop if entries else 0
            entries.append(_Entry(tensor, group["params"][0], group, first))
    return entries


def _bundles(entries: Sequence[_Entry]) -> list[list[_Entry]]:
    """Neighbours of one kind that fit the cache together; a group is not divided."""
    bundles: list[list[_Entry]] = []
    room, last = 0, None
    for entry in entries:
        together = last is not None and entry.group is last.group
        same = last is not None and (entry.kind == "dense") == (last.kind == "dense")
        if not together and (not same or entry.tensor.numel() > room):
            bundles.append([])
            room = BUNDLE
        bundles[-1].append(entry)
        room, last = room - entry.tensor.numel(), entry
    return bundles


def _gradient(tensor: Tensor) -> Tensor:
    gradient = tensor.grad
    if gradient is None:
        return torch.zeros_like(tensor, memory_format=torch.preserve_format)
    return gradient.to_dense() if gradient.is_sparse else gradient


def _tiny(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).tiny ** 0.5


def _floor(peak: Tensor) -> Tensor:
    return (FLOOR * peak).clamp_(min=torch.finfo(peak.dtype).tiny ** 0.5)


def _fused_adam_serves(tensor: Tensor) -> bool:
    """It is not public, and not there for every device."""
    return hasattr(torch, "_fused_adam_") and tensor.device.type in ("cpu", "cuda") and tensor.is_floating_point()
