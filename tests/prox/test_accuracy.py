"""Accuracy: double precision against mpmath with 50 digits, single against double.

Errors are counted in units of eps · max(1, |exact|), those of prox in units of
eps · max(1, step) · max(1, |exact|), where eps is the spacing of the dtype at
1. Run with `-s` to print the table of measured errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from torchlift.prox import ACTIVATIONS, ProximalActivation

mp.dps = 50

#: Bounds on the error, in the units above: (double against mpmath, single against double).
BOUNDS = {"sigma": (2, 2), "psi": (8, 12), "prox": (3, 3), "conjugate": (4, 4)}

#: torch's softplus returns v beyond v = 20, which costs e^{-20} = 2.1e-9 in double precision.
SOFTPLUS_CUT = 2.1e-9

STEPS = (1e-3, 0.3, 1.0, 3.0, 100.0)
POINTS = [
    0.0,
    1e-8,
    1e-3,
    0.02,
    0.1,
    0.29,
    0.31,
    0.5,
    0.69,
    0.7,
    0.99,
    1.01,
    1.5,
    2.7,
    5.0,
    12.3,
    19.9,
    20.1,
    37.0,
    300.0,
]
ENTRIES = [sign * v for v in POINTS for sign in (1, -1)]
GROUPS = [
    (0.1, 0.2, -0.3),
    (3.0, -1.0, 2.9),
    (0.0, 0.0, 0.0),
    (30.0, -40.0, 7.0),
    (-5.0, -5.001, -4.999),
    (1e-3, -2e-3, 1.0),
]


@dataclass(frozen=True)
class Reference:
    """The formulas of an activation in mpmath, on numbers (elementwise) or lists (groupwise)."""

    sigma: Callable
    psi: Callable
    conjugate: Callable
    prox: Callable | None = None  # (u, s); by root finding on σ where absent


def xlogx(x):
    return x * mp.log(x) if x > 0 else mpf(0)


def rectifier(slope):
    return Reference(
        sigma=lambda v: v if v > 0 else slope * v,
        psi=lambda u: (1 / slope - 1) * u**2 / 2 if u < 0 else mpf(0),
        conjugate=lambda v: v**2 / 2 * (1 if v > 0 else slope),
        prox=lambda u, s: u if u > 0 else u / (1 + s * (1 / slope - 1)),
    )


def clip(v, lo, hi):
    return min(max(v, lo), hi)


def projection(lo, hi):
    return Reference(
        sigma=lambda v: clip(v, lo, hi),
        psi=lambda u: mpf(0),
        conjugate=lambda v: v * clip(v, lo, hi) - clip(v, lo, hi) ** 2 / 2,
        prox=lambda u, s: clip(u, lo, hi),
    )


def shrink(v, t):
    return mp.sign(v) * max(abs(v) - t, 0)


def soft(t):
    return Reference(
        lambda v: shrink(v, t), lambda u: t * abs(u), lambda v: shrink(v, t) ** 2 / 2, lambda u, s: shrink(u, s * t)
    )


def exponential(a, r):
    def psi(u):
        return ((a + u) * mp.log(1 + u / a) if u > -a else 0) / r - u / r - u**2 / 2 if u < 0 else mpf(0)

    return Reference(
        sigma=lambda v: v if v > 0 else a * mp.expm1(r * v),
        psi=psi,
        conjugate=lambda v: v**2 / 2 if v > 0 else a * (mp.expm1(r * v) / r - v),
    )


def softplus(b):
    return Reference(
        sigma=lambda v: mp.log1p(mp.exp(b * v)) / b,
        psi=lambda u: (mp.polylog(2, mp.exp(-b * u)).real - mp.pi**2 / 6) / b**2,
        conjugate=lambda v: -mp.polylog(2, -mp.exp(b * v)).real / b**2,
    )


def squareplus(c):
    def sigma(v, c=c):
        return (v + mp.sqrt(v * v + 4 * c)) / 2

    def conjugate(v):
        return v * sigma(v) - sigma(v) ** 2 / 2 + c * mp.log(sigma(v))

    return Reference(sigma, lambda u: -c * mp.log(u), conjugate, lambda u, s: sigma(u, s * c))


def isru(a):
    return Reference(
        sigma=lambda v: v / mp.sqrt(1 + a * v**2),
        psi=lambda u: (1 - mp.sqrt(max(1 - a * u**2, 0))) / a - u**2 / 2,
        conjugate=lambda v: (mp.sqrt(1 + a * v**2) - 1) / a,
    )


def norm(v):
    return mp.sqrt(mp.fsum(x**2 for x in v))


def ball(r):
    def sigma(v):
        return [x * min(1, r / norm(v)) if norm(v) > 0 else x for x in v]

    def conjugate(v):
        return norm(v) ** 2 / 2 if norm(v) <= r else r * norm(v) - r**2 / 2

    return Reference(sigma, lambda u: mpf(0), conjugate, lambda u, s: sigma(u))


def group_soft(t):
    def sigma(v, t=t):
        return [x * max(1 - t / norm(v), 0) if norm(v) > 0 else x for x in v]

    return Reference(sigma, lambda u: t * norm(u), lambda v: max(norm(v) - t, 0) ** 2 / 2, lambda u, s: sigma(u, s * t))


def project_simplex(v):
    # Brute force over the size of the support.
    ordered = sorted(v, reverse=True)
    thresholds = [(mp.fsum(ordered[:k]) - 1) / k for k in range(1, len(v) + 1)]
    threshold = max(thresholds)
    return [max(x - threshold, 0) for x in v]


def simplex_conjugate(v):
    p = project_simplex(v)
    return mp.fsum(x * y - x * x / 2 for x, y in zip(p, v, strict=True))


def softmax(v):
    weights = [mp.exp(x - max(v)) for x in v]
    return [w / mp.fsum(weights) for w in weights]


def softmax_prox(u, s):
    """Bisection for the multiplier, with each entry by Lambert's W: a p + log p = c."""
    if s == 1:
        return softmax(u)
    a = (1 - s) / s

    def entry(c):
        # For c beyond 1/e of the branch point, or huge, the entry exceeds 1: a cap keeps the sum increasing.
        return mpf(1) if c >= a else (mp.lambertw(a * mp.exp(c)).real / a)

    low, high = min(u) - 1 - s * 50, max(u) + 1 + s * 50
    for _ in range(90):  # to 1e-20 and less
        middle = (low + high) / 2
        total = mp.fsum(entry((x - middle) / s) for x in u)
        low, high = (middle, high) if total > 1 else (low, middle)
    return [entry((x - low) / s) for x in u]


REFERENCES: dict[str, Callable[[ProximalActivation], Reference]] = {
    "arctan": lambda a: Reference(
        mp.atan, lambda u: -mp.log(mp.cos(u)) - u**2 / 2, lambda v: v * mp.atan(v) - mp.log(1 + v**2) / 2
    ),
    "box": lambda a: projection(mpf(float(a.lo)), mpf(float(a.hi))),
    "celu": lambda a: exponential(mpf(a.alpha), 1 / mpf(a.alpha)),
    "elu": lambda a: exponential(mpf(a.alpha), mpf(1)),
    "group-soft-threshold": lambda a: group_soft(mpf(a.threshold)),
    "identity": lambda a: rectifier(mpf(1)),
    "isru": lambda a: isru(mpf(a.alpha)),
    "l2-ball": lambda a: ball(mpf(a.radius)),
    "leaky-relu": lambda a: rectifier(mpf(a.slope)),
    "relu": lambda a: projection(mpf(0), mpf("inf")),
    "sigmoid": lambda a: Reference(
        lambda v: 1 / (1 + mp.exp(-v)), lambda u: xlogx(u) + xlogx(1 - u) - u**2 / 2, lambda v: mp.log1p(mp.exp(v))
    ),
    "simplex": lambda a: Reference(
        project_simplex, lambda u: mpf(0), simplex_conjugate, lambda u, s: project_simplex(u)
    ),
    "soft-threshold": lambda a: soft(mpf(float(a.threshold))),
    "softmax": lambda a: Reference(
        softmax,
        lambda u: mp.fsum(xlogx(x) - x**2 / 2 for x in u),
        lambda v: mp.log(mp.fsum(mp.exp(x) for x in v)),
        softmax_prox,
    ),
    "softplus": lambda a: softplus(mpf(a.beta)),
    "softsign": lambda a: Reference(
        lambda v: v / (1 + abs(v)),
        lambda u: -abs(u) - mp.log(1 - abs(u)) - u**2 / 2,
        lambda v: abs(v) - mp.log1p(abs(v)),
    ),
    "squareplus": lambda a: squareplus(mpf(a.c)),
    "tanh": lambda a: Reference(
        mp.tanh, lambda u: (xlogx(1 + u) + xlogx(1 - u)) / 2 - u**2 / 2, lambda v: mp.log(mp.cosh(v))
    ),
}


def reference_prox(reference: Reference, u, s):
    """prox by bisection on t, p = σ(t), where there is no closed form."""
    if reference.prox is not None:
        return reference.prox(u, s)
    reach = 2 * (abs(u) + 2) * max(1, 1 / s)
    low, high = -reach, reach
    for _ in range(90):  # to 1e-20 and less
        t = (low + high) / 2
        p = reference.sigma(t)
        low, high = (low, t) if p + s * (t - p) > u else (t, high)
    return reference.sigma(low)


def instances() -> list:
    """Every instance but the per-channel one, which is three scalar ones side by side."""
    return [
        pytest.param(name, activation, id=f"{name}-{index}")
        for name, cls in ACTIVATIONS.items()
        for index, activation in enumerate(cls.examples())
        if getattr(activation, "channel_dim", 1) == 1
    ]


def inputs(activation: ProximalActivation) -> Tensor:
    """Entries, or groups along the axis `dim`; all of them exact in single precision."""
    data = torch.tensor(ENTRIES if activation.dim is None else GROUPS, dtype=torch.float32).double()
    return data.T.contiguous() if activation.dim == 0 else data


def exact(activation: ProximalActivation, function: Callable, x: Tensor) -> list:
    """`function` of mpmath applied to every entry or group."""
    if activation.dim is None:
        return [function(mpf(value)) for value in x.tolist()]
    rows = x.movedim(activation.dim, -1).tolist()
    results = [function([mpf(value) for value in row]) for row in rows]
    return [entry for row in results for entry in (row if isinstance(row, list) else [row])]


def error(activation: ProximalActivation, computed: Tensor, wanted: list, eps: float) -> float:
    """The largest error in units of eps · max(1, |exact|)."""
    if activation.dim is not None and computed.ndim == 2:
        computed = computed.movedim(activation.dim, -1)
    pairs = zip(computed.flatten().tolist(), wanted, strict=True)
    return max(float(abs(mpf(c) - w) / max(1, abs(w))) for c, w in pairs) / eps


def report(name: str, kind: str, **errors: float) -> None:
    print(f"\n{name:22s} {kind:7s}", *(f"{key} {value:6.2f}" for key, value in errors.items()))


def domain_points(activation: ProximalActivation, v: Tensor) -> Tensor:
    """Points of the domain of Ψ that avoid the open, infinite ends."""
    u = activation(v.float()).double()
    return u[torch.isfinite(activation.psi(u))] if activation.dim is None else activation(v)


@pytest.mark.parametrize(("name", "activation"), instances())
def test_double_precision_against_mpmath(name: str, activation: ProximalActivation) -> None:
    reference, v, eps = REFERENCES[name](activation), inputs(activation), torch.finfo(torch.float64).eps
    u = domain_points(activation, v)
    sigma = error(activation, activation(v), exact(activation, reference.sigma, v), eps)
    psi = error(activation, activation.psi(u), exact(activation, reference.psi, u), eps)
    conjugate = error(activation, activation.conjugate(v), exact(activation, reference.conjugate, v), eps)
    prox = 0.0
    for s in STEPS:
        if s == 1.0:
            continue  # that is σ
        wanted = exact(activation, lambda x, s=s: reference_prox(reference, x, mpf(s)), v)
        prox = max(prox, error(activation, activation.prox(v, s), wanted, eps * max(1.0, s)))
    report(repr(activation), "double", sigma=sigma, psi=psi, prox=prox, conjugate=conjugate)
    cut = SOFTPLUS_CUT / eps if getattr(activation, "threshold", 40.0) == 20.0 and name == "softplus" else 0.0
    assert sigma <= max(BOUNDS["sigma"][0], cut)
    assert psi <= BOUNDS["psi"][0]
    assert prox <= BOUNDS["prox"][0]
    assert conjugate <= BOUNDS["conjugate"][0]


@pytest.mark.parametrize(("name", "activation"), instances())
def test_single_precision_against_double(name: str, activation: ProximalActivation) -> None:
    eps = torch.finfo(torch.float32).eps
    dense = torch.linspace(-40, 40, 3003).view(-1, 3)
    v = (dense + torch.tensor([0.0, 0.5, -0.25])).flatten() if activation.dim is None else dense.cos() * 5
    single = v.unsqueeze(-1) if activation.dim is None else v.T.contiguous() if activation.dim == 0 else v

    def compare(method: Callable[[Tensor], Tensor], x: Tensor, unit: float = 1.0) -> float:
        wanted = method(x.double())
        gap = (method(x).double() - wanted).abs() / wanted.abs().clamp(min=1)
        return float(gap.max()) / (eps * unit)

    sigma, conjugate = compare(activation, single), compare(activation.conjugate, single)
    prox = max(compare(lambda x, s=s: activation.prox(x, s), single, max(1.0, s)) for s in STEPS)
    if activation.dim is None:
        u = activation(single)
        psi = compare(activation.psi, u[torch.isfinite(activation.psi(u)) & torch.isfinite(activation.psi(u.double()))])
    else:  # what is on the simplex in single precision need not be on that of double precision
        psi = compare(lambda x: activation.psi(activation(x)), single)
    report(repr(activation), "single", sigma=sigma, psi=psi, prox=prox, conjugate=conjugate)
    assert sigma <= BOUNDS["sigma"][1]
    assert psi <= BOUNDS["psi"][1]
    assert prox <= BOUNDS["prox"][1]
    assert conjugate <= BOUNDS["conjugate"][1]


def test_every_activation_has_a_reference() -> None:
    assert set(REFERENCES) == set(ACTIVATIONS)


def test_small_arguments_keep_their_relative_precision() -> None:
    """Φ* ~ ½v² near 0 where Ψ(0) = 0; forms that cancel would return 0 or noise."""
    v = torch.logspace(-7, -1, 40, dtype=torch.float64)
    for name in ("arctan", "isru", "softsign", "tanh"):
        activation = ACTIVATIONS[name]()
        wanted = exact(activation, REFERENCES[name](activation).conjugate, v)
        computed = activation.conjugate(v).tolist()
        assert max(abs(c / w - 1) for c, w in zip(computed, wanted, strict=True)) < 1e-14
    assert math.isclose(float(ACTIVATIONS["relu"]().conjugate(v[0])), 0.5e-14, rel_tol=1e-14)
