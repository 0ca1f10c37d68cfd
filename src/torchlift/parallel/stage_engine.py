"""The engine of one process's layers, which exchanges states and cotangents with its neighbours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from torchlift.networks.form import UnifiedForm
from torchlift.objective.engine import Engine, Evaluation, Gradients, Layout, Setting, States, Want
from torchlift.objective.engine.general import add, add_vjp
from torchlift.operators import Context, DenseRun
from torchlift.parallel.mesh import Mesh, Transfer
from torchlift.prox.base import is_trained


@dataclass(frozen=True, eq=False)
class _Taped:
    """v = Σ_k W_k u_k + b of one row, or the output, on leaves of its own, and its cotangent ∇_v: by autograd."""

    columns: tuple[int, ...]
    leaves: list[Tensor]
    value: Tensor
    cotangent: Tensor

    def vjp(self) -> list[tuple[int, Tensor]]:
        """Wᵀ∇_v, by the state that it belongs to."""
        grads = torch.autograd.grad(self.value, self.leaves, self.cotangent, retain_graph=True)
        return list(zip(self.columns, grads, strict=True))


@dataclass(frozen=True, eq=False)
class _Dense:
    """The same for one dense layer that reads one state: in closed form."""

    run: DenseRun
    column: int
    inputs: Tensor
    cotangent: Tensor

    @property
    def index(self) -> int:
        return self.column - self.run.start

    def vjp(self) -> list[tuple[int, Tensor]]:
        return [(self.column, self.cotangent @ self.run.weight.detach()[self.index])]

    def collect(self, parameters: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
        """Put the gradients of the layer's own parameters into their places."""
        run = self.run
        for name, like in ((run.weight_name, run.weight), (run.bias_name, run.bias)):
            if like is not None and name in parameters and name not in gradients:
                gradients[name] = torch.empty_like(like)  # every layer of the run fills its place
        if run.weight_name in gradients:
            torch.mm(self.cotangent.T, self.inputs, out=gradients[run.weight_name][self.index])
        if run.bias is not None and run.bias_name in gradients:
            torch.sum(self.cotangent, 0, out=gradients[run.bias_name][self.index])


_Row: TypeAlias = "_Taped | _Dense"


class StageEngine(Engine):
    """Evaluates the rows of one stage of a chain, whose input u_0 is the last state of the process before.

    One exchange forward, the last state u_n to the process after; in gradients
    one exchange backward too, the cotangent of u_0 to the process before. Rows
    that do not need u_0 are evaluated while it is on its way, and gradients of
    weights while cotangents are. Where skip connections lead from u_0 to u_n,
    sums run through all processes: each adds its own and passes them on.

    Dense layers have closed forms. Other maps go through vector–Jacobian products,
    as in the general engine, so any linear map will do.

    Arguments:
        network: the stage, a chain whose K is the identity unless it is the last one.
        setting: lifting, loss (`ZeroLoss` but in the last stage) and weights of these layers.
        mesh: the processes.
        pure: whether the whole network has u = z, so that gradients of parameters need no cotangents from elsewhere.
    """

    name = "stage"

    def __init__(self, network: Any, setting: Setting, mesh: Mesh, pure: bool) -> None:
        super().__init__(network, setting)
        self.mesh, self.pure = mesh, pure
        form: UnifiedForm = network.operators()
        self.layout = Layout(form.W.row_shapes)
        self.before, self.after = mesh.neighbour(-1), mesh.neighbour(1)
        self.reached = _reached(form)
        self.passes = form.depth in self.reached
        tail = network.output_run()
        runs = (*network.dense_runs(), *(() if tail is None else (tail,))) if pure else ()
        self.runs = {run.start + i: run for run in runs for i in range(run.count)}
        self.waiting = tuple(j for j in range(form.depth) if any(k in self.reached for k, _ in form.W.rows[j]))

    @torch.no_grad()
    def evaluate(self, y: Tensor, z: States, context: Context = None) -> Evaluation:
        form = self.network.operators()
        layers = [layer.to(y.dtype) for layer in z]
        flow = _Flow(self, form, y, layers, context)
        early = {j: form.pre_activation(j, flow.u, context) for j in range(form.depth) if j not in self.waiting}
        flow.arrive()
        late = {j: form.pre_activation(j, flow.u, context) for j in self.waiting}
        output = form.output(flow.u, context)
        flow.end()
        return Evaluation(self.rows(form, layers, early | late), output)

    @torch.no_grad()
    def inputs(self, y: Tensor, z: States, context: Context = None) -> list[Tensor]:
        """u_0, …, u_n of this stage."""
        flow = _Flow(self, self.network.operators(), y, [layer.to(y.dtype) for layer in z], context)
        flow.arrive()
        flow.end()
        return flow.u

    def gradients(
        self,
        y: Tensor,
        x: Tensor,
        z: States,
        context: Context = None,
        out: Gradients | None = None,
        want: Want = "both",
    ) -> Gradients:
        result = Gradients(z.gradient_like(y.dtype), {})
        parameters = {} if want == "states" else dict(self.trainable())
        gradients: dict[str, Tensor] = {}
        with torch.enable_grad():
            form = self.network.operators()
            layers = [layer.detach().to(y.dtype).requires_grad_() for layer in z]
            flow = _Flow(self, form, y, layers, context)
        scale, cotangents = 1.0 / len(y), dict[int, Tensor]()
        alone = want == "parameters" and self.pure  # nobody's gradients need cotangents from elsewhere
        early = [self._row(flow, j, scale, result.z[j]) for j in range(form.depth) if j not in self.waiting]
        if self.after is None and not self.passes:
            early.append(self._output(flow, x, scale))
        if not alone:
            self._add_vjps(early, cotangents)
        self._collect(early, parameters, gradients)
        with torch.enable_grad():
            flow.arrive()
        late = [self._row(flow, j, scale, result.z[j]) for j in self.waiting]
        if self.after is None and self.passes:
            late.append(self._output(flow, x, scale))
        if not alone:
            self._add_vjps(late, cotangents)
        sent = None if alone or self.passes else self._send_cotangent(flow, cotangents)
        back = None if alone else self._receive_cotangent(flow)
        self._collect(late, parameters, gradients)
        if parameters:
            add_vjp([(total, torch.ones_like(total)) for total in flow.learned], parameters, gradients)
        if back is not None:
            back[1].wait()
            add(cotangents, form.depth, back[0])
        if self.passes and not alone:
            sent = self._send_cotangent(flow, cotangents)
        if not alone:
            self._vjp_states(flow, cotangents, layers, parameters, gradients, result)
        result.parameters = {
            name: gradients[name] if name in gradients else torch.zeros_like(p) for name, p in parameters.items()
        }
        if sent is not None:
            sent.wait()
        flow.end()
        return result

    def _row(self, flow: _Flow, j: int, scale: float, slot: Tensor) -> _Row:
        """Row j at the current states; ∇_z of its penalty goes to the slot."""
        run = self.runs.get(j)
        if run is not None:
            inputs = flow.u[j].detach()
            return _Dense(run, j, inputs, self._cotangent(flow, j, _affine(run, j, inputs, slot), scale, slot))
        columns = tuple(k for k, _ in flow.form.W.rows[j])
        with torch.enable_grad():
            states, leaves = _leaves(flow.u, columns)
            v = flow.form.pre_activation(j, states, flow.context)
        # v may be overwritten, and detached it shares its memory with the tape: give a copy
        return _Taped(columns, leaves, v, self._cotangent(flow, j, v.detach().clone(), scale, slot))

    def _cotangent(self, flow: _Flow, j: int, v: Tensor, scale: float, slot: Tensor) -> Tensor:
        """∇_v of the penalty of row j; ∇_z goes to the slot."""
        activation, lifting = flow.form.activations[j], self.setting.lifting
        weight, z = scale * self.setting.weights[j], flow.z[j].detach()
        if is_trained(activation):
            with torch.enable_grad():  # D at fixed z and v, whose gradient is that of learned thresholds and bounds
                flow.learned.append(scale * lifting.value(activation, z, v.clone(), self.setting.weights[j]).sum())
        grad_z, cotangent = lifting.gradients(activation, z, v, weight)
        if grad_z is not slot:
            slot.copy_(grad_z)
        return cotangent

    def _output(self, flow: _Flow, x: Tensor, scale: float) -> _Row:
        form, depth = flow.form, flow.form.depth
        run = self.runs.get(depth)
        if run is not None:
            inputs = flow.u[depth].detach()
            output = _affine(run, depth, inputs, inputs.new_empty(len(inputs), run.weight.shape[1]))
            return _Dense(run, depth, inputs, scale * self.setting.loss.grad(output, x))
        columns = tuple(k for k, _ in form.K.rows[0])
        with torch.enable_grad():
            states, leaves = _leaves(flow.u, columns)
            output = form.output(states, flow.context)
        return _Taped(columns, leaves, output, scale * self.setting.loss.grad(output.detach(), x))

    def _add_vjps(self, rows: Sequence[_Row], cotangents: dict[int, Tensor]) -> None:
        """Wᵀ∇_v of all rows, added to the cotangents of the states that they read; the network's input needs none."""
        for row in rows:
            if self.before is None and isinstance(row, _Dense) and row.column == 0:
                continue
            for k, grad in row.vjp():
                add(cotangents, k, grad)

    def _collect(self, rows: Sequence[_Row], parameters: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
        """Gradients of the rows' own parameters; one product for all that are taped, which share their stacks."""
        if not parameters:
            return
        add_vjp([(row.value, row.cotangent) for row in rows if isinstance(row, _Taped)], parameters, gradients)
        for row in rows:
            if isinstance(row, _Dense):
                row.collect(parameters, gradients)

    def _vjp_states(
        self,
        flow: _Flow,
        cotangents: dict[int, Tensor],
        layers: Sequence[Tensor],
        parameters: dict[str, Tensor],
        gradients: dict[str, Tensor],
        result: Gradients,
    ) -> None:
        """Through u = M⁻¹V z, to z and to the parameters of V."""
        if self.pure:
            for k, cotangent in cotangents.items():
                if k > 0:
                    result.z[k - 1].add_(cotangent)
            return
        pairs = [(flow.u[k], c) for k, c in cotangents.items() if k > 0 and flow.u[k].requires_grad]
        slots = {f"{j}": layer for j, layer in enumerate(layers)}
        grads: dict[str, Tensor] = {}
        add_vjp(pairs, slots | parameters, grads)
        for name, grad in grads.items():
            if name in slots:
                result.z[int(name)].add_(grad)
            else:
                add(gradients, name, grad)

    def _send_cotangent(self, flow: _Flow, cotangents: dict[int, Tensor]) -> Transfer | None:
        """Send the cotangent of u_0 to the process before."""
        if self.before is None:
            return None
        total = cotangents.get(0)
        pairs = [(flow.u[k], c) for k, c in cotangents.items() if k > 0 and k in self.reached]
        if pairs:
            values, grads = zip(*pairs, strict=True)
            (through,) = torch.autograd.grad(values, [flow.u[0]], grads, retain_graph=True)
            total = through if total is None else total + through
        assert total is not None  # some row reads u_0
        return self.mesh.start([(total.contiguous(), self.before)], [])

    def _receive_cotangent(self, flow: _Flow) -> tuple[Tensor, Transfer] | None:
        """The cotangent of u_n from the process after, on its way."""
        if self.after is None:
            return None
        room = torch.empty_like(flow.u[-1].detach(), memory_format=torch.contiguous_format)
        return room, self.mesh.start([], [(room, self.after)])


class _Flow:
    """u_0, …, u_n of a stage in one evaluation, as they become known."""

    def __init__(
        self, engine: StageEngine, form: UnifiedForm, y: Tensor, z: Sequence[Tensor], context: Context
    ) -> None:
        self.engine, self.form, self.context, self.z = engine, form, context, z
        self.learned: list[Tensor] = []
        """Penalties of layers whose activations are trained, as functions of those."""
        self.driven = [form.V.row(j, z, context) for j in range(form.depth)]
        first = torch.empty_like(y) if engine.before is not None else y
        self.u: list[Tensor] = [first, *(first for _ in range(form.depth))]
        self._fill(lambda k: k not in engine.reached)
        receive = [] if engine.before is None else [(first, engine.before)]
        self.transfers = [engine.mesh.start([] if engine.passes else self._message(), receive)]

    def arrive(self) -> None:
        """Wait for u_0, and find the states that depend on it."""
        engine = self.engine
        if engine.before is not None:  # the first process only sends, and need not wait for that yet
            self.transfers.pop().wait()
        if torch.is_grad_enabled() and engine.before is not None:
            self.u[0] = self.u[0].detach().requires_grad_()
        self._fill(lambda k: k in engine.reached)
        if engine.passes:
            self.transfers.append(engine.mesh.start(self._message(), []))

    def end(self) -> None:
        """Until all that was sent has left."""
        for transfer in self.transfers:
            transfer.wait()

    def _fill(self, chosen: Callable[[int], bool]) -> None:
        for j, driven in enumerate(self.driven):
            if chosen(j + 1):
                earlier = self.form.M.row(j, self.u[: j + 1], self.context)
                assert driven is not None  # every row of V has a block
                self.u[j + 1] = driven if earlier is None else driven - earlier

    def _message(self) -> list[tuple[Tensor, int]]:
        after = self.engine.after
        return [] if after is None else [(self.u[-1].detach().contiguous(), after)]


def _reached(form: UnifiedForm) -> set[int]:
    """The states that depend on u_0 for given z: u_0 itself, and those that skip connections lead to."""
    reached = {0}
    for j in range(form.depth):
        if any(k in reached and k <= j for k, _ in form.M.rows[j]):
            reached.add(j + 1)
    return reached


def _leaves(u: Sequence[Tensor], columns: tuple[int, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """The states with new leaves in place of those that a row reads."""
    states = list(u)
    for k in columns:
        states[k] = u[k].detach().requires_grad_()
    return states, [states[k] for k in columns]


def _affine(run: DenseRun, row: int, inputs: Tensor, out: Tensor) -> Tensor:
    """W u + b of one layer of a run."""
    weight = run.weight.detach()[row - run.start]
    if run.bias is None:
        return torch.mm(inputs, weight.T, out=out)
    return torch.addmm(run.bias.detach()[row - run.start], inputs, weight.T, out=out)
