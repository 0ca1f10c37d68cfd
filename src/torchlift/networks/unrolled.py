"""What unrolled networks share: forward models, learnable operators, positive scalars, training in little memory."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from torchlift.core.checks import Shape, check_positive, check_size, check_tensor
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.networks.base import Network
from torchlift.networks.form import UnifiedForm
from torchlift.operators import Context, Dense, LinearOperator, OperatorStack, Reshape
from torchlift.operators.physics import is_physics, physics_operator

States = dict[int, Tensor]
"""Some of the states u_k, or of the activations z_k, by their place."""


class Iterative(Network):
    """A network whose layers are iterations of an algorithm."""

    _segment = 0

    def recompute(self, layers: int | None = None) -> Self:
        """Keep few states for the way back and repeat the rest of the way forward there; returns the network.

        The layers are divided into segments. Of all but the last only the states that later ones read are kept, and
        what lies between is computed a second time when the gradient arrives. Gradients are the same. With J layers in
        segments of √J the memory grows as √J and a step takes about a third longer.

        Arguments:
            layers: of a segment; √J by default, and 0 keeps everything again.
        """
        if layers is None:
            layers = max(1, math.isqrt(self.depth))
        self._segment = check_size(f"{type(self).__name__}.recompute layers", layers, minimum=0)
        return self

    def forward(self, y: Tensor, context: Context = None) -> Tensor:
        if self._segment == 0 or not torch.is_grad_enabled():
            return super().forward(y, context)
        self.check_input(y)
        return _output(self.operators(), y, context, self._segment)


def _output(form: UnifiedForm, y: Tensor, context: Context, length: int) -> Tensor:
    """N(y) with segments of so many layers, all but the last of which are checkpoints of torch."""
    from torch.utils.checkpoint import checkpoint

    u, z = {0: y}, cast("States", {})
    for first in range(0, form.depth, length):
        last = min(first + length, form.depth)
        if last == form.depth:
            u, z = _segment(form, first, last, u, z, context)
        else:
            # determinism is that of the layers, which draw no random numbers
            options: Any = {"use_reentrant": False, "context_fn": _contexts, "preserve_rng_state": False}
            u, z = checkpoint(_segment, form, first, last, u, z, context, **options)
    return form.output(_listed(u, form.depth + 1), context)


def _segment(form: UnifiedForm, first: int, last: int, u: States, z: States, context: Context) -> tuple[States, States]:
    """Forward substitution from layer `first` to `last`; returns what later layers and the output read."""
    u, z = dict(u), dict(z)
    for j in range(first, last):
        states = _listed(u, j + 1)
        z[j] = form.activations[j](form.pre_activation(j, states, context))
        u[j + 1] = form.couple(j, states, _listed(z, j + 1), context)
    later = range(last, form.depth)
    read = {k for rows in (form.W.rows, form.M.rows) for j in later for k, _ in rows[j]}
    read |= {k for k, _ in form.K.rows[0]}
    driving = {k for j in later for k, _ in form.V.rows[j]}
    return _chosen(u, read), _chosen(z, driving)


def _chosen(states: States, places: set[int]) -> States:
    return {k: state for k, state in states.items() if k in places}


def _listed(states: Mapping[int, Tensor], length: int) -> list[Tensor]:
    """The states in a list, as rows of a form read them; those that no row reads any more are missing."""
    return [states.get(k) for k in range(length)]  # type: ignore[misc]


def _contexts() -> tuple[AbstractContextManager[object], AbstractContextManager[object]]:
    """Functions of torch that mean something else on the way forward, as in `sweeping`, mean the same when repeated."""
    return nullcontext(), _inside(_get_current_function_mode_stack())


@contextmanager
def _inside(modes: list[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        yield


class Positive(nn.Module):
    """`count` positive numbers, learned through their logarithms so that they stay positive.

    Arguments:
        value: where they start.
        count: one for each layer, or 1 for all.
        like: whose dtype and device they have.
        shape: of what each layer has; () for one number.
    """

    def __init__(self, value: float, count: int, like: Tensor, shape: Shape = ()) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((count, *shape), math.log(value), dtype=like.dtype, device=like.device))

    def parameter_groups(self) -> list[dict[str, Any]]:
        return [{"params": [self.log], "kind": "logarithm", "stacked": True}]

    def values(self, count: int) -> tuple[Tensor, ...]:
        """One 0-d tensor per layer; a single number serves all of them."""
        numbers = self.log.exp().unbind(0)
        return numbers if len(numbers) == count else numbers * count


#: How far matrices of unrolled algorithms move where layers of a chain move by ρ of their size: they know the forward
#: model and start at a method that works.
MATRICES = 1.4


class Tied(nn.Module):
    """`count` copies of a linear operator with their own weights, or one that all layers share."""

    def __init__(self, operator: LinearOperator, count: int, tied: bool) -> None:
        super().__init__()
        self.stack = OperatorStack([operator] * (1 if tied else count), trainable=True)

    def parameter_groups(self) -> list[dict[str, Any]]:
        shared = {"kind": "entries", "stacked": True, "scale": MATRICES}
        return [{"params": [parameter], **shared} for parameter in self.stack.parameters()]

    def operators(self, count: int) -> tuple[LinearOperator, ...]:
        operators = self.stack.operators()
        return operators if len(operators) == count else operators * count


class Unrolled(Iterative):
    """An algorithm for y = Hx with a fixed number of iterations; it keeps H in `physics`."""

    physics: OperatorStack

    def with_operator(self, H: LinearOperator) -> Unrolled:
        """The same network, sharing its parameters, for another forward model on the same images.

        Arguments:
            H: image → measurement.
        """
        where = f"{type(self).__name__}.with_operator"
        operator = as_operator(where, H, in_shape=self.out_shape)
        twin = copy.copy(self)
        twin._modules = {**self._modules, "physics": OperatorStack([operator], trainable=False)}
        twin.in_shape = operator.out_shape
        return twin


def as_operator(
    where: str, value: object, in_shape: Shape | None = None, out_shape: Shape | None = None
) -> LinearOperator:
    """A linear operator from one, or from a matrix acting on flattened samples of the given shape."""
    if isinstance(value, LinearOperator):
        operator = value
    elif isinstance(value, Tensor):
        matrix = check_tensor(where, value)
        if matrix.ndim != 2:
            invalid_value(where, "a matrix", f"a tensor of shape {tuple(matrix.shape)}")
        operator = _on_samples(Dense(matrix), in_shape, out_shape)
    else:
        invalid_type(where, "a LinearOperator or a matrix", value)
    for name, expected, got in (("input", in_shape, operator.in_shape), ("output", out_shape, operator.out_shape)):
        if expected is not None and expected != got:
            invalid_value(where, f"{name} shape {expected}", got)
    return operator


def forward_model(where: str, value: object, shape: Shape | None, context: Context) -> LinearOperator:
    """H as an operator, from one, from a matrix, or from a physics of deepinv.

    Arguments:
        where: whose argument it is.
        value: H.
        shape: that of images, which a physics need not know; None for its own `img_size`.
        context: an example, for a physics that depends on the sample.
    """
    if not is_physics(value):
        return as_operator(where, value)
    shape = getattr(value, "img_size", None) if shape is None else shape
    if shape is None:
        hint = "Try torchlift.contrib.deepinv.from_physics(physics, (channels, height, width))."
        invalid_value(where, "a physics with an img_size", f"a {type(value).__name__} without one", hint)
    return physics_operator(where, cast("nn.Module", value), shape, context)


def _on_samples(dense: Dense, in_shape: Shape | None, out_shape: Shape | None) -> LinearOperator:
    """Reshape around a matrix where samples are images and the sizes agree."""
    operator: LinearOperator = dense
    if in_shape is not None and len(in_shape) > 1 and math.prod(in_shape) == dense.in_shape[0]:
        operator = operator @ Reshape(in_shape, dense.in_shape)
    if out_shape is not None and len(out_shape) > 1 and math.prod(out_shape) == dense.out_shape[0]:
        operator = Reshape(dense.out_shape, out_shape) @ operator
    return operator


def starting_value(where: str, given: float | None, default: Callable[[], float]) -> float:
    """The given value, or the default, whose norms (and the context they may need) are asked for only then."""
    return default() if given is None else check_positive(where, given)


def set_learnable(where: str, parts: dict[str, nn.Module], learnable: Collection[str]) -> None:
    """Freeze every part that is not named in `learnable`."""
    unknown = sorted(set(learnable) - set(parts))
    if isinstance(learnable, str) or unknown:
        invalid_value(f"{where} learnable", f"names among {sorted(parts)}", learnable if unknown == [] else unknown)
    for name, part in parts.items():
        part.requires_grad_(name in learnable)


def reference(*operators: LinearOperator) -> Tensor:
    """A tensor whose dtype and device the scalars of a network follow."""
    for operator in operators:
        for tensor in operator.tensors().values():
            return tensor
    return torch.empty(0)
