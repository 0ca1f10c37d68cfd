"""How far a regularised inverse of one layer can be from the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchlift.core.checks import check_finite, check_interval, check_positive, check_tensor
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.inversion.problem import per_image
from torchlift.prox import ProximalActivation
from torchlift.prox.base import in_domain

#: The c that are tried where none is given. Every one of them gives a valid bound.
CANDIDATES = tuple(2.0**-k for k in range(0, 13))


@dataclass(frozen=True, eq=False)
class ErrorBound:
    """A bound of ρ·D^symm(x_ρ, x†), and the three terms it is made of: (B,) each.

    Arguments:
        value: noise + source + burbea_rao.
        noise: (1 + c)δ².
        source: ρ²‖v†‖²/c.
        burbea_rao: 2c J_Ψ(y + ρv†/c, y − ρv†/c); infinite where one of the two leaves the domain of Ψ.
        c: the constant that was used.
        weight: ρ.
    """

    value: Tensor
    noise: Tensor
    source: Tensor
    burbea_rao: Tensor
    c: Tensor
    weight: float

    @property
    def distance(self) -> Tensor:
        """The bound of D^symm(x_ρ, x†) itself: (B,)."""
        return self.value / self.weight

    @property
    def vacuous(self) -> Tensor:
        """Where the bound is infinite and says nothing: (B,)."""
        return self.value.isinf()

    @property
    def sentence(self) -> str:
        count, total = int(self.vacuous.sum()), len(self.value)
        if count == total:
            return "The bound is vacuous: its Burbea-Rao term is infinite."
        worst = float(self.distance[~self.vacuous].max())
        rest = f" It is vacuous for {count} of {total} outputs." if count else ""
        return f"The symmetric Bregman distance to the truth is at most {worst:.4g}.{rest}"

    def __repr__(self) -> str:
        return f"ErrorBound({self.sentence})"


@torch.no_grad()
def error_bound(
    activation: ProximalActivation,
    y: Tensor,
    source: Tensor,
    weight: float,
    discrepancy: float | Tensor,
    c: float | None = None,
) -> ErrorBound:
    """The error estimate of one layer, σ(Wx† + b) ≈ y, under a source condition Wᵀv† ∈ ∂R(x†).

        ρ D^symm(x_ρ, x†) ≤ (1 + c)δ² + ρ²‖v†‖²/c + 2c J_Ψ(y + ρv†/c, y − ρv†/c)   for every c in (0, 1],

    where x_ρ minimises B(y, Wx + b) + ρR(x), δ² ≥ B(y, Wx† + b), and
    J_Ψ(p, q) = ½(Ψ(p) + Ψ(q)) − Ψ((p + q)/2) is the Burbea–Rao divergence. It
    follows from convexity of B(y, ·) and Fenchel's inequality for Φ = ½‖·‖² + Ψ
    at y ± ρv†/c. Where these leave the domain of Ψ the bound is infinite: for
    ReLU unless |ρv†/c| ≤ y, so v† must vanish on inactive neurons.

    Args:
        activation: σ = prox_Ψ.
        y: noisy outputs (B, …), in the domain of Ψ.
        source: v† (B, …).
        weight: ρ > 0.
        discrepancy: δ² ≥ 0, one number or one per output: (B,).
        c: in (0, 1]; None for the best of several, output by output.

    Reference: Wang & Benning, Frontiers in Applied Mathematics and Statistics 9
    (2023), theorem 2.
    """
    if not isinstance(activation, ProximalActivation):
        invalid_type("error_bound activation", "a proximal activation", activation, "Try torchlift.ReLU().")
    check_finite("error_bound y", check_tensor("error_bound y", y))
    check_finite("error_bound source", check_tensor("error_bound source", source))
    if source.shape != y.shape or y.ndim < 2:
        invalid_value("error_bound source", f"the shape {tuple(y.shape)} of y, batch first", tuple(source.shape))
    check_positive("error_bound weight", weight)
    delta = torch.as_tensor(discrepancy).to(y).expand(y.shape[0])
    if not bool((delta >= 0).all()):
        invalid_value("error_bound discrepancy", "numbers >= 0", float(delta.min()))
    if c is not None:
        check_interval("error_bound c", c, "(0, 1]")
    if not bool(in_domain(activation, y).all()):
        hint = "B(y, ·) is infinite there; project y first."
        invalid_value("error_bound y", f"values in the range of {type(activation).__name__}", "others", hint)
    tried = [_terms(activation, y, source, weight, delta, each) for each in (CANDIDATES if c is None else (c,))]
    totals = torch.stack([sum(terms) for terms in tried])  # pyright: ignore[reportArgumentType]
    best = totals.argmin(0, keepdim=True)
    noise, fit, spread = (torch.stack(each).gather(0, best)[0] for each in zip(*tried, strict=True))
    used = y.new_tensor(CANDIDATES if c is None else (c,))[best[0]]
    return ErrorBound(totals.gather(0, best)[0], noise, fit, spread, used, float(weight))


def _terms(
    activation: ProximalActivation, y: Tensor, source: Tensor, weight: float, delta: Tensor, c: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The three summands of the bound for one c."""
    shift = weight / c * source
    psi = activation.psi
    burbea_rao = 0.5 * (psi(y + shift) + psi(y - shift)) - psi(y)
    # convexity makes every entry ≥ 0; rounding may not
    spread = 2 * c * per_image(burbea_rao.clamp_min(0))
    return (1 + c) * delta, weight**2 / c * source.flatten(1).square().sum(1), spread
