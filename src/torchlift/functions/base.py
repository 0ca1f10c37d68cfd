"""The convex function, and priors: sums of weighted functions of linear maps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import reduce
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_instance, check_number, check_positive
from torchlift.core.errors import invalid_value
from torchlift.operators import Identity, LinearOperator

Amount = float | Tensor
"""One number, or a tensor (B,) with one per sample."""

#: Relative rounding error, in units of eps, up to which a point on the boundary of a set belongs to it.
ROUNDING = 64


class Prior(ABC):
    """R(x) = Σ_i c_i g_i(A_i x), one value for each sample of a batch x (B, *shape).

    A subclass is a frozen dataclass that returns the summands in `parts`. Every
    `Function` is a prior with one summand. Priors add up, and numbers multiply them.
    """

    # numpy scalars must leave `c * prior` to us
    __array_ufunc__ = None

    @abstractmethod
    def parts(self, shape: Shape) -> tuple[Part, ...]:
        """The summands for samples of a shape; refuses a shape that does not fit."""

    def value(self, x: Tensor) -> Tensor:
        """R(x), one per sample: (B,); +∞ where a constraint is violated."""
        total = x.new_zeros(x.shape[0])
        for part in self.parts(tuple(x.shape[1:])):
            total = total + part.value(part.product(x))
        return total

    def split(self, shape: Shape) -> Split:
        """R = h + Σ g_i∘A_i for samples of a shape: h has a proximal map, each g_i gets a dual variable.

        A constraint on x becomes h, so that every iterate satisfies it. Without
        one, h is the first summand that acts on x itself. Constraints that
        cannot be h are refused: no iterate would satisfy them exactly.
        """
        parts = list(self.parts(shape))
        constraints = [part for part in parts if part.function.constraint]
        rest = [part for part in parts if not part.function.constraint]
        proximal = None
        if constraints:
            proximal = Part(_intersection(constraints))
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


class Function(Prior):
    """A closed convex function g of a batch x (B, …), with one value per sample.

    A subclass is a frozen dataclass with `value` and `prox`. `grad` and
    `curvature` make it usable as a smooth function, `conjugate` gives duality
    gaps. Parameters of a network are arguments too: their first axis then counts
    as the batch, and the sum of all values is what regularises.
    """

    #: True if g is a sum over entries, so that `prox` takes one step per entry.
    elementwise: ClassVar[bool] = False
    #: True if g has no values but 0 and +∞, so that steps and weights do not matter.
    constraint: ClassVar[bool] = False

    @abstractmethod
    def value(self, x: Tensor) -> Tensor:
        """g(x), one per sample: (B,); +∞ off its domain."""

    @abstractmethod
    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        """argmin_p ½‖p − x‖² + step·g(p) for step > 0.

        A tensor `step` is one per sample, (B,), or broadcasts against x; entries 0 mean the limit
        (the point itself where g is finite). `check_step` makes it broadcast.
        """

    def grad(self, x: Tensor) -> Tensor:
        """∇g(x) in a new tensor; where g is not smooth a subgradient, or refused."""
        name = type(self).__name__
        invalid_value(f"{name}.grad", "a smooth function", "a nonsmooth one", f"Use {name}.prox.")

    def curvature(self) -> float:
        """A Lipschitz constant of `grad`, infinite where there is none."""
        return math.inf

    @property
    def smooth(self) -> bool:
        """True if g is differentiable everywhere, with a Lipschitz gradient."""
        return math.isfinite(self.curvature())

    def conjugate(self, p: Tensor) -> Tensor:
        """g*(p) = max_x ⟨x, p⟩ − g(x), one per sample: (B,). Duality gaps need it; `prox_conjugate` does not."""
        name = type(self).__name__
        hint = f"Write {name}.conjugate, or use an algorithm without a duality gap."
        invalid_value(f"{name}.conjugate", "a function with a known conjugate", "one without", hint)

    @property
    def has_conjugate(self) -> bool:
        return type(self).conjugate is not Function.conjugate

    def prox_conjugate(self, p: Tensor, step: Amount = 1.0, weight: Amount = 1.0) -> Tensor:
        """The proximal map of step·(weight·g)*, by Moreau's identity; overridden where a projection is cheaper."""
        step, weight = along(step, p), along(weight, p)
        return p - step * self.prox(p / step, weight / step)

    def feasible(self, p: Tensor, weight: Amount = 1.0) -> Tensor:
        """p where (weight·g)* is finite there, else a point near it: the proximal map with a tiny step."""
        near = self.prox_conjugate(p, math.sqrt(torch.finfo(p.dtype).eps), weight)
        if not self.has_conjugate:
            return near
        outside = self.conjugate(p / at_least_tiny(along(weight, p), p)).isinf()
        return torch.where(outside.view(-1, *(1,) * (p.ndim - 1)), near, p)

    def meet(self, other: Function) -> Function | None:
        """This constraint and another as one, where the projection onto both is closed."""
        return None

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return (Part(self),)

    @classmethod
    def example(cls) -> Function:
        return cls()

    @classmethod
    def examples(cls) -> tuple[Function, ...]:
        """All instances that the contract tests visit; overridden where arguments change the formulas."""
        return (cls.example(),)


@dataclass(frozen=True, eq=False)
class Part:
    """factor · g(Ax), one summand of a prior.

    Arguments:
        function: g.
        operator: A; None where g acts on x itself.
        factor: a number ≥ 0; constraints ignore it.
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
        """The proximal map of step · factor · g for step ≥ 0."""
        if self.function.constraint:
            return self.function.prox(w)
        amount = step * self.factor
        return self.function.prox(w, amount) if isinstance(amount, Tensor) or amount > 0 else w

    def dual_prox(self, p: Tensor, step: Amount, weight: Amount) -> Tensor:
        """The proximal map of step · (weight · factor · g)*."""
        if self.function.constraint:
            return self.function.prox_conjugate(p, step)
        amount = weight * self.factor
        if isinstance(amount, Tensor) or amount > 0:
            return self.function.prox_conjugate(p, step, amount)
        return torch.zeros_like(p)

    def conjugate(self, p: Tensor, weight: Amount) -> Tensor:
        """(weight · factor · g)*(p) = c g*(p/c) with c = weight · factor: (B,)."""
        if self.function.constraint:
            return self.function.conjugate(p)
        amount = at_least_tiny(weight * self.factor, p)
        return amount * self.function.conjugate(p / along(amount, p))

    def feasible(self, p: Tensor, weight: Amount) -> Tensor:
        """A point near p with a finite conjugate; 0 where the weight is 0."""
        if self.function.constraint:
            return self.function.feasible(p)
        amount = torch.as_tensor(weight * self.factor, dtype=p.dtype, device=p.device)
        near = self.function.feasible(p, amount.clamp_min(torch.finfo(p.dtype).tiny))
        return near * along((amount > 0).to(p), p)


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
        return reduce(torch.add, (term.back(p) for term, p in zip(self.terms, duals, strict=True)))

    def value(self, x: Tensor, products: tuple[Tensor, ...]) -> Tensor:
        """R(x), given its products A_i x: (B,)."""
        total = x.new_zeros(x.shape[0]) if self.proximal is None else self.proximal.value(x)
        for term, product in zip(self.terms, products, strict=True):
            total = total + term.value(product)
        return total

    def square_norm(self) -> float:
        """Σ ‖A_i‖², a bound of the squared norm of all A_i on top of each other."""
        return sum(term.operator.norm_bound() ** 2 for term in self.terms if term.operator is not None)


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
        check_number("multiple of a prior", self.factor, minimum=0)

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return tuple(replace(part, factor=part.factor * float(self.factor)) for part in self.prior.parts(shape))


def _intersection(constraints: list[Part]) -> Function:
    """The one constraint on x that all of them amount to; refused where its projection is not closed."""
    for part in constraints:
        if part.operator is not None:
            got = f"{type(part.function).__name__} of {type(part.operator).__name__}(x)"
            hint = "Penalise A x instead, e.g. Tikhonov(A), or solve a SaddleProblem with PDHG or ADMM."
            invalid_value("constraint of a prior", "a constraint on x itself", got, hint)
    common = constraints[0].function
    for part in constraints[1:]:
        both = common.meet(part.function) or part.function.meet(common)
        if both is None:
            got = f"{type(common).__name__} and {type(part.function).__name__}"
            hint = "Write the projection onto both as one Function, or keep one of the two."
            invalid_value("sum of constraints", "constraints with a closed projection onto all of them", got, hint)
        common = both
    return common


def check_prior(where: str, prior: object) -> Prior:
    return check_instance(where, prior, Prior, "a prior", "Try torchlift.priors.TotalVariation().")


def check_step(step: Amount, x: Tensor) -> Amount:
    """The step of a prox at x: a finite number > 0, or a tensor that broadcasts against x and is not read."""
    return along(step.to(x), x) if isinstance(step, Tensor) else check_positive("prox step", step)


def along(amount: Amount, x: Tensor) -> Amount:
    """An amount per sample, (B,), in a shape that broadcasts against x; anything else as it is."""
    if not isinstance(amount, Tensor) or amount.ndim != 1:
        return amount
    if len(amount) not in (1, len(x)):
        expected = f"a number, one for each of {len(x)} samples, or a tensor that broadcasts against {tuple(x.shape)}"
        invalid_value("prox step", expected, tuple(amount.shape))
    return amount.view(-1, *(1,) * (x.ndim - 1))


def at_least_tiny(amount: Amount, x: Tensor) -> Amount:
    """The amount, or the smallest normal number where it is 0: a divisor."""
    tiny = torch.finfo(x.dtype).tiny
    return amount.clamp_min(tiny) if isinstance(amount, Tensor) else max(amount, tiny)


def per_sample(terms: Tensor) -> Tensor:
    """Sums over all axes but the first."""
    return terms.flatten(1).sum(1) if terms.ndim > 1 else terms


def zero_or_infinite(inside: Tensor, x: Tensor) -> Tensor:
    """0 for samples whose entries of `inside` are all true, +∞ for others: (B,), with the dtype of x."""
    inside = inside.flatten(1).all(1) if inside.ndim > 1 else inside
    return torch.zeros_like(inside, dtype=x.dtype).masked_fill(~inside, math.inf)
