"""Networks read from any module that can be recorded."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from torchlift.core.checks import Shape
from torchlift.core.errors import invalid_value
from torchlift.networks.affine import AffineMaps
from torchlift.networks.base import Network
from torchlift.networks.calls import arguments, call, is_batch_first, name_of
from torchlift.networks.form import ForwardStates, FusedRow, RecordedForm, UnifiedForm, assemble
from torchlift.networks.nonlinear import activation, contextual, state_key
from torchlift.networks.rows import Row, label, plan, shape_of
from torchlift.networks.trace import BATCH, refuse, trace, twin
from torchlift.operators import Context
from torchlift.prox import Identity, PReLU, ProximalActivation


class GraphNetwork(Network):
    """The unified form of a recorded module: one state per activation, and everything linear between them in W and K.

    The module itself is in `module`, with the names of its parameters, and the
    forward pass is its own. It keeps the mode, training or evaluation, in which
    it was lifted: `train()` and `eval()` do not reach it.

    Three kinds of rows:

    - z = σ(W u + b) with a proximal σ;
    - sums, whose σ is the identity: values that later layers read more than
      once, such as the start of a skip connection after a linear layer;
    - opaque rows z = g(u), whose σ is the identity too: g is neither linear nor
      proximal (GELU, attention, products of states). Liftings see the penalty
      μ/2 ‖z − g(u)‖², gradients go through g by its vector–Jacobian product.

    Max-pooling and norms with statistics of the sample are linear at a context,
    which `context` computes. Without one they are evaluated anew in every pass.

    Arguments:
        module: any module that maps one tensor to one tensor.
        in_shape: shape of one input.
        share: whether to use the parameters and buffers of `module` instead of copies.
        like: an input, whose dtype and device count where the module has no parameters.
    """

    def __init__(self, module: nn.Module, in_shape: Shape, *, share: bool = False, like: Tensor | None = None) -> None:
        held = (p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point())
        like = next(held, torch.empty(0) if like is None else like)
        recorded = plan(trace(module, in_shape, like))
        super().__init__(in_shape, shape_of(recorded.output.node))
        self.module = twin(module, share=share)
        self.plan = recorded
        self._whole = True
        for name, constant in recorded.trace.constants.items():
            self.register_buffer(name, constant, persistent=False)
        self._check_slopes()

    # -- what a network promises --------------------------------------------------------------------------------------

    @property
    def depth(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return len(self.plan.rows)

    @property
    def activations(self) -> tuple[ProximalActivation, ...]:
        return tuple(self._activation(row) for row in self.plan.rows)

    def forward(self, y: Tensor, context: Context = None) -> Tensor:
        self.check_input(y)
        return self.module(y) if context is None and self._whole else self.states(y, context).output

    def states(self, y: Tensor, context: Context = None) -> ForwardStates:
        self.check_input(y)
        u, v = [y], []
        for row in self.plan.rows:
            v.append(self._evaluate(row, u, context))
            u.append(self._activation(row)(v[-1]))
        return ForwardStates(tuple(u), tuple(v), tuple(u[1:]), self._evaluate(self.plan.output, u, context))

    def operators(self) -> UnifiedForm:
        """K, d, M, V, W, b and σ; M and V are identities.

        Blocks of max-pooling and norms need `context(y)`. Blocks of opaque rows
        are their Jacobians at the states in it. They are put together, from the
        parameters of that moment, when they are first asked for.
        """
        fused = {j: partial(self._evaluate, row) for j, row in enumerate((*self.plan.rows, self.plan.output))}
        return RecordedForm(self.activations, fused, lambda: self._assembled(fused))

    def _assembled(self, fused: Mapping[int, FusedRow]) -> UnifiedForm:
        maps = AffineMaps(self.plan, self._value, self._opaque, self._reference())
        W, b = {}, []
        for j, row in enumerate(self.plan.rows):
            blocks, bias = maps.row(row)
            W |= {(j, k): block for k, block in blocks.items()}
            b.append(bias)
        K, d = maps.row(self.plan.output) if self.plan.output.calls else maps._of(self.plan.output.source)
        return assemble(self.in_shape, W, b, self.activations, K, d, like=self.like, fused=fused)

    def context(self, y: Tensor) -> dict[str, Tensor]:
        """What max-pooling, norms and opaque rows take from the forward pass at y, by path: (B, …) each."""
        contexts: dict[str, Tensor] = {}
        u = [y]
        for row in self.plan.rows:
            u.append(self._activation(row)(self._evaluate(row, u, None, contexts)))
        self._evaluate(self.plan.output, u, None, contexts)
        for row in self.plan.opaque:
            contexts |= {state_key(row.path, k): u[k] for k in row.reads}
        return contexts

    def up_to(self, path: str) -> GraphNetwork:
        """The part of the network that ends with the output of a module, sharing its parameters.

        Arguments:
            path: a module by its name in the user's model, such as "layer1.0.conv2"; its last call counts.
        """
        inside = [node for node in self.plan.trace.nodes if f"{node.meta['path']}.".startswith(f"{path}.")]
        ends = [node for node in inside if node.op.startswith("call") and is_batch_first(node, BATCH)]
        if not ends:
            paths = list(dict.fromkeys(node.meta["path"] for node in self.plan.trace.nodes if node.meta["path"]))
            invalid_value("up_to path", f"one of {', '.join(paths[:20])}", repr(path))
        part = copy.copy(self)
        part.plan, part._whole = plan(self.plan.trace.until(ends[-1])), False
        part.out_shape = shape_of(ends[-1])
        return part

    def train(self, mode: bool = True) -> GraphNetwork:
        """Set `training` of the network only: the module keeps the mode in which it was lifted."""
        self.training = mode
        return self

    def to_sequential(self, context: Context = None) -> nn.Module:
        """A copy of the module with the current weights."""
        return twin(self.module) if self._whole else super().to_sequential(context)

    @torch.no_grad()
    def load_back(self, module: nn.Module) -> None:
        """Write parameters and buffers into the module that was lifted, or one like it."""
        tensors, theirs = self.module.state_dict(), module.state_dict()
        if [(name, tensor.shape) for name, tensor in tensors.items()] != [(n, t.shape) for n, t in theirs.items()]:
            names = sorted(set(tensors) ^ set(theirs)) or list(tensors)
            invalid_value("load_back module", "the tensors of the module that was lifted", f"others: {names[:3]}")
        module.load_state_dict(tensors)

    @torch.no_grad()
    def load(self, module: nn.Module) -> None:
        """Copy in the parameters and buffers of the module that was lifted, or of one like it."""
        self.module.load_state_dict(module.state_dict())

    def scatter(self, gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """{parameter of the module: tensor} from {parameter of this network: tensor}."""
        return {name.removeprefix("module."): tensor for name, tensor in gradients.items()}

    def picture(self) -> str:
        """The blocks of W and K as text, then the rows with their place in the module."""
        rows = [f"u_{j}  {_KINDS[row.kind]} {row.path}" for j, row in enumerate(self.plan.rows, start=1)]
        at = [f"{label(node)}: linear at a context, renewed in every pass" for node in self.plan.contextual]
        return "\n".join([super().picture(), "", *rows, *at])

    def extra_repr(self) -> str:
        sizes = ["×".join(map(str, shape)) for shape in (self.in_shape, self.out_shape)]
        opaque = len(self.plan.opaque)
        text = f"{sizes[0]} → {sizes[1]}, {self.depth} states"
        return f"{text}, {opaque} of them opaque" if opaque else text

    # -- evaluation ---------------------------------------------------------------------------------------------------

    def _activation(self, row: Row) -> ProximalActivation:
        return activation(row.node, self._look_up) if row.kind == "activation" else Identity()

    def _look_up(self, item: Any) -> Any:
        return self._value(item, 1) if isinstance(item, fx.Node) else self.get_submodule(item)

    def _opaque(self, row: Row, u: Mapping[int, Tensor]) -> Tensor:
        return self._evaluate(row, [u.get(k, next(iter(u.values()))) for k in range(max(u) + 1)], None)

    def _evaluate(
        self, row: Row, u: Sequence[Tensor], context: Context, contexts: dict[str, Tensor] | None = None
    ) -> Tensor:
        """v of a row from the states before it; records the contexts in `contexts`."""
        states, env, batch = self.plan.states, {}, len(u[0])
        trace_input = self.plan.trace.input

        def look(item: fx.Node) -> Any:
            return env[item] if item in env else u[states[item]]

        given = context if isinstance(context, Mapping) else {}
        for node in row.calls:
            if node.op == "get_attr":
                env[node] = self._attribute(str(node.target))
            elif node.op == "call_method" and node.target == "size" and node.args[0] is trace_input:
                env[node] = batch
            elif node in row.contextual and (contexts is not None or label(node) in given):
                env[node] = self._at_context(node, look, given, contexts)
            else:
                args, kwargs = map_arg((node.args, node.kwargs), look)
                env[node] = call(node, args, kwargs, self.get_submodule)
        return env[row.source] if row.source in env else u[states[row.source]]

    def _at_context(
        self, node: fx.Node, look: Any, context: Mapping[str, Tensor], contexts: dict[str, Tensor] | None
    ) -> Tensor:
        given = {key: look(item) if isinstance(item, fx.Node) else item for key, item in arguments(node).items()}
        chosen = contextual(name_of(node), given)
        x, key = given["input"], label(node)
        if contexts is not None:
            context = contexts
            contexts[key] = chosen.context(x)
        value = chosen.apply(x, context[key])
        for name, operation in (("weight", torch.mul), ("bias", torch.add)):
            if given.get(name) is not None:
                part = given[name]
                trailing = part if name_of(node) == "layer_norm" else part.reshape(-1, *(1,) * (value.ndim - 2))
                value = operation(value, trailing)
        return value

    def _value(self, node: fx.Node, batch: int) -> Any:
        """The value of a call that does not depend on the input, beside the size of the batch."""
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if node.op == "call_method" and node.target == "size" and node.args[0] is self.plan.trace.input:
            return batch
        if node in self.plan.depends:  # only its shape is asked for
            sizes = [size if size % BATCH else batch * (size // BATCH) for size in node.meta["value"].shape]
            return self._reference().new_zeros(sizes)
        args, kwargs = map_arg((node.args, node.kwargs), lambda item: self._value(item, batch))
        return call(node, args, kwargs, self.get_submodule)

    def _reference(self) -> Tensor:
        """A tensor of the dtype and on the device of the states."""
        dtype = self.plan.trace.input.meta["value"].dtype
        return torch.empty(0, dtype=dtype) if self.like is None else self.like.detach()

    def _attribute(self, path: str) -> Any:
        owner: nn.Module = self
        *names, last = path.split(".")
        for name in names:  # `get_submodule` asks more questions, a fifth of the time of an evaluation
            owner = owner._modules[name]  # type: ignore[assignment]
        return getattr(owner, last)

    def _check_slopes(self) -> None:
        for row in self.plan.rows:
            sigma = self._activation(row)
            if isinstance(sigma, PReLU) and sigma.slope.device.type != "meta":
                low, high = float(sigma.slope.detach().min()), float(sigma.slope.detach().max())
                if not (low > 0 and high <= 1):
                    refuse(row.path, f"its slopes lie in [{low:.3g}, {high:.3g}], not in (0, 1]", "Clamp them.")


_KINDS = {"activation": "σ of", "sum": "sum, read more than once:", "opaque": "opaque, with a vjp:"}
