"""Blocks of W and K, and constants b and d, from the calls between states."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, fx
from torch.fx.node import map_arg

from torchlift.core.checks import Shape
from torchlift.networks.calls import (
    ADDITIVE,
    DROPOUTS,
    WEIGHTED,
    arguments,
    call,
    has_constant,
    is_batch_first,
    is_linear,
    name_of,
)
from torchlift.networks.nonlinear import Jacobian, contextual, scale_and_shift
from torchlift.networks.rows import Plan, Row, label, shape_of
from torchlift.networks.trace import BATCH
from torchlift.operators import (
    AveragePool2d,
    Compose,
    Conv2d,
    ConvTranspose2d,
    Dense,
    Diagonal,
    Functional,
    Identity,
    LinearOperator,
    Reshape,
    Scaled,
    Sum,
)

_RESHAPES = {"reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "ravel"}
_NOTHING = {*DROPOUTS, "contiguous", "clone", "alias", "to", "float", "double", "half", "bfloat16", "type", "type_as"}
_POOLING = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


class AffineMaps:
    """Operators and constants of the values between states, at the current parameters.

    Arguments:
        plan: the rows.
        value: the tensor (or number) of a call that does not depend on the input, for a batch of the given size.
        run: a row's v from {k: u_k}, for opaque rows.
        like: a tensor of the dtype and on the device of the states.
    """

    def __init__(
        self,
        plan: Plan,
        value: Callable[[fx.Node, int], Any],
        run: Callable[[Row, Mapping[int, Tensor]], Tensor],
        like: Tensor,
    ) -> None:
        self.plan, self.value, self.run = plan, value, run
        self._depends, self._like = plan.depends, like
        self._known: dict[fx.Node, tuple[dict[int, LinearOperator], Tensor | None]] = {}

    def row(self, row: Row) -> tuple[dict[int, LinearOperator], Tensor | None]:
        """{k: block that reads u_k} and the constant of a row."""
        if row.kind != "opaque":
            return self._of(row.source, top=row.source is row.node)
        shapes = {k: shape_of(node) for node, k in self.plan.states.items()}
        function = lambda u, row=row: self.run(row, u)  # noqa: E731
        blocks: dict[int, LinearOperator] = {
            k: Jacobian(function, row.path, k, row.reads, shapes[k], shape_of(row.node)) for k in row.reads
        }
        return blocks, None

    def _of(self, node: fx.Node, top: bool = False) -> tuple[dict[int, LinearOperator], Tensor | None]:
        """Blocks and constant of a value; with `top`, those of the calls that make a state, not of the state itself."""
        if node in self.plan.states and not top:
            return {self.plan.states[node]: Identity(shape_of(node))}, None
        if node not in self._known:
            self._known[node] = self._blocks(node), self._constant(node)
        return self._known[node]

    def _changing(self, node: fx.Node) -> list[fx.Node]:
        return [argument for argument in node.all_input_nodes if argument in self._depends]

    def _source(self, node: fx.Node) -> fx.Node:
        """The nearest value with the batch first that a call depends on, before splits and permutations."""
        (parent,) = self._changing(node)
        return parent if is_batch_first(parent, BATCH) else self._source(parent)

    def _sources(self, node: fx.Node) -> list[fx.Node]:
        """The values with the batch first that a call depends on."""
        changing = self._changing(node)
        return changing if all(is_batch_first(argument, BATCH) for argument in changing) else [self._source(node)]

    def _blocks(self, node: fx.Node) -> dict[int, LinearOperator]:
        total: dict[int, LinearOperator] = {}
        for argument in self._sources(node):
            operator = self._operator(node, argument)
            for k, block in self._of(argument)[0].items():
                product = _product(operator, block)
                total[k] = Sum(total[k], product) if k in total else product
        return total

    # -- one call -----------------------------------------------------------------------------------------------------

    def _operator(self, node: fx.Node, argument: fx.Node) -> LinearOperator:
        """The linear part of a call in one of its arguments."""
        name, before, after = name_of(node), shape_of(argument), shape_of(node)
        if argument not in node.all_input_nodes:
            return self._functional(node, argument)
        if name in _NOTHING:
            return Identity(before)
        if name in _RESHAPES:
            return Identity(before) if before == after else Reshape(before, after)
        if name in WEIGHTED:
            return self._weighted(node, before, after)
        if name in ("batch_norm", "instance_norm") and self._is_linear(node):
            return Diagonal(self._scale_and_shift(node)[0], before)
        if name in ("add", "sub") and before == after and node.args.count(argument) == 1:
            return self._added(node, argument)
        if name in ("mul", "div") and before == after:
            return self._multiplied(node, argument)
        if name == "neg":
            return Scaled(Identity(before), -1.0)
        if name == "avg_pool2d" and (pool := _average_pool(node, before)) is not None:
            return pool
        if not self._is_linear(node):
            return self._at_context(node, before)
        return self._functional(node, argument)

    def _weighted(self, node: fx.Node, before: Shape, after: Shape) -> LinearOperator:
        name, given = name_of(node), arguments(node)
        weight = self._tensor(given["weight"])
        settings = {key: item for key, item in given.items() if key not in ("input", "weight", "bias")}
        if name == "linear" and len(before) == 1:
            return Dense(weight)
        image = before if len(before) == 3 else None
        if name == "conv2d" and image is not None:
            return Conv2d(weight, (image[0], image[1], image[2]), **_singles(settings))
        if name == "conv_transpose2d" and image is not None:
            return ConvTranspose2d(weight, (image[0], image[1], image[2]), **_singles(settings))
        function = node.target
        return Functional(lambda x, w: function(x, w, **settings), before, after, (weight,), name)  # type: ignore[operator]

    def _added(self, node: fx.Node, argument: fx.Node) -> LinearOperator:
        factor = _sign(node, 1 if node.args[1] is argument else 0)
        identity = Identity(shape_of(argument))
        return identity if factor == 1.0 else Scaled(identity, factor)

    def _multiplied(self, node: fx.Node, argument: fx.Node) -> LinearOperator:
        (other,) = (item for item in node.args[:2] if item is not argument)
        shape = shape_of(node)
        if not isinstance(other, fx.Node):
            number = float(cast("float", other))
            return Scaled(Identity(shape), number if name_of(node) == "mul" else 1 / number)
        factor = self._sample(other, node)
        if not isinstance(factor, Tensor) or factor.ndim > len(shape):
            return self._functional(node, argument)
        return Diagonal(factor if name_of(node) == "mul" else 1 / factor, shape)

    def _at_context(self, node: fx.Node, before: Shape) -> LinearOperator:
        given = {key: item for key, item in arguments(node).items() if not isinstance(item, fx.Node)}
        after = shape_of(node)
        operator = Functional(contextual(name_of(node), given).apply, before, after, name=label(node), key=label(node))
        weight = self._affine_weights(node)[0]
        return operator if weight is None else Compose(Diagonal(weight, after), operator)

    def _functional(self, node: fx.Node, argument: fx.Node) -> LinearOperator:
        """The linear part of any other call, evaluated with its other arguments and added constants set to zero."""
        chain = self._chain(node, argument)
        tensors: dict[fx.Node, Tensor] = {}
        for link in chain:
            for item in link.all_input_nodes:
                if item not in self._depends and isinstance(item.meta["value"], Tensor):
                    tensors[item] = self._tensor(item)
        order = tuple(tensors)

        def function(x: Tensor, *held: Tensor) -> Tensor:
            fixed = dict(zip(order, held, strict=True))
            env: dict[fx.Node, Any] = {argument: x}

            def lookup(link: fx.Node, item: fx.Node) -> Any:
                if item in env:
                    return env[item]
                value = item.meta["value"]
                if not isinstance(value, Tensor):
                    return self.value(item, len(x))
                if item in fixed and name_of(link) not in ADDITIVE:
                    return fixed[item]
                sizes = [n if n % BATCH else len(x) * (n // BATCH) for n in value.shape]
                return x.new_zeros(sizes)

            for link in chain:
                look = lambda item, link=link: lookup(link, item)  # noqa: E731
                args, kwargs = map_arg((link.args, link.kwargs), look)
                if name_of(link) in ("add", "sub"):
                    args = tuple(
                        0.0 if isinstance(item, int | float) and i < 2 else item for i, item in enumerate(args)
                    )
                if name_of(link) == "pad":
                    kwargs = {key: item for key, item in kwargs.items() if key != "value"}
                    args = args[:3]
                env[link] = call(link, args, kwargs, _no_module)
            return env[node]

        return Functional(function, shape_of(argument), shape_of(node), tuple(tensors.values()), name_of(node))

    def _chain(self, node: fx.Node, argument: fx.Node) -> list[fx.Node]:
        """The calls from an argument to the call: the splits between them first."""
        chain = [node]
        while argument not in chain[0].all_input_nodes:
            (parent,) = self._changing(chain[0])
            chain.insert(0, parent)
        return chain

    # -- constants ----------------------------------------------------------------------------------------------------

    def _constant(self, node: fx.Node) -> Tensor | None:
        """The constant part of a value, which broadcasts to one sample; None for zero."""
        name, changing = name_of(node), self._sources(node)
        constants = {argument: self._of(argument)[1] for argument in changing}
        fixed = [a for a in node.all_input_nodes if a not in self._depends and isinstance(a.meta["value"], Tensor)]
        adds = has_constant(node) or (name in ADDITIVE and bool(fixed))
        if not adds and all(constant is None for constant in constants.values()):
            return None
        shape = shape_of(node)
        if not self._is_linear(node):
            return self._affine_weights(node)[1]
        if name in WEIGHTED and constants[changing[0]] is None:
            bias = self._tensor(arguments(node)["bias"])
            return bias if name == "linear" else bias.reshape(-1, *(1,) * (len(shape) - 1))
        if name in ("batch_norm", "instance_norm"):
            scale, shift = self._scale_and_shift(node)
            inner = constants[changing[0]]
            return shift if inner is None else inner * scale + shift
        if name in ("add", "sub") and all(isinstance(item, fx.Node) for item in node.args[:2]):
            total: Tensor | None = None
            for position, item in enumerate(node.args[:2]):
                assert isinstance(item, fx.Node)
                part = constants[item] if item in constants else self._sample(item, node)
                if part is not None:
                    signed = part * _sign(node, position)
                    total = signed if total is None else total + signed
            return total
        return self._evaluated(node, constants)

    def _evaluated(self, node: fx.Node, constants: Mapping[fx.Node, Tensor | None]) -> Tensor:
        """The constant of any call: its value where all states are zero."""
        (first, *_) = constants
        chain = self._chain(node, first) if len(constants) == 1 else [node]
        env: dict[fx.Node, Any] = {}
        for argument, constant in constants.items():
            zeros = self._like.new_zeros(shape_of(argument))
            env[argument] = (zeros if constant is None else constant.expand(shape_of(argument)))[None]
        for link in chain:
            args, kwargs = map_arg(
                (link.args, link.kwargs), lambda item: env[item] if item in env else self.value(item, 1)
            )
            env[link] = call(link, args, kwargs, _no_module)
        return env[node][0]

    # -- details ------------------------------------------------------------------------------------------------------

    def _is_linear(self, node: fx.Node) -> bool:
        return is_linear(node, self._depends.__contains__)

    def _tensor(self, item: Any) -> Any:
        return self.value(item, 1) if isinstance(item, fx.Node) else item

    def _sample(self, item: fx.Node, node: fx.Node) -> Any:
        """The value of a constant argument for one sample: without its batch axis of size 1."""
        value = self.value(item, 1)
        full = isinstance(value, Tensor) and value.ndim == node.meta["value"].ndim
        return value[0] if full else value

    def _affine_weights(self, node: fx.Node) -> tuple[Tensor | None, Tensor | None]:
        """Weight and bias of a norm, shaped to broadcast over one sample."""
        given, shape = arguments(node), shape_of(node)
        parts = []
        for name in ("weight", "bias"):
            tensor = self._tensor(given.get(name))
            if tensor is not None and name_of(node) != "layer_norm":
                tensor = tensor.reshape(-1, *(1,) * (len(shape) - 1))
            parts.append(tensor)
        return parts[0], parts[1]

    def _scale_and_shift(self, node: fx.Node) -> tuple[Tensor, Tensor]:
        """A batch norm in eval mode is x ↦ scale·x + shift, one of each per channel."""
        given, shape = arguments(node), shape_of(node)
        names = ("running_mean", "running_var", "weight", "bias")
        mean, variance, weight, bias = (self._tensor(given.get(name)) for name in names)
        scale, shift = scale_and_shift(mean, variance, weight, bias, given.get("eps", 1e-5))
        axes = (-1, *(1,) * (len(shape) - 1))
        return scale.reshape(axes), shift.reshape(axes)


def _product(left: LinearOperator, right: LinearOperator) -> LinearOperator:
    if isinstance(left, Identity):
        return right
    return left if isinstance(right, Identity) else Compose(left, right)


def _sign(node: fx.Node, position: int) -> float:
    if position == 0:
        return 1.0
    return float(cast("float", arguments(node).get("alpha", 1.0))) * (-1.0 if name_of(node) == "sub" else 1.0)


def _singles(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a convolution with a number for each tuple of one."""
    plain = {key: tuple(item) if isinstance(item, list) else item for key, item in settings.items()}
    return {key: item[0] if isinstance(item, tuple) and len(item) == 1 else item for key, item in plain.items()}


def _average_pool(node: fx.Node, before: Shape) -> LinearOperator | None:
    given: dict[str, Any] = {**dict(zip(_POOLING, node.args, strict=False)), **node.kwargs}
    if len(before) != 3 or given.get("ceil_mode") or given.get("divisor_override"):
        return None
    stride = given.get("stride") or None
    count = given.get("count_include_pad", True)
    return AveragePool2d(
        (before[0], before[1], before[2]), given["kernel_size"], stride, given.get("padding", 0), count
    )


def _no_module(path: str) -> Any:
    raise AssertionError(f"{path} is not linear")
