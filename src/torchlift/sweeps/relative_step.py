# pyright: reportPrivateImportUsage=false
"""An optimiser without a learning rate: steps relative to the size of each layer, their length found from the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, _utils, nn

from torchlift.core.checks import check_interval, check_number, check_positive
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.signatures import explain
from torchlift.sweeps.centring import SMALL, Centring, Mean
from torchlift.sweeps.orthogonal import ALIKE, is_narrow, orthogonal_directions, orthogonalise
from torchlift.sweeps.parameter_groups import parameter_groups

#: Gradients smaller than this share of a layer's largest so far shorten the steps: they are rounding errors soon.
FLOOR = 1e-4
#: The distance is estimated in each of the first steps and less and less often later: it hardly changes then.
FIRST_STEPS, SOME_STEPS, SOME_EVERY, LATER_EVERY = 32, 256, 4, 32
#: Steps from which on they shorten with the root of their number: noise of gradients adds up otherwise.
LONG_RUN = 2000
#: ρ is so many times the estimate, which bounds the distance from below: short runs are ahead by it, long ones level.
LONGER = 2.0
#: Steps between two updates of the average, which cost as much as a tenth of a step, and the share of the steps so far
#: that it is made of at first: those before it would only hold short runs back.
AVERAGE_EVERY, AVERAGED = 5, 0.1
#: Sum of the first ρ over the layers of networks of so many layers or more, whose effects multiply; it falls to that.
FIRST_SUM, DEEP = 0.25, 50
#: Layers up to which the first ρ is that of any network; it falls to half of it in networks of twice as many.
SHALLOW = 5
#: Layers beyond which the sum of ρ over them may grow, as √L: changes of so many hardly all go the same way.
MANY_LAYERS = 20

#: How far numbers that are learned by their logarithms move where layers move by ρ of their size, and the largest ρ of
#: theirs: what the distance of matrices is says nothing about theirs.
LOGARITHMS, LOGARITHM_LIMIT = 12.0, 0.015
#: How far orthogonalised layers move where others move by ρ. Their steps have root mean square 1, those of momentum are
#: shorter where gradients of batches differ; the least momentum, in the units of others, that is not shortened; and the
#: largest ρ of theirs, beside half of that of others: steps in all directions leave none in which to recover.
ORTHOGONAL, FAINT, ORTHOGONAL_LIMIT = 0.6, 0.1, 0.1
#: Where steps in independent directions would end, in units of the starting size: their length does not fall with the
#: gradient, so that orthogonalised layers would grow as the root of the number of steps.
GROWTH = 2.0
#: An output layer decodes if it has at least so many outputs for each of its inputs.
DECODES = 0.5
#: Vectors that no layer owns move as if they were no smaller than this share of a start at random.
NEAR_ZERO = 0.1
#: Entries that are moved together, while they are in the cache: 4 MiB in single precision.
BUNDLE = 1 << 20
#: Entries of each layer from which the distance is estimated, in whole rows, and rows at least and at most: all of them
#: would cost as much as the step.
ENTRIES, FEWEST, MOST = 1 << 14, 16, 64

_VECTORS = ("second", "peak", "units")
"""What an optimiser keeps of every layer: mean squares of gradients, the largest root of them so far, and c."""

KINDS = ("dense", "entries", "logarithm")
_DEFAULTS: dict[str, Any] = {"kind": "entries", "stacked": False, "layers": 0, "scale": 1.0, "matrix": False}
_ALL: Any = "all parameters"  # a key of the state beside the parameters


class RelativeStep(torch.optim.Optimizer):
    """Momentum steps that move every layer by the same share ρ of its size, ρ found on the way.

        optimiser = tl.RelativeStep(model)

    With g_l the gradient of layer l (centred, see `Centring`) and c_l the root
    mean square of its starting weights,

        q_l ← β₂q_l + (1 − β₂) mean(g_l²),   ĝ_l = g_l/√q̂_l,   m ← βm + (1 − β)ĝ
        x_l ← x_l − γ ρ_k c_l m̂_l,   ρ_k = ρ min(1, √(2000/k))

    in step k, where γ is the group's `lr`, 1 unless a scheduler changes it, and √q̂_l counts
    as at least 10⁻⁴ of its largest value so far, so that steps shorten once the
    loss is fitted to rounding. One q_l per dense layer keeps the direction of its
    gradient, which noise pixels hardly touch; elsewhere q has one number per
    entry and m averages g, so that steps are those of Adam, x ← x − γ ρ_k c_l m̂/√q̂.
    Numbers learned by their logarithms have c = 12, and ρ = 0.015 at most. ρ is
    twice the largest lower bound seen so far of the distance to a solution, in
    units of c:

        r ← β₃r + (1 − β₃) γρ² ⟨ĝ, x₀ − x⟩,   s ← β₃s + (1 − β₃) γρ² c ĝ
        ρ ← max(ρ, 2r / Σ_l √n_l ‖s_l‖₂)      (‖s_l‖₁ where q has one number per entry)

    with one q per layer everywhere, so that entries count as much as they matter
    to the loss, x₀ − x in the centred coordinates too, and all of it from 16 to 64
    rows of every layer, evenly spaced, in every step at first and ever less
    often later. It is a bound where ⟨g_l, x_l − x*_l⟩ ≥ 0 for all l, such as in one
    dense layer with squared errors; elsewhere it is an estimate. Nothing is
    read by the host: no device waits in a step.

    Matrices of layers and filters with a short side (16 to 128 rows or columns, filters
    up to 256) move along the orthogonal factor of their momentum, of root mean square 1,
    by δ c_l, δ = 0.6 ρ_k with ρ at most 0.1 and half its limit; not a matrix that holds more than
    half of all weights. They shrink by δ²/8 in every step: steps in independent directions, which add
    δ² c² to the mean square, then end at 2 c.

    Dense layers that are much wider than the batch move along the orthogonal factor of
    g_l in place of ĝ_l, if the network puts out many numbers; it is made from what the
    layers see, so it needs a module and centring. See `torchlift.sweeps.orthogonal`.

    Means of outputs may be far off, and centred weights do not move them: where the output layer
    has at least half as many outputs as inputs, c of its bias is 1 + ‖ū‖² times that of its weights,
    so that it moves them as far as a step that is not centred.

    A running average of the parameters is kept, which is better than the last
    ones while steps are long: `swap_average` exchanges both, once before and once
    after an evaluation. A gradient that is missing counts as zero. Gradients of
    centred weights are overwritten by their centred form.

    Arguments:
        params: a module, whose layers say what their parameters are; or groups as `parameter_groups` describes them,
            or plain tensors, which then count as entries and are not centred.
        lr: γ.
        start: the first ρ, and the least, in networks of up to five layers; from ten layers on half of it, and of many
            layers L no more than max(1, 50/L)/(4L). Half of it too in unrolled algorithms, which no layer belongs to:
            they start at a method that works.
        limit: the largest sum of ρ over the layers, of L > 20 layers √(L/20) times that. One step can then change what
            20 layers amplify by a factor e^limit at most; where layers are dead the estimate would grow without end.
            A network counts as two layers or more.
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
        start: float = 0.03,
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
            check_interval(f"RelativeStep {name}", value, "[0, 1)")
        if not isinstance(centring, bool):
            invalid_type("RelativeStep centring", "True or False", centring)
        if check_number("RelativeStep lr", lr) < 0:
            invalid_value("RelativeStep lr", "a number >= 0", lr, "1 is the step that is found; a scheduler lowers it.")
        self.momentum, self.memory, self.patience, self.average = momentum, memory, patience, average
        module = params if isinstance(params, nn.Module) else None
        groups: Any = params if module is None else parameter_groups(module)
        self.mean_inputs: Callable[[list[Mean]], None] | None = None
        """Makes mean inputs those of all processes that share a batch; None where the whole batch is here."""
        self.directions: Callable[[list[Tensor]], list[Tensor]] = orthogonal_directions
        """Makes steps of orthogonalised layers from their momenta; processes that have the same ones divide this."""
        self.averaging = True
        """Whether parameters take part in the average: False while the loss says that they had better not."""
        self._parts: list[_Part] | None = None
        self._places: dict[int, tuple[_Part, int]] = {}
        self._most = 0.5
        super().__init__(groups, _DEFAULTS | {"lr": float(lr)})
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
            try:
                with torch.enable_grad():
                    loss = closure()
            except TypeError as error:
                explain(error)
                raise
        parts = self._parts or self._arrange()
        own = self.state[_ALL]
        count = own["count"] = own["count"] + 1
        estimating = count <= FIRST_STEPS or count % (SOME_EVERY if count <= SOME_STEPS else LATER_EVERY) == 0
        own["estimates"] += estimating
        self._listen(parts, estimating)
        terms: list[Tensor] = []
        for part in parts:  # one after the other, while they are in the cache
            gradients = part.gradients()
            for weight, bias, mean in part.centred:
                mean.centre_(gradients[weight], gradients[bias])
            roots = self._roots(part, part.mean_squares(gradients), count) if part.dense else None
            if estimating:
                roots = self._estimate(part, gradients, roots, terms, own)
            move = self._move_layers if part.dense else self._move_entries
            move(part, gradients, roots, own)
        if terms:
            self._lengthen(terms, own)
        if self.average and self.averaging and count % AVERAGE_EVERY == 0:
            self._update_average(parts, count)
        return loss

    @torch.no_grad()
    def keep_average(self) -> None:
        """Keep a copy of the average, or of the start where there is none yet: the fallback of retreats from now on."""
        for part in self._parts or self._arrange():
            for tensor in part.tensors:
                state = self.state[tensor]
                kept = state.get("average", tensor)
                if "fallback" in state:
                    state["fallback"].copy_(kept)
                else:
                    state["fallback"] = kept.detach().clone()

    @torch.no_grad()
    def retreat(self) -> None:
        """Begin anew from the average that was kept last, or else the present one: after steps that were too long.

        The first and the largest ρ are halved. What long steps led to is forgotten: momentum, sizes of gradients and
        the estimate of the distance.
        """
        parts, own = self._parts or self._arrange(), self.state[_ALL]
        for part in parts:
            for entry in part.entries:
                state = self.state[entry.tensor]
                average = state.get("average", entry.tensor)
                entry.tensor.copy_(average.copy_(state.get("fallback", average)))
                state["origin"].copy_(entry.some(entry.tensor))
                for name in ("momentum", "total", "second"):
                    if name in state:
                        state[name].zero_()
        for name in ("gain", "second", "peak"):
            own[name].zero_()
        own["count"], own["estimates"], own["retreats"] = 0, 0, own["retreats"] + 1
        own["rho"] = torch.full_like(own["rho"], self._bound_sizes(own["retreats"]))

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
        for group in self.param_groups:
            group.setdefault("matrix", False)  # which earlier versions did not know
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
        first_size = self._bound_sizes(self.state[_ALL].get("retreats", 0) if _ALL in self.state else 0)
        if _ALL not in self.state:
            zeros = reference.new_zeros(rows)
            self.state[_ALL] = {
                "count": 0, "estimates": 0, "retreats": 0, "rho": torch.full_like(reference, first_size),
                "gain": reference.clone(), "second": zeros, "peak": zeros.clone(),
                "units": _units(entries).to(zeros),
            }  # fmt: skip
        elif len(self.state[_ALL]["second"]) != rows:
            invalid_value("RelativeStep", "the parameters that it has begun with", "others", "Make a new optimiser.")
        elif "weights" in self.state[_ALL] or any(
            self.state[entry.tensor]["origin"].shape != entry.some(entry.tensor).shape
            or ("second" in self.state[entry.tensor]) != entry.scaled
            for entry in entries
        ):
            hint = "It keeps other numbers now: begin anew from the parameters."
            invalid_value("RelativeStep state", "one of this version", "one of an earlier version", hint)
        own = self.state[_ALL]
        own.setdefault("retreats", 0)  # which earlier versions did not count
        for name in ("rho", "gain", *_VECTORS):
            own[name] = own[name].to(reference)
        self._parts = [_Part(bundle, self.state, own) for bundle in _bundles(entries)]
        self._places = {id(tensor): (part, i) for part in self._parts for i, tensor in enumerate(part.tensors)}
        return self._parts

    def _bound_sizes(self, retreats: int) -> float:
        """Set the largest ρ, after so many retreats; returns the first."""
        counted = sum(group["layers"] for group in self.param_groups)
        layers = max(counted, 2)
        self._most = self.limit / math.sqrt(layers * min(layers, MANY_LAYERS)) * 0.5**retreats
        unrolled = counted == 0 and any(group["stacked"] for group in self.param_groups)
        share = 0.5 if unrolled else min(max(SHALLOW / layers, 0.5), 1)
        first = min(self.start * share, FIRST_SUM / layers * max(1, DEEP / layers))
        return min(first * 0.5**retreats, self._most)

    def _start(self, entry: _Entry) -> None:
        rows = entry.some(entry.tensor.detach())
        self.state[entry.tensor] |= {
            "momentum": torch.zeros_like(entry.tensor, memory_format=torch.preserve_format),
            "origin": rows.clone(),
            "total": torch.zeros_like(rows),
        }
        if entry.scaled:
            self.state[entry.tensor]["second"] = torch.zeros_like(entry.tensor, memory_format=torch.preserve_format)

    def _listen(self, parts: Sequence[_Part], estimating: bool) -> None:
        """Tell each part which of its layers are centred in this step."""
        if self._centring is None:
            return
        means = self._centring.take()
        if self.mean_inputs is not None:
            self.mean_inputs(means)
        for part in parts:
            part.centred = []
        for mean in means:
            part, weight = self._places[id(mean.weight)]
            part.centred.append(_Centred(weight, self._places[id(mean.bias)][1], mean))
        output = self._centring.last
        if estimating and means and (output is None or output.weight is means[-1].weight):
            self._free_output(means[-1])

    def _free_output(self, last: Mean) -> None:
        """Let the bias of an output layer that decodes move the outputs as far as a step that is not centred does.

        Such a step takes W along −∇b ūᵀ too, which moves the outputs by ‖ū‖² times what that of the bias does: means of
        outputs may be far off. Those of a few outputs are soon found, and a classifier would lose by the noise.
        """
        inputs = last.inputs if last.inputs.ndim == 1 else last.inputs[-1]
        if last.bias.shape[-1] < DECODES * len(inputs):
            return
        part, weight = self._places[id(last.weight)]
        before, after = part.places(weight)[-1], part.places(self._places[id(last.bias)][1])[-1]
        part.units[after] = part.units[before] * (1 + inputs.square().sum().to(part.units))

    def _roots(self, part: _Part, squares: Tensor, count: int) -> Tensor:
        """√q̂ of every layer, at least its floor, after an update of q and of the peaks."""
        part.squares = squares
        part.second.lerp_(squares, 1 - self.memory)
        roots = part.second.div(1 - self.memory**count).sqrt_().clamp_(min=_tiny(squares))
        torch.maximum(part.peak, roots, out=part.peak)
        return torch.maximum(roots, part.peak * FLOOR, out=roots)

    def _estimate(
        self, part: _Part, gradients: list[Tensor], roots: Tensor | None, terms: list[Tensor], own: dict[str, Any]
    ) -> Tensor:
        """Add a part's terms of the distance, while ρ can grow; returns the roots that scale its gradients there."""
        distance, largest = part.distance, self._largest(own)
        if largest and roots is not None:
            return roots
        distance.take(gradients)
        if roots is None:  # entries have a q of their own; that of their layers weighs the distance and bounds theirs
            roots = self._roots(part, distance.mean_squares(), own["estimates"])
        if largest:
            distance.release()
            return roots
        weights = part.numbers(part.units * self._distance_weight(own))
        found = distance.terms(part.tensors, part.centred, part.numbers(1 / roots), weights, self.patience)
        terms.append(torch.stack(found).to(own["rho"]))
        return roots

    def _largest(self, own: dict[str, Any]) -> bool:
        """Whether ρ cannot grow any more; False where the host would wait for a device to know."""
        return own["rho"].device.type == "cpu" and math.isclose(float(own["rho"]), self._most, rel_tol=1e-6)

    def _distance_weight(self, own: dict[str, Any]) -> Tensor:
        gamma = max(float(group["lr"]) for group in self.param_groups)
        return own["rho"].square() * ((1 - self.patience) * gamma)

    def _lengthen(self, terms: list[Tensor], own: dict[str, Any]) -> None:
        """The new r and ρ, for the steps to come."""
        inner, size = torch.stack(terms).sum(0).unbind(0)
        own["gain"] = own["gain"] * self.patience + self._distance_weight(own) * inner
        bound = own["gain"] / size.clamp(min=torch.finfo(size.dtype).tiny)
        own["rho"] = torch.maximum(own["rho"], LONGER * bound).clamp_(max=self._most)

    def _share(self, own: dict[str, Any], limit: float = math.inf) -> Tensor:
        """ρ, at most `limit`, shortened in long runs."""
        rho = own["rho"] if limit >= self._most else own["rho"].clamp(max=limit)
        return rho if own["count"] <= LONG_RUN else rho * math.sqrt(LONG_RUN / own["count"])

    def _move_layers(self, part: _Part, gradients: list[Tensor], roots: Tensor | None, own: dict[str, Any]) -> None:
        assert roots is not None  # made in every step
        scales = part.units.mul(1 - self.momentum).div_(roots)  # of a gradient in m, c m̂ but for the correction
        rates = self._share(own) * part.rates() / (1 - self.momentum ** own["count"])
        rows = part.by_layer(gradients)
        if any(mean.factors for weight, _, mean in part.centred if weight not in part.orthogonal):
            rows = self._orthogonalise(part, list(rows), scales)
        if part.host:
            numbers = rates.tolist()  # one where it is the same for all
            part.move_by_numbers(rows, scales.tolist(), numbers, self.momentum)
        else:
            numbers = rates
            torch._foreach_mul_(part.row_momenta, self.momentum)
            torch._foreach_addcmul_(part.row_momenta, rows, _like(part.row_momenta, part.numbers(scales)))
            plain, momenta = part.plain, [part.row_momenta[i] for i in part.plain]
            steps, tensors = _like(part.row_momenta, part.numbers(rates)), part.by_layer(part.tensors)
            torch._foreach_addcmul_([tensors[i] for i in plain], momenta, [steps[i] for i in plain], value=-1.0)
        directions = self._turn(part, part.units, own)
        for weight, bias, mean in part.centred:
            if weight in directions:
                mean.add_pull_(part.tensors[bias], directions[weight], 1.0)
            else:
                rate: Any = numbers if rates.ndim == 0 else numbers[part.firsts[weight]]
                mean.add_pull_(part.tensors[bias], part.momenta[weight], rate)

    def _turn(self, part: _Part, least: Tensor, own: dict[str, Any]) -> dict[int, Tensor]:
        """Move the parameters whose steps are orthogonalised; returns what was taken off, by their places.

        Arguments:
            part: whose momenta are up to date.
            least: of every layer, the size of gradients below which steps shorten, as those of other layers do.
            own: the optimiser's own state.
        """
        weights = part.orthogonal
        if not weights:
            return {}
        momenta = part.layers_of(weights, part.momenta)
        rates = self._share(own, min(ORTHOGONAL_LIMIT, 0.5 * self._most)) * part.rates() * ORTHOGONAL
        sizes = torch.stack(torch._foreach_norm(momenta)).to(rates).mul_(part.turned_scales)
        sizes = (sizes / least[part.turned].clamp_(min=_tiny(least))).clamp_(max=1)
        shares = sizes * (rates if rates.ndim == 0 else rates[part.turned])
        lengths, shrinkage = part.units[part.turned] * shares, (shares / GROWTH).square_().mul_(0.5)
        numbers, less = (
            vector.tolist() if part.host else _like(momenta, vector.unbind(0)) for vector in (lengths, shrinkage)
        )
        tensors = part.layers_of(weights, part.tensors)
        steps = torch._foreach_mul(self.directions(momenta), numbers)
        torch._foreach_add_(steps, torch._foreach_mul(tensors, less))
        torch._foreach_sub_(tensors, steps)
        rows = iter(steps)
        taken = {i: [next(rows) for _ in part.places(i)] for i in weights}
        return {i: torch.stack(rows) if part.entries[i].stacked else rows[0] for i, rows in taken.items()}

    def _orthogonalise(self, part: _Part, rows: list[Tensor], scales: Tensor) -> list[Tensor]:
        """Gradients with msgn(g) in place of those whose factors are known, and their scales, of mean square 1 too.

        A gradient with other terms than those of its factors, such as that of a penalty, stays as it is.
        """
        known = {
            part.firsts[weight] + layer: factors
            for weight, _, mean in part.centred
            if mean.factors and weight not in part.orthogonal
            for layer, factors in mean.centred_factors().items()
        }
        # steps shorten where gradients are rounding errors, as those of other layers do
        sizes = (part.squares.sqrt() / (part.peak * FLOOR)).clamp_(max=1)
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
        return rows

    def _move_entries(self, part: _Part, gradients: list[Tensor], roots: Tensor | None, own: dict[str, Any]) -> None:
        """With one q per entry, by torch's fused step of Adam where it serves, which reads everything once."""
        count, memory = own["count"], self.memory ** (1 / 8)
        before = [mean.pull(part.tensors[weight]) for weight, _, mean in part.centred]
        share = self._share(own)
        if part.logarithms is not None:
            share = torch.where(part.logarithms, self._share(own, LOGARITHM_LIMIT), share)
        lengths = part.units * (share * part.rates())
        plain, seconds = part.plain, part.layers_of(part.scaled, part.seconds)
        if roots is not None and count > 1 and plain:
            floors = part.numbers((part.peak * FLOOR).square_().mul_(1 - memory ** (count - 1)))
            torch._foreach_maximum_(seconds, [floors[i] for i in plain])
        if part.orthogonal:
            momenta, turned = ([tensors[i] for i in part.orthogonal] for tensors in (part.momenta, gradients))
            torch._foreach_lerp_(momenta, turned, 1 - self.momentum)
            self._turn(part, part.peak * FLOOR, own)
        by_layer = [part.by_layer(tensors) for tensors in (part.tensors, gradients, part.momenta)]
        rows = [*([tensors[i] for i in plain] for tensors in by_layer), seconds]
        eps, numbers = _tiny(part.tensors[0]), part.numbers(lengths)
        numbers = [numbers[i] for i in plain]
        if _fused_adam_serves(part.tensors[0]):
            steps = torch.full((), float(count), device=own["rho"].device)
            for places in _runs(numbers):
                x, g, m, q = ([each[i] for i in places] for each in rows)
                torch._fused_adam_(
                    x, g, m, q, [], [steps] * len(x), lr=numbers[places[0]], beta1=self.momentum, beta2=memory,
                    weight_decay=0.0, eps=eps, amsgrad=False, maximize=False,
                )  # fmt: skip
            torch.autograd.graph.increment_version((*part.tensors, *part.momenta, *seconds))  # which it forgets
        else:
            for x, g, m, q, length in zip(*rows, numbers, strict=True):
                m.lerp_(g, 1 - self.momentum)
                q.lerp_(g.square(), 1 - memory)
                direction = m / (q / (1 - memory**count)).sqrt_().add_(eps)
                x.sub_(direction * (length / (1 - self.momentum**count)))
        for (weight, bias, mean), pull in zip(part.centred, before, strict=True):
            part.tensors[bias].sub_(mean.pull(part.tensors[weight]) - pull)

    def _update_average(self, parts: Sequence[_Part], count: int) -> None:
        """Every few steps; over the last share of the steps at first, so that the start is forgotten.

        After a retreat it goes on slowly: it is what the next retreat would lead to.
        """
        weight = 1 - self.average**AVERAGE_EVERY
        if self.state[_ALL]["retreats"] == 0:
            weight = max(weight, 1 / (1 + AVERAGED * count / AVERAGE_EVERY))
        for part in parts:
            states = [self.state[tensor] for tensor in part.tensors]
            if any("average" not in state for state in states):
                for tensor, state in zip(part.tensors, states, strict=True):
                    state["average"] = tensor.detach().clone()
            else:
                torch._foreach_lerp_([state["average"] for state in states], part.tensors, weight)


def _units(entries: Sequence[_Entry]) -> Tensor:
    """c of all layers; that of a bias is the one of its weights, which is not measured twice."""
    units: list[Tensor] = []
    for entry, last in zip(entries, (None, *entries), strict=False):
        same = last is not None and entry.group is last.group and entry.layers == last.layers
        units.append(units[-1] if same else entry.units())
    return torch.cat(units)


def _tiny(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).tiny ** 0.5


def _like(tensors: Sequence[Tensor], numbers: Sequence[Tensor]) -> list[Tensor]:
    """In the dtypes of tensors."""
    return [number.to(tensor) for tensor, number in zip(tensors, numbers, strict=True)]


def _runs(numbers: Sequence[Any]) -> list[list[int]]:
    """Places of neighbours with the same number; one by one where numbers are tensors, which nobody reads."""
    runs: list[list[int]] = []
    for place, number in enumerate(numbers):
        if runs and not isinstance(number, Tensor) and number == numbers[place - 1]:
            runs[-1].append(place)
        else:
            runs.append([place])
    return runs


def _fused_adam_serves(tensor: Tensor) -> bool:
    """It is not public, and not there for every device."""
    return hasattr(torch, "_fused_adam_") and tensor.device.type in ("cpu", "cuda") and tensor.is_floating_point()


class _Distance:
    """What the estimate needs of the parameters of a part: some of their rows, one after the other in memory.

    With ĝ the scaled gradients, x₀ the first parameters and ω the weight of a step,
    `terms` updates s ← β₃s + ω c ĝ and returns ⟨ĝ, x₀ − x⟩ and Σ_l √n_l ‖s_l‖₂, or ‖s‖₁
    of entries. Calls into torch are few, whatever the number of layers.

    Arguments:
        entries: the parameters.
        states: of each; "origin" and "total" become views of one buffer.
        dense: whether s is measured layer by layer.
    """

    def __init__(self, entries: Sequence[_Entry], states: Sequence[dict[str, Any]], dense: bool) -> None:
        self.entries, self.dense = entries, dense
        self._whole = all(entry.every == 1 for entry in entries)
        rows = [entry.some(entry.tensor.detach()) for entry in entries]
        self._shaped = rows
        self._origin, self._total = (torch.cat([s[name].reshape(-1) for s in states]) for name in ("origin", "total"))
        for name, flat in (("origin", self._origin), ("total", self._total)):
            for state, view in zip(states, self._views(flat), strict=True):
                state[name] = view
        self._shaped = [state["origin"] for state in states]  # holds no other memory than its own
        self._totals = self._by_layer(self._views(self._total))
        counts = [row.numel() for row in self._totals]
        exact: Any = {"dtype": torch.promote_types(rows[0].dtype, torch.float32), "device": rows[0].device}
        self._root_counts = torch.tensor([count**0.5 for count in counts], **exact)
        self._inverse_counts = torch.tensor([1 / max(count, 1) for count in counts], **exact)
        self._g, self._g_rows = self._total, self._totals
        """Gradients from `take` to `terms` or `release`, and the same by layer."""

    def take(self, gradients: list[Tensor]) -> None:
        """Look at the gradients of a step."""
        self._g = torch.empty_like(self._total)
        views = self._views(self._g)
        torch._foreach_copy_(views, self._rows(gradients))
        self._g_rows = self._by_layer(views)

    def mean_squares(self) -> Tensor:
        """Of the gradients of every layer."""
        norms = torch.stack(torch._foreach_norm(self._g_rows))
        return norms.to(self._inverse_counts).square_().mul_(self._inverse_counts)

    def terms(
        self,
        tensors: list[Tensor],
        centred: Sequence[_Centred],
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
            mean.add_pull_(moved[bias], moved[weight], 1.0, self.entries[weight].every)
        torch._foreach_mul_(self._g_rows, inverse_roots)
        inner = torch.dot(flat, self._g)
        torch._foreach_mul_(self._g_rows, weights)
        self._total.mul_(patience).add_(self._g)
        self.release()
        if not self.dense:
            return inner, self._total.abs().sum()  # several times as fast as a norm of order 1
        norms = torch.stack(torch._foreach_norm(self._totals)).to(self._root_counts)
        return inner, torch.dot(norms, self._root_counts)

    def release(self) -> None:
        """Let go of the gradients, which are not needed between steps."""
        self._g, self._g_rows = self._total, self._totals

    def _rows(self, tensors: list[Tensor]) -> list[Tensor]:
        if self._whole:
            return tensors
        return [entry.some(tensor) for entry, tensor in zip(self.entries, tensors, strict=True)]

    def _views(self, flat: Tensor) -> list[Tensor]:
        unflatten = getattr(_utils, "_unflatten_dense_tensors", None)  # not public
        if unflatten is not None:
            return list(unflatten(flat, self._shaped))  # one call, however many layers there are
        parts = flat.split([tensor.numel() for tensor in self._shaped])
        return [part.view_as(tensor) for part, tensor in zip(parts, self._shaped, strict=True)]

    def _by_layer(self, views: Sequence[Tensor]) -> list[Tensor]:
        return [row for entry, view in zip(self.entries, views, strict=True) for row in entry.by_layer(view)]


@dataclass(eq=False)
class _Entry:
    """One parameter and its place among the layers.

    Arguments:
        tensor: the parameter.
        weight: the first parameter of its group, which it is measured by.
        group: its options.
        first: its first layer among all.
        orthogonal: whether its steps are orthogonalised.
    """

    tensor: Tensor
    weight: Tensor
    group: dict[str, Any]
    first: int
    orthogonal: bool

    def __post_init__(self) -> None:
        self.kind: str = self.group["kind"]
        self.stacked: bool = self.group["stacked"]
        self.layers: int = len(self.tensor) if self.stacked else 1
        self.scaled = self.kind != "dense" and not self.orthogonal  # entry by entry, by its own q
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


class _Centred(NamedTuple):
    """Places of a weight and its bias in a part, and the mean input of their layer."""

    weight: int
    bias: int
    mean: Mean


class _Part:
    """Parameters of one kind, dtype and device that are moved together.

    Arguments:
        entries: neighbours.
        state: of the optimiser, by parameter.
        own: vectors that hold one number per layer, of which this has views.
    """

    def __init__(self, entries: list[_Entry], state: Mapping[Any, dict[str, Any]], own: dict[str, Any]) -> None:
        self.entries = entries
        self.dense = entries[0].kind == "dense"
        self.tensors = [entry.tensor for entry in entries]
        states = [state[tensor] for tensor in self.tensors]
        self.momenta = [s["momentum"] for s in states]
        self.orthogonal = [i for i, entry in enumerate(entries) if entry.orthogonal]
        """Places of the parameters whose steps are orthogonalised."""
        self.scaled = [i for i, entry in enumerate(entries) if entry.scaled]
        self.seconds = {i: states[i]["second"] for i in self.scaled}
        rows = slice(entries[0].rows.start, entries[-1].rows.stop)
        self.second, self.peak, self.units = (own[name][rows] for name in _VECTORS)
        self.squares = self.second
        """Mean squares of the last gradients."""
        self.firsts = [entry.first - rows.start for entry in entries]
        self.layers = rows.stop - rows.start
        self.stacked = any(entry.stacked for entry in entries)
        turned = [place for i in self.orthogonal for place in self.places(i)]
        self._turned = set(turned)
        self.plain = [place for place in range(self.layers) if place not in self._turned]
        """Places of the layers whose steps are not."""
        first = self.tensors[0]
        #: Whether the host may read numbers: it would wait for any other device.
        self.host = first.dtype == own["rho"].dtype and first.device.type == "cpu" and hasattr(torch, "_fused_sgd_")
        sizes = [entry.tensor.numel() // entry.layers for entry in entries for _ in range(entry.layers)]
        self._inverse_counts = own["rho"].new_tensor([1 / max(size, 1) for size in sizes])
        self.turned = torch.tensor(turned, dtype=torch.int64, device=own["rho"].device)
        self.turned_scales = self._inverse_counts[self.turned].sqrt_().div_(FAINT)
        """From norms of momenta to root mean squares, in units below which steps shorten."""
        kinds = [entry.kind == "logarithm" for entry in entries for _ in range(entry.layers)]
        self.logarithms = torch.tensor(kinds, device=own["rho"].device) if any(kinds) else None
        self._rates: tuple[list[float], Tensor | float] = ([], 1.0)
        self.row_momenta = self.by_layer(self.momenta)
        self.distance = _Distance(entries, states, self.dense)
        self._small = {i for i, momentum in enumerate(self.row_momenta) if momentum.numel() <= SMALL}
        self.centred: list[_Centred] = []
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

    def places(self, parameter: int) -> range:
        """Of the layers of a parameter."""
        return range(self.firsts[parameter], self.firsts[parameter] + self.entries[parameter].layers)

    def layers_of(self, parameters: Sequence[int], tensors: Mapping[int, Tensor] | Sequence[Tensor]) -> list[Tensor]:
        """One tensor per layer of these parameters."""
        return [row for i in parameters for row in self.entries[i].by_layer(tensors[i])]

    def move_by_numbers(
        self,
        gradients: list[Tensor],
        scales: list[float],
        rates: float | list[float],
        beta: float,
    ) -> None:
        """m ← βm + scale g, x ← x − rate m in one pass over memory, by torch's fused step of SGD.

        Large layers one after the other, small ones in one call; of orthogonalised ones only the momenta.
        """
        options = {"weight_decay": 0.0, "nesterov": False, "maximize": False, "is_first_step": False, "momentum": beta}
        tensors, momenta = self.by_layer(self.tensors), self.row_momenta
        by_rate: dict[float, list[int]] = {}
        for i in range(len(tensors)):
            rate = 0.0 if i in self._turned else rates[i] if isinstance(rates, list) else rates
            if beta == 0:  # the fused step would take no momenta
                tensors[i].sub_(torch.mul(gradients[i], scales[i], out=momenta[i]), alpha=rate)
            elif i in self._small:
                by_rate.setdefault(rate, []).append(i)
            else:
                torch._fused_sgd_(
                    [tensors[i]], [gradients[i]], [momenta[i]], lr=rate, dampening=1 - scales[i], **options
                )
        for rate, chosen in by_rate.items():
            scaled = torch._foreach_mul([gradients[i] for i in chosen], [scales[i] for i in chosen])
            torch._fused_sgd_(
                [tensors[i] for i in chosen], scaled, [momenta[i] for i in chosen], lr=rate, dampening=0.0, **options
            )
        torch.autograd.graph.increment_version((*self.tensors, *self.momenta))  # which the fused step forgets


def _entries(groups: Sequence[dict[str, Any]]) -> list[_Entry]:
    """All parameters, dense ones first, with their places among the layers."""
    entries: list[_Entry] = []
    matrices = sum(group["params"][0].numel() for group in groups if group["matrix"])
    for group in sorted(groups, key=lambda group: group["kind"] != "dense"):
        for tensor in group["params"]:
            first = entries[-1].rows.stop if entries else 0
            shape = tensor.shape[1:] if group["stacked"] else tensor.shape
            matrix = group["matrix"] and tensor is group["params"][0]
            orthogonal = matrix and is_narrow(shape, math.prod(shape) / max(matrices, 1))
            entries.append(_Entry(tensor, group["params"][0], group, first, orthogonal))
    return entries


def _bundles(entries: Iterable[_Entry]) -> list[list[_Entry]]:
    """Neighbours that are alike and fit the cache together; a group is divided only where it is not alike."""
    found: list[list[_Entry]] = []
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


def _alike(one: _Entry, other: _Entry) -> bool:
    a, b = one.tensor, other.tensor
    return (one.kind == "dense") == (other.kind == "dense") and a.dtype == b.dtype and a.device == b.device


def _gradient(tensor: Tensor) -> Tensor:
    gradient = tensor.grad
    if gradient is None:
        return torch.zeros_like(tensor, memory_format=torch.preserve_format)
    return gradient.to_dense() if gradient.is_sparse else gradient
