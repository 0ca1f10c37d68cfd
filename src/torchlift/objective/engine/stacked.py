"""The stacked engine: chains, with all equal dense layers evaluated in one product."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from torchlift.objective.engine import products
from torchlift.objective.engine.base import Engine, Evaluation, Gradients, Layout, Part, Setting, States, Want
from torchlift.objective.engine.general import add_vjp
from torchlift.operators import Context, DenseRun
from torchlift.prox import Identity, ProximalActivation
from torchlift.prox.base import is_trained, tensors_of


@dataclass(frozen=True, eq=False)
class Weights:
    """The parameters of some layers of a run, and the views of them that every step needs."""

    address: int
    W: Tensor
    transposed: Tensor
    later: Tensor
    b: Tensor | None
    first: Tensor
    first_transposed: Tensor
    first_bias: Tensor | None


@dataclass(frozen=True, eq=False)
class Segment:
    """Layers `start` + 1, …, `start` + `count` with one activation, from one run (None: one block of any kind)."""

    start: int
    count: int
    activation: ProximalActivation
    weight: float | Tensor
    run: DenseRun | None
    singles: tuple[Segment, ...] = ()
    _memo: list[Weights] = field(default_factory=list)

    @property
    def dense(self) -> DenseRun:
        assert self.run is not None  # asked of dense segments only
        return self.run

    def weights(self) -> Weights:
        """Made once, and again only if the parameter was moved to other memory."""
        if not self._memo or self._memo[0].address != self.dense.weight.data_ptr():
            self._memo[:] = [_weights(self.dense, self.start - self.dense.start, self.count)]
        return self._memo[0]

    def part_of(self, parameters: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
        """Where the gradient of the segment's layers goes; the whole stack is allocated once."""
        if name not in parameters:
            parameters[name] = torch.empty_like(like)
        whole = parameters[name]
        return whole if self.count == self.dense.count else whole.narrow(0, self.start - self.dense.start, self.count)


def _weights(run: DenseRun, offset: int, count: int) -> Weights:
    with torch.no_grad():
        W = run.weight.detach().narrow(0, offset, count)
        b = None if run.bias is None else run.bias.detach().narrow(0, offset, count).unsqueeze(1)
        transposed = W.transpose(1, 2)
        first_bias = None if b is None else b[0]
        return Weights(run.weight.data_ptr(), W, transposed, W[1:], b, W[0], transposed[0], first_bias)


class StackedEngine(Engine):
    """The engine of chains u_j = z_j, where row j of W reads u_{j-1} only.

    The states of neighbouring equal layers lie in one buffer, whose slices
    are at once the inputs and the outputs of a run, so nothing is copied.
    Gradients are closed formulas written into the buffers of the result:
    with R = ∇_v D, ∇_W = Rᵀu, ∇_b = Σ R and ∇_z = ∇_z D + R W of the next
    layer. Blocks that are not dense go through vector–Jacobian products.
    """

    name = "stacked"

    def __init__(self, network: Any, setting: Setting) -> None:
        super().__init__(network, setting)
        form = network.operators()
        shapes = form.W.row_shapes
        self.layout = Layout(shapes, holds_input=bool(shapes) and shapes[0] == network.in_shape)
        self.segments = tuple(_segments(network.dense_runs(), form.activations, setting.weights, network.like))
        tail = network.output_run()
        self.tail = None if tail is None else Segment(tail.start, 1, Identity(), 1.0, tail)
        self.needs_form = self.tail is None or any(segment.run is None for segment in self.segments)
        self._places = _places(self.layout)
        self._cut: dict[int, tuple[Segment, ...]] = {}

    @staticmethod
    def serves(network: Any, coupling: float | None) -> bool:
        """Whether the network is a chain with u = z and the coupling is hard."""
        form = network.operators()
        chain = all(k == j for j, k in form.W.blocks) and set(form.K.blocks) == {(0, form.depth)}
        identities = all(i == j and block.symbol() == "I" for (i, j), block in form.V.blocks.items())
        plain = identities and all(k == j + 1 for j, k in form.M.blocks)
        return coupling is None and chain and plain and not any(map(is_trained, form.activations))

    @torch.no_grad()
    def evaluate(self, y: Tensor, z: States, context: Context = None) -> Evaluation:
        call = self._call(y, z, context)
        parts = []
        for segment in self._pieces(len(y)):
            outputs = self._outputs(call.z, segment)
            if segment.run is None:
                v = call.form.pre_activation(segment.start, self._padded(call, segment), context)
                parts.append(Part(segment.start, 1, False, segment.activation, segment.weight, outputs[0], v))
            else:
                v = self._affine(segment, self._inputs(call, segment), torch.empty_like(outputs))
                parts.append(Part(segment.start, segment.count, True, segment.activation, segment.weight, outputs, v))
        return Evaluation(tuple(parts), self._output(call))

    @torch.no_grad()
    def activations(self, y: Tensor, z: States, context: Context = None, out: States | None = None) -> States:
        call = self._call(y, z, context)
        result = z.empty_like(y.dtype) if out is None else out
        for segment in self._pieces(len(y)):
            slots = self._outputs(result, segment)
            if segment.run is None:
                v = call.form.pre_activation(segment.start, self._padded(call, segment), context)
                slots[0].copy_(segment.activation(v))
            else:
                segment.activation.apply_(self._affine(segment, self._inputs(call, segment), slots))
        return result

    def gradients(
        self,
        y: Tensor,
        x: Tensor,
        z: States,
        context: Context = None,
        out: Gradients | None = None,
        want: Want = "both",
    ) -> Gradients:
        call = self._call(y, z, context, want)
        result = Gradients(z.gradient_like(y.dtype), {}) if out is None else out
        taped: dict[str, Tensor] = {}
        for segment in self._pieces(len(y)):
            if segment.run is None:
                self._block_gradients(call, segment, result, taped)
            else:
                self._dense_gradients(call, segment, result)
        if self.tail is None:
            self._block_output_gradients(call, x, result, taped)
        else:
            self._dense_output_gradients(call, x, result, self.tail)
        result.parameters.update(taped)
        return result

    def dense_layers(self, y: Tensor, z: States) -> list[tuple[Segment, Tensor, Tensor]]:
        """(segment, inputs, outputs) of the dense layers, each with a leading layer axis."""
        call = self._call(y, z, None)
        dense = [segment for segment in self.segments if segment.run is not None]
        return [(segment, self._inputs(call, segment), self._outputs(call.z, segment)) for segment in dense]

    def _dense_gradients(self, call: _Call, segment: Segment, result: Gradients) -> None:
        inputs, outputs = self._inputs(call, segment), self._outputs(call.z, segment)
        slots = self._outputs(result.z, segment)
        v = self._affine(segment, inputs, slots)
        weight = segment.weight * call.scale
        grad_z, residual = self.setting.lifting.gradients(segment.activation, outputs, v, weight)
        if grad_z is not v:
            slots.copy_(grad_z)
        run, weights = segment.dense, segment.weights()
        if segment.count > 1 and call.want != "parameters":
            all_but_last = result.z.view(*self._places[segment.start + 1], segment.count - 1)
            products.add_adjoint_(all_but_last, residual[1:], weights.later)
        if segment.start > 0 and call.want != "parameters":
            # the input of the segment's first layer is the output of the segment before it
            self._slot(result.z, segment.start - 1).addmm_(residual[0], weights.first)
        if call.want == "states":
            return
        if run.weight.requires_grad:
            target = segment.part_of(result.parameters, run.weight_name, run.weight)
            products.weight_gradient(residual, inputs, target)
        if run.bias is not None and run.bias.requires_grad:
            products.bias_gradient(residual, segment.part_of(result.parameters, run.bias_name, run.bias))

    def _dense_output_gradients(self, call: _Call, x: Tensor, result: Gradients, tail: Segment) -> None:
        residual = self.setting.loss.grad(self._output(call), x)
        if call.scale != 1.0:
            residual.mul_(call.scale)
        if self.segments and call.want != "parameters":
            self._slot(result.z, len(self.layout.shapes) - 1).addmm_(residual, tail.weights().first)
        if call.want == "states":
            return
        run, parameters = tail.dense, result.parameters
        if run.weight.requires_grad:
            torch.mm(residual.T, call.last, out=tail.part_of(parameters, run.weight_name, run.weight)[0])
        if run.bias is not None and run.bias.requires_grad:
            target = tail.part_of(parameters, run.bias_name, run.bias)
            if residual.shape[0] == 1:
                target.copy_(residual)
            else:
                torch.sum(residual, 0, keepdim=True, out=target)

    def _block_gradients(self, call: _Call, segment: Segment, result: Gradients, taped: dict[str, Tensor]) -> None:
        """One block of any kind: its adjoint and parameter gradients in one vector–Jacobian product."""
        j = segment.start
        states = self._padded(call, segment)
        with torch.enable_grad():
            states[j] = u = states[j].detach().requires_grad_(j > 0)
            v = call.form.pre_activation(j, states, call.context)
        z_j, weight = self._outputs(call.z, segment)[0], segment.weight * call.scale
        # `gradients` may overwrite v, and detached v shares its memory with the tape: give it a copy
        grad_z, residual = self.setting.lifting.gradients(segment.activation, z_j, v.detach().clone(), weight)
        result.z[j].copy_(grad_z)
        grad_u = self._pull(v, residual, u, taped)
        if j > 0:
            result.z[j - 1].add_(grad_u)

    def _block_output_gradients(self, call: _Call, x: Tensor, result: Gradients, taped: dict[str, Tensor]) -> None:
        with torch.enable_grad():
            u = call.last.detach().requires_grad_(bool(self.segments))
            output = call.form.output([u] * (call.form.depth + 1), call.context)
        residual = self.setting.loss.grad(output.detach(), x) * call.scale
        grad_u = self._pull(output, residual, u, taped)
        if self.segments:
            result.z[-1].add_(grad_u)

    def _pull(self, value: Tensor, cotangent: Tensor, u: Tensor, taped: dict[str, Tensor]) -> Tensor:
        """Jᵀ cotangent for u; what reaches parameters is added up in `taped`."""
        leaves = ({"": u} if u.requires_grad else {}) | dict(self.trainable())
        if value.requires_grad:
            add_vjp([(value, cotangent)], leaves, taped)
        grad_u = taped.pop("", None)
        return torch.zeros_like(u) if grad_u is None else grad_u

    def _call(self, y: Tensor, z: States, context: Context, want: Want = "both") -> _Call:
        states = z.in_dtype(y.dtype)
        states.set_input(y)
        form = None
        if self.needs_form:
            with torch.enable_grad():
                form = self.network.operators()
        last = self._slot(states, len(self.layout.shapes) - 1) if self.segments else y
        return _Call(y, states, last, form, context, 1.0 / y.shape[0], want)

    def _affine(self, segment: Segment, inputs: Tensor, out: Tensor) -> Tensor:
        weights = segment.weights()
        if segment.count > 1:
            return products.affine(inputs, weights.transposed, weights.b, out)
        if weights.first_bias is None:
            torch.mm(inputs[0], weights.first_transposed, out=out[0])
        else:
            torch.addmm(weights.first_bias, inputs[0], weights.first_transposed, out=out[0])
        return out

    def _pieces(self, batch: int) -> tuple[Segment, ...]:
        """The segments, those cut into single layers for which one product each is faster."""
        if batch not in self._cut:
            self._cut[batch] = tuple(
                piece
                for segment in self.segments
                for piece in (segment.singles if self._apart(segment, batch) else (segment,))
            )
        return self._cut[batch]

    def _apart(self, segment: Segment, batch: int) -> bool:
        if segment.run is None or segment.count == 1:
            return False
        return not products.prefer_batched(segment.count, batch, segment.run.weight)

    def _output(self, call: _Call) -> Tensor:
        if self.tail is None:
            return call.form.output([call.last] * (call.form.depth + 1), call.context)
        weights = self.tail.weights()
        if weights.first_bias is None:
            return torch.mm(call.last, weights.first_transposed)
        return torch.addmm(weights.first_bias, call.last, weights.first_transposed)

    def _outputs(self, states: States, segment: Segment) -> Tensor:
        """z of the segment's layers, as one slice."""
        return states.view(*self._places[segment.start + 1], segment.count)

    def _inputs(self, call: _Call, segment: Segment) -> Tensor:
        """u_{start}, …, the inputs of the segment's layers, as one slice."""
        if segment.start == 0 and not self.layout.holds_input:
            return call.y.unsqueeze(0)
        return call.z.view(*self._places[segment.start], segment.count)

    def _slot(self, states: States, row: int) -> Tensor:
        """z of one layer, (B, *shape)."""
        return states.view(*self._places[row + 1], 0)

    def _padded(self, call: _Call, segment: Segment) -> list[Tensor]:
        """A list whose entry `start` is the input of the segment; row `start` of W reads no other."""
        return [self._inputs(call, segment)[0]] * (segment.start + 1)


@dataclass(eq=False, slots=True)
class _Call:
    """What the steps of one evaluation share."""

    y: Tensor
    z: States
    last: Tensor
    form: Any
    context: Context
    scale: float
    want: Want


def _segments(
    runs: tuple[DenseRun, ...],
    activations: tuple[ProximalActivation, ...],
    weights: tuple[float, ...],
    like: Tensor | None,
) -> list[Segment]:
    """Rows in order, neighbours of one run with the same activation together."""
    run_of = {run.start + i: run for run in runs for i in range(run.count)}
    segments: list[Segment] = []
    row = 0
    while row < len(activations):
        run, count = run_of.get(row), 1
        while (
            run is not None
            and row + count < len(activations)
            and run_of.get(row + count) is run
            and _same(activations[row + count], activations[row])
            and _ignores_leading_axes(activations[row])
        ):
            count += 1
        singles = tuple(Segment(j, 1, activations[j], weights[j], run) for j in range(row, row + count))
        weight = _weight(weights[row : row + count], like)
        segments.append(Segment(row, count, activations[row], weight, run, singles))
        row += count
    return segments


def _weight(weights: tuple[float, ...], like: Tensor | None) -> float | Tensor:
    """One number where all agree, else a tensor that broadcasts over (layers, B, features)."""
    if len(set(weights)) == 1 or like is None:
        return weights[0]
    return torch.tensor(weights, dtype=like.dtype, device=like.device).reshape(-1, 1, 1)


def _ignores_leading_axes(activation: ProximalActivation) -> bool:
    """Whether a stack axis in front changes nothing: no axis is counted from the left."""
    per_channel = any(tensor.ndim > 0 for tensor in tensors_of(activation).values())
    return not per_channel and (activation.dim is None or activation.dim < 0)


def _same(one: ProximalActivation, other: ProximalActivation) -> bool:
    """Whether two activations are the same function, as far as their settings tell."""
    return one is other or (type(one) is type(other) and repr(one) == repr(other))


def _places(layout: Layout) -> list[tuple[int, int]]:
    """Buffer and position of u_0 = y (if it has one), u_1, …, u_J."""
    return [(0, -1), *((group, i) for group, (_, count) in enumerate(layout.runs) for i in range(count))]
