"""One layer: the inversion problem is convex, and a duality gap certifies its solution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_positive
from torchlift.core.errors import invalid_value
from torchlift.functions import Box, Function, Part, SquaredDistance, check_step
from torchlift.functions.base import Amount
from torchlift.inversion.problem import BREGMAN, InversionProblem, per_image
from torchlift.operators import Identity
from torchlift.prox import ProximalActivation
from torchlift.prox.base import in_domain
from torchlift.solvers import SaddleProblem, Term


@dataclass(frozen=True, kw_only=True)
class Exact:
    """The solution of min_x μB(y, Wx + b) + ρR(x) + λ/2 ‖x − x₀‖² for one layer, by PDHG on all its terms.

    The certificate is the duality gap among inputs whose entries are at most
    `bound` in size: without a bound the dual objective would be −∞ until the
    last step. An input well inside the bound minimises without it as well, since
    the problem is convex.

    Arguments:
        tolerance: relative duality gap of every image at which to stop.
        bound: the largest size of an entry of x.

    Reference: Chambolle & Pock, Journal of Mathematical Imaging and Vision 40 (2011).
    """

    tolerance: float = 1e-6
    bound: float = 1e3

    def __post_init__(self) -> None:
        check_positive("Exact tolerance", self.tolerance)
        check_positive("Exact bound", self.bound)

    def check(self, problem: InversionProblem) -> None:
        """Refuse what is not convex or has no dual."""
        if problem.chain.count != 1:
            hint = "Use algorithm='sweep' for deeper networks."
            invalid_value("Exact", "a network of one layer", f"{problem.chain.count} layers", hint)
        for part in (problem.split.proximal, *problem.split.terms):
            if part is not None and not part.function.has_conjugate:
                expected = "priors that are written as functions with a conjugate"
                invalid_value("Exact", expected, type(part.function).__name__, "Use algorithm='sweep'.")

    def saddle(self, problem: InversionProblem) -> Certified:
        """The problem with every term but the bound behind a dual variable."""
        ((_, block),) = problem.chain.jacobians[0].reads[0]
        bias = problem.chain.form.b[0] if problem.chain.form.depth else problem.chain.form.d[0]
        data = LayerDistance(problem.chain.activations[0], problem.target, bias, problem.mu[0])
        terms = [Term(data, block, problem.context)]
        shape = tuple(problem.guess.shape[1:])
        limit: Function = Box(-float(self.bound), float(self.bound))
        proximal, parts = problem.split.proximal, list(problem.split.terms)
        if proximal is not None and proximal.function.constraint:
            # a set without a closed intersection with the bound serves alone: it is the domain of x
            limit = limit.meet(proximal.function) or proximal.function
        elif proximal is not None:
            parts.insert(0, Part(proximal.function, Identity(shape), proximal.factor))
        for part in parts:
            assert part.operator is not None
            terms.append(Term(Weighted(part, problem.weight), part.operator))
        if problem.anchor:
            terms.append(Term(SquaredDistance(problem.guess, problem.anchor), Identity(shape)))
        return Certified(SaddleProblem(tuple(terms), limit))


@dataclass(frozen=True, eq=False)
class Certified:
    """A saddle-point problem with objectives of every image."""

    problem: SaddleProblem

    def values(self, x: Tensor) -> Tensor:
        """The primal objective: (B,)."""
        assert self.problem.g is not None
        total = self.problem.g.value(x)
        for term in self.problem.terms:
            total = total + term.function.value(term.forward(x))
        return total

    def dual_values(self, duals: tuple[Tensor, ...]) -> Tensor:
        """The dual objective at the nearest points where it is finite: (B,). Each is a lower bound of the primal."""
        assert self.problem.g is not None
        pairs = zip(self.problem.terms, duals, strict=True)
        duals = tuple(term.function.feasible(p) for term, p in pairs)
        total = -self.problem.g.conjugate(-self.problem.adjoint(duals))
        for term, p in zip(self.problem.terms, duals, strict=True):
            total = total - term.function.conjugate(p)
        return total

    def gaps(self, x: Tensor, duals: tuple[Tensor, ...]) -> Tensor:
        """Duality gaps relative to 1 + |primal| + |dual|: (B,)."""
        primal, dual = self.values(x), self.dual_values(duals)
        gaps = (primal - dual) / (1 + primal.abs() + dual.abs())
        return gaps.masked_fill(gaps.isnan(), torch.inf)


@dataclass(frozen=True, eq=False)
class LayerDistance(Function):
    """h(w) = μB(y, w + b) = μ[Φ(y) + Φ*(w + b) − ⟨y, w + b⟩], one value per image.

    prox_{sh}(w) = a − c prox_{Ψ/(1+c)}(a/(1 + c)) − b with c = sμ, a = w + b + cy
    h*(p)        = μΦ(y + p/μ) − μΦ(y) − ⟨p, b⟩
    """

    activation: ProximalActivation
    target: Tensor
    bias: Tensor | None
    mu: float

    def value(self, x: Tensor) -> Tensor:
        return per_image(BREGMAN.value(self.activation, self.target, self._shift(x), self.mu))

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        c = check_step(step, x) * self.mu
        a = self._shift(x) + c * self.target
        moved = a - c * self.activation.prox(a / (1 + c), 1 / (1 + c))
        return moved if self.bias is None else moved - self.bias

    def conjugate(self, p: Tensor) -> Tensor:
        phi = self.activation.phi
        change = self.mu * per_image(phi(self.target + p / self.mu) - phi(self.target))
        return change if self.bias is None else change - (p * self.bias).flatten(1).sum(1)

    def feasible(self, p: Tensor, weight: Amount = 1.0) -> Tensor:
        moved = self.target + p / self.mu
        return self.mu * (into_domain(self.activation, moved) - self.target)

    def _shift(self, w: Tensor) -> Tensor:
        return w if self.bias is None else w + self.bias


def into_domain(activation: ProximalActivation, u: Tensor) -> Tensor:
    """u, with entries outside the domain of Ψ moved into it: with a small step the prox is the projection."""
    return torch.where(in_domain(activation, u), u, activation.prox(u, math.sqrt(torch.finfo(u.dtype).eps)))


@dataclass(frozen=True, eq=False)
class Weighted(Function):
    """ρ·c·g with one ρ per image, for a summand c·g of a prior."""

    part: Part
    weight: Tensor

    def value(self, x: Tensor) -> Tensor:
        return self.weight * self.part.value(x)

    def prox(self, x: Tensor, step: Amount = 1.0) -> Tensor:
        return self.part.prox(x, step * self.weight)

    def prox_conjugate(self, p: Tensor, step: Amount = 1.0, weight: Amount = 1.0) -> Tensor:
        return self.part.dual_prox(p, step, weight * self.weight)

    def conjugate(self, p: Tensor) -> Tensor:
        return self.part.conjugate(p, self.weight)

    def feasible(self, p: Tensor, weight: Amount = 1.0) -> Tensor:
        return self.part.feasible(p, weight * self.weight)
