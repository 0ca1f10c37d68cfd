"""Operators from what others wrote: linear functions of torch, physics of deepinv."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call

from torchlift.core.checks import Shape, check_shape
from torchlift.core.errors import TorchliftError, invalid_type, invalid_value
from torchlift.operators.base import BetweenShapes, Context, LinearOperator
from torchlift.operators.context import context_batch, map_context


@dataclass(frozen=True, eq=False)
class Functional(BetweenShapes):
    """x ↦ f(x, *held), or f(x, c, *held) with a tensor c of the context.

    A linear map is its own derivative, so its adjoint is its vector–Jacobian
    product, which `torch.func.vjp` finds.

    Arguments:
        function: f, linear in x for samples (B, *from_shape).
        from_shape, to_shape: shapes of one sample of x and of f(x).
        held: tensors that f needs, such as weights.
        name: what pictures show.
        key: name of a tensor in the context, such as the selection of a max-pooling; None where f needs none.
    """

    function: Callable[..., Tensor]
    from_shape: Shape
    to_shape: Shape
    held: tuple[Tensor, ...] = ()
    name: str = "f"
    key: str | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            invalid_type("Functional function", "a function", self.function)
        super().__post_init__()

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        if self.key is None:
            return self.function(x, *self.held)
        if not isinstance(context, Mapping) or self.key not in context:
            came = sorted(context) if isinstance(context, Mapping) else type(context).__name__
            hint = "Pass context=network.context(inputs), or hold it under this name."
            invalid_value(self.name, f"a per-sample context with a tensor {self.key!r}", came, hint)
        return self.function(x, context[self.key], *self.held)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        zero = y.new_zeros(y.shape[0], *self.from_shape)
        return torch.func.vjp(lambda x: self.forward(x, context), zero)[1](y)[0]

    def symbol(self) -> str:
        return self.name


#: Relative error that may be left in linearity and adjointness: a physics may compute in single precision.
TOLERANCE = 1e-5

#: What torch and a physics raise where shapes or dtypes do not fit.
_FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError)


@dataclass(frozen=True, eq=False)
class PhysicsOperator(LinearOperator):
    """x ↦ A(x) of a physics, such as a `deepinv.physics.LinearPhysics`; made by `physics_operator`.

    The floating-point tensors of the physics (kernels, masks, matrices) are held
    here, and are put in its place during a call. So they are converted, moved and
    differentiated like those of every operator, and the physics stays as it is.
    What the context has under the name of a parameter of the physics, such as a
    mask per image, is passed on to it.

    Arguments:
        physics: a module with `A` and `A_adjoint`.
        image_shape, measurement_shape: of one x and of one A(x).
        names: of the tensors inside the physics.
        values: the tensors.
        only: the one dtype that A computes in, whatever it is given; None where it follows its argument.
    """

    physics: nn.Module
    image_shape: Shape
    measurement_shape: Shape
    names: tuple[str, ...]
    values: tuple[Tensor, ...]
    only: torch.dtype | None = None

    @property
    def in_shape(self) -> Shape:
        return self.image_shape

    @property
    def out_shape(self) -> Shape:
        return self.measurement_shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return self._call("A", x, context)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return self._call("A_adjoint", y, context)

    def symbol(self) -> str:
        return type(self.physics).__name__

    def present(self) -> PhysicsOperator:
        """The same operator over the tensors that the physics holds now."""
        names, values = _held(self.physics)
        return replace(self, names=names, values=values)

    def __deepcopy__(self, memo: dict[int, Any]) -> LinearOperator:
        # the physics is never changed, and may hold a torch.Generator, which cannot be copied
        return self.map_tensors(lambda _, tensor: copy.deepcopy(tensor, memo))

    def _call(self, method: str, x: Tensor, context: Context) -> Tensor:
        argument, values, parameters = x, self.values, self._parameters(context)
        if self.only is not None:
            argument, values = x.to(self.only), tuple(value.to(self.only) for value in values)
            parameters = {name: value.to(self.only) for name, value in parameters.items()}
        held = dict(zip(self.names, values, strict=True))
        # a physics keeps the parameters it is called with: they are put in like all others, and taken out again
        held |= {path: parameters[name] for path, name in _buffers(self.physics).items() if name in parameters}
        state = {f"physics.{path}": value for path, value in held.items()}
        measured = functional_call(_Method(self.physics, method), state, (argument,), parameters)
        return measured.to(x.dtype) if isinstance(measured, Tensor) and measured.is_floating_point() else measured

    def _parameters(self, context: Context) -> dict[str, Tensor]:
        """What the context says about parameters of the physics."""
        if context is None:
            return {}
        if not isinstance(context, Mapping):
            hint = "Pass context={'mask': tensor}, with the name that the physics has for it."
            invalid_value(f"{self.symbol()} context", "tensors by name", "one tensor without a name", hint)
        names = set(_buffers(self.physics).values())
        return {name: value for name, value in context.items() if name in names}


class _Method(nn.Module):
    """A physics with one of its methods as `forward`, which is what `functional_call` calls."""

    def __init__(self, physics: nn.Module, method: str) -> None:
        super().__init__()
        self.physics = physics
        self.method = method

    def forward(self, x: Tensor, **parameters: Tensor) -> Tensor:
        return getattr(self.physics, self.method)(x, **parameters)


def is_physics(value: object) -> bool:
    """Whether something has a forward model `A` and its adjoint `A_adjoint`."""
    return isinstance(value, nn.Module) and all(callable(getattr(value, name, None)) for name in ("A", "A_adjoint"))


def physics_operator(
    where: str, physics: nn.Module, in_shape: object, context: Context = None, batch: int | None = None
) -> PhysicsOperator:
    """A physics as an operator, tried once: dtypes, shapes, linearity, adjointness.

    A physics that cannot compute in double precision is used in the precision it has.

    Arguments:
        where: whose argument it is, for messages.
        physics: a module with `A` and `A_adjoint`.
        in_shape: shape of one image.
        context: an example, where parameters differ from image to image.
        batch: number of images that the physics holds parameters for; None if they serve all images.
    """
    shape = check_shape(f"{where} in_shape", in_shape)
    operator = PhysicsOperator(physics, shape, (), *_held(physics))
    count = (batch or 2) if context is None else context_batch(f"{where} context", context)
    try:
        trial = _try(where, operator, context, count)
    except TorchliftError:
        raise
    except _FAILURES:
        operator = replace(operator, only=operator.values[0].dtype if operator.values else torch.get_default_dtype())
        try:
            trial = _try(where, operator, context, count)
        except _FAILURES as error:
            got = f"{type(error).__name__} from it: {str(error).partition(chr(10))[0]}"
            _refuse(where, f"a physics for images of shape {operator.in_shape}", got)
    return replace(operator, measurement_shape=_judge(where, trial))


def _held(physics: nn.Module) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    """Names and values of the tensors that A depends on; the strength of the noise plays no part in it."""
    tensors = dict(physics.named_parameters()) | dict(physics.named_buffers())
    held = {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.is_floating_point() and not name.startswith("noise_model.")
    }
    return tuple(held), tuple(held.values())


def _buffers(physics: nn.Module) -> dict[str, str]:
    """Path -> name of all buffers, those included that have no tensor yet."""
    modules = physics.named_modules()
    return {f"{path}.{name}" if path else name: name for path, module in modules for name in module._buffers}


class _Trial(NamedTuple):
    """Images a, and what a physics makes of them and of others b: Aa, Ab, A(2.5a − b), AᵀAb."""

    a: Tensor
    of_a: Tensor
    of_b: Tensor
    of_both: Tensor
    back: Tensor


@torch.no_grad()
def _try(where: str, operator: PhysicsOperator, context: Context, batch: int) -> _Trial:
    device = operator.values[0].device if operator.values else torch.device("cpu")
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn((2, batch, *operator.in_shape), generator=generator, dtype=torch.float64).to(device)
    operator = replace(operator, values=tuple(tensor.detach().double() for tensor in operator.values))
    context = map_context(context, lambda tensor: tensor.double())
    of_a, of_b, of_both = (operator.forward(x, context) for x in (a, b, 2.5 * a - b))
    if not isinstance(of_a, Tensor) or not of_a.is_floating_point():
        kind = of_a.dtype if isinstance(of_a, Tensor) else type(of_a).__name__
        invalid_value(where, "one real tensor of measurements", kind, "Adapt each part of a stacked physics by itself.")
    return _Trial(a, of_a, of_b, of_both, operator.adjoint(of_b, context))


def _judge(where: str, trial: _Trial) -> Shape:
    """The shape of measurements, if the physics is a linear map with its adjoint."""
    measured, shape = trial.of_a, tuple(trial.a.shape[1:])
    if measured.ndim < 2 or len(measured) != len(trial.a):
        _refuse(where, f"one measurement for each of {len(trial.a)} images", f"shape {tuple(measured.shape)}")
    if trial.back.shape != trial.a.shape:
        _refuse(where, f"an adjoint that gives images of shape {shape}", f"shape {tuple(trial.back.shape[1:])}")
    difference, size = float((trial.of_both - 2.5 * measured + trial.of_b).norm()), float(trial.of_both.norm())
    if not difference <= TOLERANCE * size:
        got = f"A(2.5a − b) that differs from 2.5A(a) − A(b) by {difference:.1e}, where its norm is {size:.1e}"
        invalid_value(where, "a linear physics", got, "Only linear forward models have an adjoint.")
    # ⟨A a, A b⟩ = ⟨a, Aᵀ A b⟩
    difference = abs(float((measured * trial.of_b).sum() - (trial.a * trial.back).sum()))
    size = float(measured.norm() * trial.of_b.norm())
    if not difference <= TOLERANCE * size:
        hint = "deepinv.physics.adjoint_function makes an exact adjoint from A."
        got = f"one that differs by {difference / size:.1e} of the norms"
        invalid_value(where, "a physics whose A_adjoint is the adjoint of its A", got, hint)
    return tuple(measured.shape[1:])


def _refuse(where: str, expected: str, got: str) -> NoReturn:
    hint = (
        "Give the shape without the batch axis, and an example context={'mask': …} "
        "for parameters that differ from image to image."
    )
    invalid_value(where, expected, got, hint)
