"""The contract of a linear map between batches of tensors, and the algebra of such maps.

Adjoints, multiples, products and sums belong to the contract itself: they are
what makes `A.T`, `2 * A`, `A @ B` and `A + B` work for every operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_batch, check_instance, check_number, check_shape, check_tensor
from torchlift.core.errors import invalid_value
from torchlift.core.trees import leaves, map_leaves
from torchlift.operators import norms
from torchlift.operators.context import Context
from torchlift.operators.geometry import check_image_shape


class LinearOperator(ABC):
    """A linear map A from (B, *in_shape) to (B, *out_shape).

    Operators are frozen dataclasses that hold tensors and other operators,
    never state of their own, so they are cheap enough to be built anew from a
    network's parameters in every pass and autograd sees through them.
    `forward` and `adjoint` trust their arguments; calling the operator checks
    them first.
    """

    # numpy scalars must leave `c * A` to us instead of looping over it
    __array_ufunc__ = None

    @property
    @abstractmethod
    def in_shape(self) -> Shape:
        """Shape of one input sample."""

    @property
    @abstractmethod
    def out_shape(self) -> Shape:
        """Shape of one output sample."""

    @abstractmethod
    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        """A x for x of shape (B, *in_shape)."""

    @abstractmethod
    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        """Aᵀ y for y of shape (B, *out_shape): ⟨A x, y⟩ = ⟨x, Aᵀ y⟩."""

    def affine(self, x: Tensor, bias: Tensor | None, context: Context = None) -> Tensor:
        """A x + bias, for a bias that broadcasts to out_shape; overridden where torch fuses the two."""
        product = self.forward(x, context)
        return product if bias is None else product + bias

    def __call__(self, x: Tensor, context: Context = None) -> Tensor:
        """A x, after checking the shape of x."""
        return self.forward(check_batch(f"{type(self).__name__} input", x, self.in_shape), context)

    @property
    def T(self) -> LinearOperator:
        """The adjoint as an operator."""
        return Adjoint(self)

    def __matmul__(self, other: LinearOperator) -> LinearOperator:
        return Compose(self, other) if isinstance(other, LinearOperator) else NotImplemented

    def __add__(self, other: LinearOperator) -> LinearOperator:
        return Sum(self, other) if isinstance(other, LinearOperator) else NotImplemented

    def __sub__(self, other: LinearOperator) -> LinearOperator:
        return Sum(self, -other) if isinstance(other, LinearOperator) else NotImplemented

    def __neg__(self) -> LinearOperator:
        return Scaled(self, -1.0)

    def __mul__(self, factor: float | Tensor) -> LinearOperator:
        return Scaled(self, factor) if isinstance(factor, Real | Tensor) else NotImplemented

    __rmul__ = __mul__

    @property
    def is_orthogonal(self) -> bool:
        """Whether AᵀA = AAᵀ = I is known, so that A changes no norm in a product."""
        return False

    def norm_bound(self, context: Context = None) -> float:
        """An upper bound of ‖A‖₂, at most 1 % above it; exact where a closed form is known.

        With a per-sample context the bound holds for every sample of it.
        """
        return 1.0 if self.is_orthogonal else norms.upper_bound(self, context)

    def to_dense(self, context: Context = None) -> Tensor:
        """The matrix (out, in) of this operator on flattened samples."""
        return norms.dense_matrix(self, context)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor this operator holds, by dotted path: {"weight": …, "operator.kernel": …}."""
        return {path: leaf for path, leaf in leaves(self).items() if isinstance(leaf, Tensor)}

    def map_tensors(self, function: Callable[[str, Tensor], Tensor]) -> LinearOperator:
        """The same operator with every held tensor t replaced by function(path, t) of the same shape."""
        return map_leaves(function, self)

    def symbol(self) -> str:
        """A short name for pictures of block operators."""
        return type(self).__name__


class OnShape(LinearOperator):
    """An operator with a field `shape`, that of one input and, unless it says otherwise, of one output."""

    shape: Shape

    def __post_init__(self) -> None:
        store(self, shape=check_shape(f"{type(self).__name__} shape", self.shape))

    @property
    def in_shape(self) -> Shape:
        return self.shape

    @property
    def out_shape(self) -> Shape:
        return self.shape


class OnImages(OnShape):
    """An operator whose `shape` is (channels, height, width)."""

    def __post_init__(self) -> None:
        store(self, shape=check_image_shape(f"{type(self).__name__} shape", self.shape))


class BetweenShapes(LinearOperator):
    """An operator with fields `from_shape` and `to_shape`, those of one input and of one output."""

    from_shape: Shape
    to_shape: Shape

    def __post_init__(self) -> None:
        for name in ("from_shape", "to_shape"):
            store(self, **{name: check_shape(f"{type(self).__name__} {name}", getattr(self, name))})

    @property
    def in_shape(self) -> Shape:
        return self.from_shape

    @property
    def out_shape(self) -> Shape:
        return self.to_shape


@dataclass(frozen=True, eq=False)
class Adjoint(LinearOperator):
    """Aᵀ, with the roles of `forward` and `adjoint` exchanged."""

    operator: LinearOperator

    @property
    def in_shape(self) -> Shape:
        return self.operator.out_shape

    @property
    def out_shape(self) -> Shape:
        return self.operator.in_shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return self.operator.adjoint(x, context)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return self.operator.forward(y, context)

    @property
    def T(self) -> LinearOperator:
        return self.operator

    @property
    def is_orthogonal(self) -> bool:
        return self.operator.is_orthogonal

    def norm_bound(self, context: Context = None) -> float:
        return self.operator.norm_bound(context)

    def to_dense(self, context: Context = None) -> Tensor:
        return self.operator.to_dense(context).T

    def symbol(self) -> str:
        inner = self.operator.symbol()
        return f"({inner})ᵀ" if "·" in inner or " " in inner else f"{inner}ᵀ"


@dataclass(frozen=True, eq=False)
class Scaled(LinearOperator):
    """c A for a number or a 0-d tensor c."""

    operator: LinearOperator
    factor: float | Tensor

    def __post_init__(self) -> None:
        _check_operator("Scaled operator", self.operator)
        if not isinstance(self.factor, Tensor):
            check_number("Scaled factor", self.factor)
        elif check_tensor("Scaled factor", self.factor).ndim != 0:
            invalid_value("Scaled factor", "a number or a 0-d tensor", f"shape {tuple(self.factor.shape)}")

    @property
    def in_shape(self) -> Shape:
        return self.operator.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.operator.out_shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return self.factor * self.operator.forward(x, context)

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return self.factor * self.operator.adjoint(y, context)

    def norm_bound(self, context: Context = None) -> float:
        factor = self.factor.detach() if isinstance(self.factor, Tensor) else self.factor
        return abs(float(factor)) * self.operator.norm_bound(context)

    def symbol(self) -> str:
        inner = self.operator.symbol()
        inner = f"({inner})" if isinstance(self.operator, Sum) else inner
        factor = float(self.factor.detach() if isinstance(self.factor, Tensor) else self.factor)
        return f"−{inner}" if factor == -1 else f"{factor:.3g}·{inner}".replace("-", "−")


@dataclass(frozen=True, eq=False, init=False)
class Compose(LinearOperator):
    """The product A₁ A₂ … Aₙ: the last operator is applied first, as with matrices."""

    operators: tuple[LinearOperator, ...]

    def __init__(self, *operators: LinearOperator) -> None:
        flat = _flatten("Compose", Compose, operators)
        for left, right in pairwise(flat):
            if left.in_shape != right.out_shape:
                expected = f"an input of {_name(left)} that fits the output of {_name(right)}"
                hint = "Operators apply from right to left; Reshape changes a shape."
                invalid_value("Compose", expected, f"{left.in_shape} after {right.out_shape}", hint)
        store(self, operators=flat)

    @property
    def in_shape(self) -> Shape:
        return self.operators[-1].in_shape

    @property
    def out_shape(self) -> Shape:
        return self.operators[0].out_shape

    def affine(self, x: Tensor, bias: Tensor | None, context: Context = None) -> Tensor:
        last, *rest = self.operators
        for operator in reversed(rest):
            x = operator.forward(x, context)
        return last.affine(x, bias, context)

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        for operator in reversed(self.operators):
            x = operator.forward(x, context)
        return x

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        for operator in self.operators:
            y = operator.adjoint(y, context)
        return y

    @property
    def is_orthogonal(self) -> bool:
        return all(operator.is_orthogonal for operator in self.operators)

    def norm_bound(self, context: Context = None) -> float:
        # A product of bounds can be far above the norm of the product, except beside orthogonal factors.
        factors = [operator for operator in self.operators if not operator.is_orthogonal]
        if len(factors) > 1:
            return norms.upper_bound(self, context)
        return factors[0].norm_bound(context) if factors else 1.0

    def symbol(self) -> str:
        parts = (f"({a.symbol()})" if isinstance(a, Sum) else a.symbol() for a in self.operators)
        return " · ".join(parts)


@dataclass(frozen=True, eq=False, init=False)
class Sum(LinearOperator):
    """The sum A₁ + A₂ + … + Aₙ."""

    operators: tuple[LinearOperator, ...]

    def __init__(self, *operators: LinearOperator) -> None:
        flat = _flatten("Sum", Sum, operators)
        for other in flat[1:]:
            if (other.in_shape, other.out_shape) != (flat[0].in_shape, flat[0].out_shape):
                expected = f"{_name(other)} to have the shapes {_arrow(flat[0])} of {_name(flat[0])}"
                invalid_value("Sum", expected, _arrow(other))
        store(self, operators=flat)

    @property
    def in_shape(self) -> Shape:
        return self.operators[0].in_shape

    @property
    def out_shape(self) -> Shape:
        return self.operators[0].out_shape

    def forward(self, x: Tensor, context: Context = None) -> Tensor:
        return reduce(torch.add, (operator.forward(x, context) for operator in self.operators))

    def adjoint(self, y: Tensor, context: Context = None) -> Tensor:
        return reduce(torch.add, (operator.adjoint(y, context) for operator in self.operators))

    def symbol(self) -> str:
        return " + ".join(operator.symbol() for operator in self.operators).replace("+ −", "− ")


def store(operator: object, **values: object) -> None:
    """Set normalised fields of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(operator, name, value)


def _flatten(where: str, kind: type, operators: tuple[Any, ...]) -> tuple[LinearOperator, ...]:
    """The operators with nested ones of the same kind unpacked."""
    if not operators:
        invalid_value(where, "at least one operator", "none")
    flat: list[LinearOperator] = []
    for index, operator in enumerate(operators):
        _check_operator(f"{where} operator {index}", operator)
        flat.extend(operator.operators if isinstance(operator, kind) else (operator,))
    return tuple(flat)


def _check_operator(where: str, value: object) -> None:
    check_instance(where, value, LinearOperator, hint="Wrap a matrix as Dense(weight).")


def _name(operator: LinearOperator) -> str:
    return type(operator).__name__


def _arrow(operator: LinearOperator) -> str:
    return f"{operator.in_shape} -> {operator.out_shape}"
