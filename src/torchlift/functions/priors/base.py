"""The contract of a prior: what is known about an image before it is seen."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from numbers import Real

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_number
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.functions.priors.functions import Amount, Function, Interval
from torchlift.operators import Identity, LinearOperator


@dataclass(frozen=True, eq=False)
class Part:
    """factor · g(Ax), one summand of a prior.

    Arguments:
        function: g.
        operator: A; None where g acts on the image itself.
        factor: a number ≥ 0.
    """

    function: Function
    operator: LinearOperator | None = None
    factor: float = 1.0

    def product(self, x: Tensor) -> Tensor:
        """Ax."""
        return x if self.operator is None else self.operator.forward(x)

    def back(self, p: Tensor) -> Tensor:
        """Aᵀp."""
        return p if self.operator is None else self.operator.adjoint(p)

    def value(self, product: Tensor) -> Tensor:
        """factor · g(w) at w = Ax: (B,)."""
        value = self.function.value(product)
        return value if self.function.constraint else self.factor * value

    def prox(self, w: Tensor, step: Amount) -> Tensor:
        """The proximal map of step · factor · g."""
        return self.function.prox(w, step * self.factor)

    def dual_prox(self, p: Tensor, step: Amount, weight: Amount) -> Tensor:
        """The proximal map of step · (weight · factor · g)*."""
        return self.function.dual_prox(p, step, weight * self.factor)

    def conjugate(self, p: Tensor, weight: Amount) -> Tensor:
        """(weight · factor · g)*(p): (B,)."""
        return self.function.conjugate(p, weight * self.factor)


@dataclass(frozen=True, eq=False)
class Split:
    """R(x) = h(x) + Σ_i g_i(A_i x), as primal-dual methods need it.

    Arguments:
        proximal: h, None for 0.
        terms: the g_i and A_i, each with an operator.
    """

    proximal: Part | None = None
    terms: tuple[Part, ...] = ()

    @property
    def parts(self) -> tuple[Part, ...]:
        """h, if there is one, and the terms."""
        return self.terms if self.proximal is None else (self.proximal, *self.terms)

    def prox(self, x: Tensor, step: Amount) -> Tensor:
        """The proximal map of step · h."""
        return x if self.proximal is None else self.proximal.prox(x, step)

    def products(self, x: Tensor) -> tuple[Tensor, ...]:
        """A_i x."""
        return tuple(term.product(x) for term in self.terms)

    def back(self, duals: tuple[Tensor, ...], x: Tensor) -> Tensor:
        """Σ A_iᵀ p_i, shaped like x."""
        if not duals:
            return torch.zeros_like(x)
        total = self.terms[0].back(duals[0])
        for term, p in zip(self.terms[1:], duals[1:], strict=True):
            total = total + term.back(p)
        return total

    def value(self, x: Tensor, products: tuple[Tensor, ...]) -> Tensor:
        """R(x), given its products A_i x: (B,)."""
        total = x.new_zeros(x.shape[0]) if self.proximal is None else self.proximal.value(x)
        for term, product in zip(self.terms, products, strict=True):
            total = total + term.value(product)
        return total

    def square_norm(self) -> float:
        """Σ ‖A_i‖², a bound of the squared norm of all A_i on top of each other."""
        return sum(term.operator.norm_bound() ** 2 for term in self.terms if term.operator is not None)


class Prior(ABC):
    """R(x) ≥ 0, small for images x (B, *shape) that are likely. Priors add up, and numbers multiply them.

    A subclass is a frozen dataclass that says in `parts` which functions of
    which linear maps it is made of. Everything else follows.
    """

    # numpy scalars must leave `c * prior` to us
    __array_ufunc__ = None

    @abstractmethod
    def parts(self, shape: Shape) -> tuple[Part, ...]:
        """The summands for images of a shape; refuses a shape that does not fit."""

    def value(self, x: Tensor) -> Tensor:
        """R(x), one per image: (B,); +∞ where a constraint is violated."""
        total = x.new_zeros(x.shape[0])
        for part in self.parts(tuple(x.shape[1:])):
            total = total + part.value(part.product(x))
        return total

    def split(self, shape: Shape) -> Split:
        """h and the pairs g_i, A_i of R for images of a shape.

        Constraints meet in one and become h, so that every iterate obeys them;
        without one, h is the first part that acts on the image itself. All
        others get a dual variable.
        """
        parts = list(self.parts(shape))
        constraints = [part.function for part in parts if isinstance(part.function, Interval)]
        rest = [part for part in parts if not part.function.constraint]
        proximal = None
        if constraints:
            common = constraints[0]
            for other in constraints[1:]:
                common = common.meet(other)
            proximal = Part(common)
        elif direct := [part for part in rest if part.operator is None]:
            proximal = direct[0]
            rest.remove(proximal)
        terms = (part if part.operator is not None else replace(part, operator=Identity(shape)) for part in rest)
        return Split(proximal, tuple(terms))

    def __add__(self, other: Prior) -> Prior:
        return Sum((self, other)) if isinstance(other, Prior) else NotImplemented

    def __mul__(self, factor: float) -> Prior:
        return Multiple(self, factor) if isinstance(factor, Real) else NotImplemented

    __rmul__ = __mul__

    @classmethod
    def example(cls) -> Prior:
        """An instance for contract tests and tables; overridden where arguments are required."""
        return cls()


@dataclass(frozen=True)
class Sum(Prior):
    """The sum of priors."""

    priors: tuple[Prior, ...]

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return tuple(part for prior in self.priors for part in prior.parts(shape))


@dataclass(frozen=True)
class Multiple(Prior):
    """A prior times a number ≥ 0; constraints stay what they are."""

    prior: Prior
    factor: float

    def __post_init__(self) -> None:
        if check_number("multiple of a prior", self.factor) < 0:
            invalid_value("multiple of a prior", "a number >= 0", self.factor)

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return tuple(replace(part, factor=part.factor * float(self.factor)) for part in self.prior.parts(shape))


def check_prior(where: str, prior: object) -> Prior:
    if not isinstance(prior, Prior):
        invalid_type(where, "a prior", prior, "Try torchlift.functions.priors.TotalVariation().")
    return prior


def image_shape(name: str, shape: Shape) -> Shape:
    """(channels, height, width), or an error that names the prior."""
    if len(shape) != 3:
        hint = "For vectors try L1() or Tikhonov()."
        invalid_value(name, "images of shape (channels, height, width)", f"shape {shape}", hint)
    return shape
