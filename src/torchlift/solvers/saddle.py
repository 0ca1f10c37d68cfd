"""Problems with linear maps inside nonsmooth functions, for PDHG and ADMM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from torchlift.core.checks import check_instance
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.core.tensors import Point
from torchlift.functions import Function
from torchlift.operators import Context, LinearOperator


@dataclass(frozen=True, eq=False)
class Term:
    """h(Ax).

    Arguments:
        function: h, with a `conjugate` for a duality gap.
        operator: A.
        context: per-sample context of A.
    """

    function: Function
    operator: LinearOperator
    context: Context = None

    def __post_init__(self) -> None:
        check_function("Term function", self.function)
        check_instance("Term operator", self.operator, LinearOperator, hint="Try operators.Dense(matrix).")

    def forward(self, x: Tensor) -> Tensor:
        return self.operator.forward(x, self.context)

    def adjoint(self, p: Tensor) -> Tensor:
        return self.operator.adjoint(p, self.context)


@dataclass(frozen=True, eq=False)
class SaddleProblem:
    """min_x f(x) + g(x) + Σ_i h_i(A_i x) = min_x max_p f(x) + g(x) + Σ_i ⟨A_i x, p_i⟩ − h_i*(p_i).

    x is one tensor (B, *in_shape), the block "x" of the start. Solutions also
    hold the block "dual", one tensor p_i per term (ADMM adds one for g, and a block "split").

    Arguments:
        terms: the pairs h_i, A_i.
        g: a function with a prox; None for 0.
        f: a smooth function; None for 0.
    """

    terms: tuple[Term, ...]
    g: Function | None = None
    f: Function | None = None

    def __post_init__(self) -> None:
        terms = (self.terms,) if isinstance(self.terms, Term) else tuple(self.terms)
        if not terms:
            invalid_value("SaddleProblem terms", "at least one term", "none", "Use ProximalGradient for f + g.")
        for term in terms:
            check_instance("SaddleProblem terms", term, Term, "Terms", "Try Term(function, operator).")
            if term.operator.in_shape != terms[0].operator.in_shape:
                expected = f"operators on {terms[0].operator.in_shape}"
                invalid_value("SaddleProblem terms", expected, term.operator.in_shape)
        object.__setattr__(self, "terms", terms)
        if self.g is not None:
            check_function("SaddleProblem g", self.g)
        if self.f is not None and not check_function("SaddleProblem f", self.f).smooth:
            hint = "Give it as g if it has a prox."
            invalid_type("SaddleProblem f", "a smooth function", self.f, hint)

    @property
    def blocks(self) -> tuple[str, ...]:
        return ("x",)

    @torch.no_grad()
    def value(self, x: Tensor, products: tuple[Tensor, ...] | None = None) -> float:
        """The primal objective; +∞ where a constraint is violated.

        Arguments:
            products: A_i x, where they are known.
        """
        products = self.forward(x) if products is None else products
        total = sum(float(term.function.value(ax).sum()) for term, ax in zip(self.terms, products, strict=True))
        total += 0.0 if self.g is None else float(self.g.value(x).sum())
        return total + (0.0 if self.f is None else float(self.f.value(x).sum()))

    @torch.no_grad()
    def dual_value(self, duals: tuple[Tensor, ...], back: Tensor | None = None) -> float | None:
        """−(f + g)*(−Σ A_iᵀp_i) − Σ h_i*(p_i), None where a conjugate is not known.

        Known for f + g if one of them is absent and the other has a `conjugate`.

        Arguments:
            back: Σ A_iᵀp_i, where it is known.
        """
        only = self.g if self.f is None else self.f if self.g is None else None
        if only is None or not all(f.has_conjugate for f in (only, *(term.function for term in self.terms))):
            return None
        total = float(only.conjugate(-(self.adjoint(duals) if back is None else back)).sum())
        return -total - sum(float(t.function.conjugate(p).sum()) for t, p in zip(self.terms, duals, strict=True))

    def gap(self, x: Tensor, duals: tuple[Tensor, ...]) -> float | None:
        """(primal − dual) / (1 + |primal| + |dual|), None where it cannot be evaluated."""
        return relative_gap(self.value(x), self.dual_value(duals))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """A_i x for all terms."""
        return tuple(term.forward(x) for term in self.terms)

    def adjoint(self, duals: tuple[Tensor, ...]) -> Tensor:
        """Σ A_iᵀp_i."""
        return adjoint_sum(self.terms, duals)

    def norm_bound(self) -> float:
        """An upper bound of the norm of all A_i on top of each other, √Σ‖A_i‖²."""
        return math.hypot(*(term.operator.norm_bound(term.context) for term in self.terms))

    def curvature(self) -> float:
        """A Lipschitz constant of ∇f."""
        return 0.0 if self.f is None else self.f.curvature()

    def start(self, point: Point) -> tuple[Tensor, tuple[Tensor, ...]]:
        """x and the duals of a start; zeros for duals that are not given."""
        x = point["x"][0]
        if "dual" in point:
            return x, point["dual"][: len(self.terms)]
        return x, tuple(torch.zeros_like(ax) for ax in self.forward(x))


def adjoint_sum(terms: tuple[Term, ...], duals: tuple[Tensor, ...]) -> Tensor:
    """Σ A_iᵀp_i."""
    return reduce(torch.add, (term.adjoint(p) for term, p in zip(terms, duals, strict=True)))


def joint_norm(tensors: list[Tensor]) -> float:
    """‖·‖₂ of all tensors together."""
    return math.hypot(*(float(torch.linalg.vector_norm(tensor)) for tensor in tensors))


def relative_gap(primal: float, dual: float | None) -> float | None:
    """(primal − dual) / (1 + |primal| + |dual|); +∞ while one of them is infinite."""
    if dual is None:
        return None
    if math.isinf(primal) or math.isinf(dual):
        return math.inf
    return (primal - dual) / (1 + abs(primal) + abs(dual))


def check_saddle(where: str, problem: Any, point: Point) -> None:
    """A saddle problem and a start that belongs to it."""
    hint = "Try SaddleProblem(Term(h, A), g=…), or ProximalGradient for problems without a linear map."
    check_instance(where, problem, SaddleProblem, hint=hint)
    if "x" not in point or not set(point) <= {"x", "dual", "split"} or len(point["x"]) != 1:
        invalid_value(f"{where} start", "the block 'x' with one tensor (and 'dual')", point)
    shape, expected = tuple(point["x"][0].shape[1:]), problem.terms[0].operator.in_shape
    if shape != expected:
        sizes = ", ".join(map(str, expected))
        invalid_value(f"{where} start", f"a batch of shape (batch, {sizes})", point["x"][0].shape)
    if "dual" in point:
        shapes = [tuple(ax.shape) for ax in problem.forward(point["x"][0])]
        if [tuple(p.shape) for p in point["dual"][: len(shapes)]] != shapes:
            invalid_value(f"{where} start", f"duals of shapes {shapes}", point)


def check_function(where: str, function: object) -> Function:
    """A convex function, or an error that says what is missing."""
    if not isinstance(function, Function):
        missing = [name for name in ("value", "prox") if not callable(getattr(function, name, None))]
        detail = f" ({' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing)" if missing else ""
        hint = "Derive it from torchlift.functions.Function."
        invalid_type(where, f"a convex function with `value` and `prox`{detail}", function, hint)
    return function
