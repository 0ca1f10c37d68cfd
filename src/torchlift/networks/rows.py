"""Reads a recorded module into rows: where states are, and which calls lie between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, fx

from torchlift.core.checks import Shape
from torchlift.networks.calls import (
    ADDITIVE,
    DROPOUTS,
    LINEAR_IN_FIRST,
    REARRANGEMENTS,
    dependents,
    has_constant,
    is_batch_first,
    is_contextual,
    is_linear,
    is_off,
    name_of,
)
from torchlift.networks.nonlinear import is_activation
from torchlift.networks.trace import BATCH, Trace, refuse

Kind = Literal["activation", "sum", "opaque"]


@dataclass(frozen=True, eq=False)
class Row:
    """One row of the unified form: z = σ(v), v a function of earlier states.

    Arguments:
        node: whose value is z.
        source: whose value is v; `node` itself where σ is the identity.
        kind: "activation"; "sum" for a value that later calls read more than once; "opaque" for v = g(u) with
            a g that is neither linear nor proximal.
        calls: what is computed between the states and v, in order, parameters included.
        reads: the states that v depends on.
        contextual: the calls among them that are linear at a context only.
    """

    node: fx.Node
    source: fx.Node
    kind: Kind
    calls: tuple[fx.Node, ...]
    reads: tuple[int, ...]
    contextual: tuple[fx.Node, ...]

    @property
    def path(self) -> str:
        return label(self.node)


@dataclass(frozen=True, eq=False)
class Plan:
    """All rows of a recorded module; it holds no numbers, so copies of a network share it.

    Arguments:
        trace: what was recorded.
        rows: one per state u_1, …, u_J.
        output: how N(y) is made of the states.
        states: {node: k} for every u_k.
        depends: the calls that depend on the values of the input.
    """

    trace: Trace
    rows: tuple[Row, ...]
    output: Row
    states: dict[fx.Node, int]
    depends: frozenset[fx.Node]

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a lifted module cannot be pickled; save its state_dict()")

    @property
    def opaque(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.kind == "opaque")

    @property
    def contextual(self) -> tuple[fx.Node, ...]:
        return tuple(dict.fromkeys(node for row in (*self.rows, self.output) for node in row.contextual))


def label(node: fx.Node) -> str:
    """A name for a call that no other call has: the path of its module and what it computes."""
    return node.meta["label"]


def _name(trace: Trace) -> None:
    """Give every call its label; a module that is called again gets a number."""
    seen: dict[str, int] = {}
    for node in trace.nodes:
        if name_of(node) == "getitem" and not isinstance(node.all_input_nodes[0].meta["value"], Tensor):
            node.meta["label"] = label(node.all_input_nodes[0])  # a part of a tuple is named by the call that gave it
            continue
        name, path = name_of(node) or getattr(node.target, "__name__", str(node.target)), node.meta["path"]
        text = path if node.op == "call_module" else f"{path}.{name}" if path else name
        seen[text] = seen.get(text, 0) + 1
        node.meta["label"] = text if seen[text] == 1 else f"{text}#{seen[text]}"


def shape_of(node: fx.Node) -> Shape:
    """Shape of one sample."""
    return tuple(node.meta["value"].shape[1:])


def plan(trace: Trace) -> Plan:
    """The rows of a recorded module."""
    _name(trace)
    return _Reader(trace).read()


class _Reader:
    """Walks through the calls in order."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.depends = dependents(trace.nodes, trace.input)
        needed = set(trace.nodes)
        self.users = {node: [user for user in node.users if user in needed] for node in trace.nodes}
        self.states: dict[fx.Node, int] = {trace.input: 0}
        self.rows: list[Row] = []
        self.opaque: set[fx.Node] = set()  # values on the way to an opaque state
        self.constant: set[fx.Node] = set()  # affine values with a constant part
        self.heavy: set[fx.Node] = set()  # values that take more than rearranging a state
        self.contextual: set[fx.Node] = set()  # linear at a context only

    def read(self) -> Plan:
        for node in self.trace.nodes:
            if node in self.depends and node is not self.trace.input:
                self._read(node)
        result = self.trace.output
        if result not in self.depends:
            refuse("", "its output does not depend on its input")
        if not is_batch_first(result, BATCH):
            shape = tuple(result.meta["value"].shape)
            refuse("", f"the first axis of its output of shape {shape} is not the batch")
        output = self._row(result, result, "sum")
        return Plan(self.trace, tuple(self.rows), output, dict(self.states), self.depends)

    def _read(self, node: fx.Node) -> None:
        name = name_of(node)
        if name in DROPOUTS and not is_off(node):
            refuse(node.meta["path"], f"{name} is random in training mode", "Call `.eval()` first or remove it.")
        changing = [argument for argument in node.all_input_nodes if argument in self.depends]
        loose = any(argument in self.opaque for argument in changing)
        first_axis = is_batch_first(node, BATCH)
        # the batch may be elsewhere for a while, as in `qkv.permute(2, 0, 1).unbind(0)`
        rearranged = len(changing) == 1 and name in LINEAR_IN_FIRST
        if not loose and first_axis and is_activation(node, changing):
            (source,) = changing
            self._state(node, source, "activation")
        elif not loose and (first_axis or rearranged) and is_linear(node, self.depends.__contains__):
            self._linear(node, changing)
        elif not loose and first_axis and is_contextual(node, self.depends.__contains__):
            (source,) = changing
            if source in self.constant or source in self.contextual:
                self._state(source, source, "sum")  # so that the context multiplies states only
            self._linear(node, changing)
            self.contextual.add(node)
            self._share(node)
        elif first_axis:
            self._state(node, node, "opaque")
        else:
            self.opaque.add(node)

    def _linear(self, node: fx.Node, changing: Sequence[fx.Node]) -> None:
        constants = [a for a in node.all_input_nodes if a not in self.depends and isinstance(a.meta["value"], Tensor)]
        added = name_of(node) in ADDITIVE and bool(constants)
        if added or has_constant(node) or any(argument in self.constant for argument in changing):
            self.constant.add(node)
        if any(argument in self.contextual for argument in changing):
            self.contextual.add(node)
        if name_of(node) not in REARRANGEMENTS or any(argument in self.heavy for argument in changing):
            self.heavy.add(node)
        self._share(node)

    def _share(self, node: fx.Node) -> None:
        """Make a state of a value that several calls read, so that it is computed once."""
        if node not in self.heavy or len(self.users[node]) < 2:
            return
        while not is_batch_first(node, BATCH):
            (node,) = (argument for argument in node.all_input_nodes if argument in self.depends)
        if node in self.heavy:
            self._state(node, node, "sum")

    def _state(self, node: fx.Node, source: fx.Node, kind: Kind) -> None:
        if node in self.states:
            return
        self.rows.append(self._row(node, source, kind))
        self.states[node] = len(self.rows)
        for group in (self.constant, self.heavy, self.contextual):
            group.discard(node)

    def _row(self, node: fx.Node, source: fx.Node, kind: Kind) -> Row:
        calls, waiting = set(), [source]
        while waiting:
            current = waiting.pop()
            if current not in calls and current not in self.states:
                calls.add(current)
                waiting.extend(current.all_input_nodes)
        ordered = tuple(call for call in self.trace.nodes if call in calls)
        edge = {argument for call in ordered for argument in call.all_input_nodes} | {source}
        reads = sorted(self.states[argument] for argument in edge if argument in self.states)
        # sizes of the batch read the input's shape only
        readers = [call for call in ordered if self.trace.input in call.all_input_nodes]
        read = source is self.trace.input or any(not isinstance(call.meta["value"], int) for call in readers)
        reads = [k for k in reads if k or read]
        chosen = tuple(
            call for call in ordered if kind != "opaque" and is_contextual(call, self.depends.__contains__)
            and not is_linear(call, self.depends.__contains__)
        )  # fmt: skip
        return Row(node, source, kind, ordered, tuple(reads), chosen)
