"""Records what a module computes, as a graph of torch functions.

The tracer is the one of `torch.fx`, which records calls without running them. `torch.export` would do too, but takes
seconds for a ResNet-18 instead of tenths, and gives no names of the user's own modules. What fx alone cannot do is to
answer questions about shapes, such as `if x.shape[-1] % 2`. So every recorded call is also made on tensors without
memory (device "meta"), with a batch size that no other size is a multiple of: the batch size stays symbolic, all other
sizes are numbers.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from torchlift.core.checks import Shape
from torchlift.core.errors import NotRepresentableError, TorchliftError
from torchlift.networks.calls import shape_of
from torchlift.prox.base import ActivationModule

#: The batch size while recording: a prime, so that sizes which depend on the batch are its multiples.
BATCH = 100_003

#: Functions without tensor arguments, which fx does not see when a size is the batch size.
_FACTORIES = ("arange", "empty", "eye", "full", "linspace", "ones", "rand", "randn", "zeros")

#: Modules whose forward pass branches on its arguments: recorded as one call.
LEAVES = (
    *(ActivationModule, nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase, nn.Transformer),
    *(nn.TransformerEncoder, nn.TransformerDecoder, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)


@dataclass(frozen=True, eq=False)
class Trace:
    """A recorded module: the value of a node on meta tensors is in `node.meta["value"]`, its module in `["path"]`.

    Arguments:
        nodes: in the order of execution; the last one is the output.
        input: the node of y.
        constants: tensors that the module made or held without registering them, by name.
    """

    nodes: tuple[fx.Node, ...]
    input: fx.Node
    constants: dict[str, Tensor]

    @property
    def output(self) -> fx.Node:
        return self.nodes[-1]

    def until(self, node: fx.Node) -> Trace:
        """The part that a call depends on, with its value as the output."""
        return replace(self, nodes=_needed(node))


class Holder(nn.Module):
    """Calls a module, so that its own hooks are recorded too; paths begin with "module."."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, input: Tensor) -> Tensor:
        return self.module(input)


def trace(module: nn.Module, in_shape: Shape, like: Tensor) -> Trace:
    """The graph of a module for inputs (B, *in_shape) of the dtype and on the device of `like`."""
    root = Holder(without_memory(module))
    tracer = _Tracer(torch.empty(BATCH, *in_shape, dtype=like.dtype, device="meta"), like.device)
    state = torch.get_rng_state()
    try:
        with torch.no_grad(), _factories(tracer):
            graph = tracer.trace(root)
    except TorchliftError:
        raise
    except Exception as error:  # whatever the user's forward pass says to a stand-in for a tensor
        refuse(tracer.where(), f"its forward pass cannot be recorded: {_first_line(error)}")
    finally:
        torch.set_rng_state(state)
    (output,) = (node for node in graph.nodes if node.op == "output")
    result = output.args[0]
    value = result.meta["value"] if isinstance(result, fx.Node) else None
    if not isinstance(value, Tensor) or not value.is_floating_point():
        refuse("", f"its output is {_kind(result)}, not one tensor of real numbers", "Return one tensor.")
    (source,) = (node for node in graph.nodes if node.op == "placeholder")
    names = {node.target for node in graph.nodes if node.op == "get_attr"}
    held = {name: value for value, name in tracer.tensor_attrs.items() if name in names}
    constants = {name: value for name, value in held.items() if isinstance(value, Tensor)}
    return Trace(_needed(result), source, constants)


def twin(module: nn.Module, tensor: Callable[[Tensor], Tensor] | None = None, share: bool = False) -> nn.Module:
    """A copy of a module.

    Arguments:
        tensor: what becomes of the values of parameters and buffers.
        share: whether parameters and buffers are those of `module` instead.
    """
    memo: dict[int, Any] = {}
    for held in (*module.parameters(), *module.buffers()):
        if share:
            memo[id(held)] = held
        elif tensor is not None:
            new = tensor(held.detach())
            memo[id(held)] = nn.Parameter(new, held.requires_grad) if isinstance(held, nn.Parameter) else new
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:  # what copying a user's attributes may say
        refuse("", f"it cannot be copied: {_first_line(error)}")


def without_memory(module: nn.Module) -> nn.Module:
    """A copy on the device "meta", which knows shapes only."""
    return twin(module, lambda tensor: torch.empty_like(tensor, device="meta"))


def refuse(path: str, reason: str, hint: str = "") -> NoReturn:
    """Raise the error for a module, named by its path in the user's model."""
    where = f"module {path}" if path else "the module"
    raise NotRepresentableError(f"lift: {where}: {reason}." + (f" {hint}" if hint else ""))


class _Tracer(fx.Tracer):
    """Records calls and makes them on meta tensors."""

    proxy_buffer_attributes = True

    def __init__(self, source: Tensor, device: torch.device) -> None:
        super().__init__()
        self.source, self.device = source, device
        self.batch: _Value | None = None
        self._changed: dict[fx.Node, fx.Node] = {}
        self._names: dict[int, tuple[str, Tensor]] | None = None
        self._recording = True

    def where(self) -> str:
        """Path of the module that is being recorded."""
        return user_path(self.scope.module_path)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, LEAVES) and not has_hooks(m)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Value(node, self)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        return super().call_module(m, forward, args, kwargs) if self._recording else forward(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: Any) -> Any:
        """What fx does, which goes through all parameters and buffers whenever one of them is read."""
        if not self._recording or not isinstance(attr_val, Tensor):
            return attr_val
        if self._names is None:
            held = (*self.root.named_parameters(), *self.root.named_buffers())
            self._names = {id(tensor): (name, tensor) for name, tensor in reversed(held)}
        name, known = self._names.get(id(attr_val), ("", None))
        if known is not attr_val:
            return super().getattr(attr, attr_val, parameter_proxy_cache)
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self.create_proxy("get_attr", name, (), {})
        return parameter_proxy_cache[name]

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, _Value):
            node = a.node
            while node in self._changed:  # in-place functions give a tensor a new value under its old name
                node = self._changed[node]
            return node
        return super().create_arg(a)

    def create_node(self, *arguments: Any, **named: Any) -> fx.Node:
        node = super().create_node(*arguments, **named)
        node.meta["path"] = self.where()
        if node.op == "call_module":
            node.meta["sigma"] = isinstance(self.root.get_submodule(str(node.target)), ActivationModule)
        self._recording = False  # fx listens to every module of the process
        try:
            node.meta["value"] = self._evaluate(node)
        finally:
            self._recording = True
        if _in_place(node) and isinstance(changed := node.args[0], fx.Node):
            self._changed[changed] = node
        return node

    def to_bool(self, obj: fx.Proxy) -> bool:
        refuse(self.where(), f"its forward pass branches on {_kind(obj.node)}", "Branch on fixed settings only.")

    def batch_size(self) -> _Value:
        """The size of the batch: one value for all uses, so that equal shapes compare equal."""
        if self.batch is None:
            node = next(node for node in self.graph.nodes if node.op == "placeholder")
            self.batch = self.create_proxy("call_method", "size", (self.proxy(node), 0), {})  # type: ignore[assignment]
        assert self.batch is not None
        return self.batch

    def _evaluate(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self.source
        if node.op == "output":
            return None
        if node.op == "get_attr":
            owner, _, name = str(node.target).rpartition(".")
            held = getattr(self.root.get_submodule(owner), name)
            return held.to("meta") if isinstance(held, Tensor) else held
        args, kwargs = map_arg((node.args, node.kwargs), lambda n: n.meta["value"])
        if (shape := shape_of(node, args, kwargs)) is not None:
            like: Any = args[0] if isinstance(args[0], Tensor) else cast("Any", args[0])[0]
            return like.new_empty(shape)
        if node.op == "call_module":
            return self.root.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        if "device" in kwargs or getattr(node.target, "__name__", "") in _FACTORIES:
            kwargs = {**kwargs, "device": "meta"}
        return node.target(*args, **kwargs)  # type: ignore[operator]


class _Value(fx.Proxy):
    """A stand-in that answers questions about shapes and dtypes at once."""

    tracer: _Tracer

    @property
    def _meta(self) -> Any:
        return self.node.meta["value"]

    @property
    def shape(self) -> Any:
        if not isinstance(self._meta, Tensor):
            return self.__getattr__("shape")
        return _sizes(self.tracer, self._meta)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self._meta.ndim

    ndimension = dim
    ndim = property(dim)

    @property
    def dtype(self) -> torch.dtype:
        return self._meta.dtype

    @property
    def device(self) -> torch.device:
        return self.tracer.device

    @property
    def is_cuda(self) -> bool:
        return self.tracer.device.type == "cuda"

    @property
    def requires_grad(self) -> bool:
        return False

    def numel(self) -> Any:
        count = 1
        for size in self.shape:
            count = count * size
        return count

    def is_floating_point(self) -> bool:
        return self._meta.is_floating_point()

    def is_contiguous(self, *_: Any, **__: Any) -> bool:
        return True

    def __len__(self) -> int:
        if isinstance(self._meta, tuple | list):
            return len(self._meta)
        size = self._meta.shape[0]
        if size % BATCH:
            return size
        hint = "Write x.shape[0] in place of len(x)."
        refuse(self.tracer.where(), "its forward pass makes a number of the batch size", hint)

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))  # type: ignore[index]

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        hint = "Use torch.cat, torch.stack or torch.where."
        refuse(self.tracer.where(), "it writes into a part of a tensor", hint)

    def __int__(self) -> int:
        return self._number("the batch size or a value of a tensor")

    __index__ = __float__ = __int__

    def item(self) -> NoReturn:
        self._number("a value of a tensor")

    tolist = numpy = item

    def _number(self, what: str) -> NoReturn:
        refuse(self.tracer.where(), f"its forward pass makes a number of {what}", "Compute with tensors only.")


def _sizes(tracer: _Tracer, tensor: Tensor) -> tuple[Any, ...]:
    """The shape of a tensor, with multiples of the batch size as values."""
    sizes: list[Any] = []
    for size in tensor.shape:
        if size == 0 or size % BATCH:
            sizes.append(size)
        else:
            batch: Any = tracer.batch_size()
            sizes.append(batch if size == BATCH else batch * (size // BATCH))
    return tuple(sizes)


@contextmanager
def _factories(tracer: _Tracer) -> Iterator[None]:
    """Let torch's factory functions take the batch size as an argument."""

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            if any(isinstance(item, fx.Proxy) for item in tree_leaves((args, kwargs))):
                return tracer.create_proxy("call_function", function, args, kwargs)
            return function(*args, **kwargs)

        return record

    originals = {name: getattr(torch, name) for name in _FACTORIES}
    try:
        for name, function in originals.items():
            setattr(torch, name, wrapped(function))
        yield
    finally:
        for name, function in originals.items():
            setattr(torch, name, function)


def _needed(output: fx.Node) -> tuple[fx.Node, ...]:
    """The calls that the output depends on, in order; assertions and counters are left out."""
    needed = {output}
    for node in reversed(output.graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return tuple(node for node in output.graph.nodes if node in needed)


def _in_place(node: fx.Node) -> bool:
    """Whether a call overwrites its first argument."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op == "call_function" and node.target in _IN_PLACE_OPERATORS:
        return True
    overwrites = node.op in ("call_function", "call_method") and name.endswith("_") and not name.endswith("__")
    return overwrites or bool(node.kwargs.get("inplace"))


_IN_PLACE_OPERATORS = {getattr(operator, name) for name in ("iadd", "isub", "imul", "itruediv", "ipow", "imatmul")}


def has_hooks(module: nn.Module) -> bool:
    """Whether something may change what a module computes, besides its forward method."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def user_path(path: str) -> str:
    """A path in the user's model from one in the holder."""
    return path.removeprefix("module").removeprefix(".")


def _kind(value: object) -> str:
    """What a value is, for error messages."""
    value = value.meta["value"] if isinstance(value, fx.Node) else value
    if isinstance(value, Tensor):
        return f"a tensor of dtype {value.dtype}"
    return f"a {type(value).__name__}" if not isinstance(value, int | bool) else "the batch size"


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
