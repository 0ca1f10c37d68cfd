"""Experiment `error-estimate`: how far the regularised inverse of one layer is from the truth, by noise level."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from torchlift.inversion import error_bound
from torchlift.lab.reproduction.confidence import Interval, confidence, every
from torchlift.lab.reproduction.experiment import Experiment, ExperimentResult, Part, Work
from torchlift.liftings import Bregman
from torchlift.prox import ProximalActivation, ReLU, SoftThreshold
from torchlift.report.records import Claim, Curves, Series, Table

ACTIVATIONS: Mapping[str, ProximalActivation] = {"ReLU": ReLU(), "soft-threshold": SoftThreshold(0.2)}

INPUTS, OUTPUTS = 30, 40

#: The noise levels δ: four decades, as B(y, Wx† + b) = δ².
NOISE = tuple(10 ** (-k / 2) for k in range(2, 11))

#: Where the source v† may differ from zero: on neurons that are on, as the estimate needs, or on all of them.
SOURCES = ("active neurons", "all neurons")

#: Rounding of the minimiser and of the bound, relative to the bound.
SLACK = 1e-8


class ErrorEstimate(Experiment):
    """The estimate of one layer against the noise level."""

    name: ClassVar[str] = "error-estimate"
    title: ClassVar[str] = "The error estimate of one layer"
    about: ClassVar[str] = (
        "the convergence estimate of single-layer inversion against random cases, ReLU and soft-threshold"
    )

    def run(self, work: Work) -> ExperimentResult:
        cases = work.choose(tiny=4, small=400, paper=4000)
        pairs: list[tuple[str, str]] = list(product(ACTIVATIONS, SOURCES))

        def make(name: str, source: str) -> Part:
            seed = 4 * work.seed + pairs.index((name, source))
            return _study(ACTIVATIONS[name], source == SOURCES[0], cases, seed)

        found = work.each("{}, source on {}", pairs, make)
        studies = [Study(*pair, tensors["distance"], tensors["bound"]) for pair, (tensors, _) in found.items()]
        claims = work.decided(judge(studies))
        configuration = {
            "cases": cases,
            "inputs": INPUTS,
            "outputs": OUTPUTS,
            "noise": NOISE,
            "threshold": 0.2,
            "prior": "½‖x‖²",
            "weight": "δ/‖v†‖",
        }
        return ExperimentResult(_summary(studies), claims, [_rates(studies), _table(studies)], configuration)


@dataclass(frozen=True, eq=False)
class Case:
    """Layers and truths, one per row: σ(W x† + b) with x† = Wᵀv†.

    Arguments:
        W, b, source: (B, m, n), (B, m), (B, m).
    """

    activation: ProximalActivation
    W: Tensor
    b: Tensor
    source: Tensor

    @property
    def truth(self) -> Tensor:
        """x† = Wᵀv†: the source condition of R = ½‖x‖²."""
        return torch.einsum("bmn,bm->bn", self.W, self.source)

    def outputs(self, x: Tensor) -> Tensor:
        """Wx + b."""
        return torch.einsum("bmn,bn->bm", self.W, x) + self.b


def draw(activation: ProximalActivation, active: bool, count: int, generator: torch.Generator) -> Case:
    """Random layers whose singular values fall like 1/k, so that inversion is ill-posed, and random truths.

    About half of the neurons are off, the others at least ¼ away from their
    kink: the bias is chosen for that. With `active` the source vanishes on
    neurons that are off.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=generator)

    left, _ = torch.linalg.qr(normal(count, OUTPUTS, INPUTS))
    right, _ = torch.linalg.qr(normal(count, INPUTS, INPUTS))
    W = left / torch.arange(1, INPUTS + 1, dtype=torch.float64) @ right
    on = torch.rand(count, OUTPUTS, dtype=torch.float64, generator=generator) < 0.5
    source = normal(count, OUTPUTS)
    source = torch.where(on, source, 0.0) if active else source
    size = 0.25 + normal(count, OUTPUTS).abs()
    if isinstance(activation, SoftThreshold):
        inside = activation.threshold * (2 * torch.rand(count, OUTPUTS, dtype=torch.float64, generator=generator) - 1)
        outputs = torch.where(on, (activation.threshold + size) * normal(count, OUTPUTS).sign(), inside)
    else:
        outputs = torch.where(on, size, -size)
    truth = torch.einsum("bmn,bm->bn", W, source)
    return Case(activation, W, outputs - torch.einsum("bmn,bn->bm", W, truth), source)


def noisy(case: Case, delta: float, direction: Tensor) -> Tensor:
    """The outputs y = σ(Wx† + b) + t·direction, in the range of σ, with B(y, Wx† + b) = δ², by bisection for t.

    B(·, v) is convex with its least value 0 at σ(v), so it grows with t.
    """
    v = case.outputs(case.truth)
    clean = case.activation(v)
    low, high = torch.zeros(len(v), 1, dtype=v.dtype), torch.full((len(v), 1), 10.0, dtype=v.dtype)
    for _ in range(100):
        middle = (low + high) / 2
        small = _distance(case, _inside(case, clean + middle * direction), v)[:, None] < delta**2
        low, high = torch.where(small, middle, low), torch.where(small, high, middle)
    return _inside(case, clean + low * direction)


def _inside(case: Case, y: Tensor) -> Tensor:
    """y, moved into the domain of Ψ."""
    return y.clamp_min(0) if isinstance(case.activation, ReLU) else y


def _distance(case: Case, y: Tensor, v: Tensor) -> Tensor:
    """B(y, v) of every case."""
    return Bregman().value(case.activation, y, v, 1.0).sum(1)


def minimiser(case: Case, y: Tensor, weight: Tensor, steps: int = 100) -> Tensor:
    """argmin B(y, Wx + b) + ρ/2 ‖x‖², by Newton's method with halved steps.

    The objective is piecewise quadratic and strongly convex: close to the
    minimiser one step is exact, so that the solution is as good as rounding
    allows, which first-order methods do not reach at small ρ.
    """

    def value(x: Tensor) -> Tensor:
        return _distance(case, y, case.outputs(x)) + weight / 2 * x.square().sum(1)

    x = torch.zeros(len(y), INPUTS, dtype=y.dtype)
    identity = torch.eye(INPUTS, dtype=y.dtype)
    for _ in range(steps):
        v = case.outputs(x)
        state = case.activation(v)
        gradient = torch.einsum("bmn,bm->bn", case.W, state - y) + weight[:, None] * x
        slope = (state != 0).to(y)  # of ReLU and soft-threshold
        hessian = case.W.mT @ (slope[:, :, None] * case.W) + weight[:, None, None] * identity
        move = torch.linalg.solve(hessian, gradient)
        now, descent = value(x), (gradient * move).sum(1)
        size = torch.ones_like(now)
        for _ in range(30):
            worse = value(x - size[:, None] * move) > now - 1e-4 * size * descent + 1e-15 * (1 + now.abs())
            if not bool(worse.any()):
                break
            size = torch.where(worse, size / 2, size)
        x = x - size[:, None] * move
        if float(move.abs().max()) < 1e-13:
            break
    return x


def _study(activation: ProximalActivation, active: bool, count: int, seed: int) -> Part:
    """D^symm = ‖x_ρ − x†‖² and its bound for every case and noise level, with ρ = δ/‖v†‖."""
    generator = torch.Generator().manual_seed(seed)
    case = draw(activation, active, count, generator)
    direction = torch.randn(count, OUTPUTS, dtype=torch.float64, generator=generator)
    size = case.source.norm(dim=1)
    distances, bounds = [], []
    for delta in NOISE:
        y = noisy(case, delta, direction)
        weight = delta / size
        x = minimiser(case, y, weight)
        distances.append((x - case.truth).square().sum(1))
        square = _distance(case, y, case.outputs(case.truth))
        # with v†/‖v†‖ for v† and δ for ρ the bound is the same, and one call serves all cases
        bound = error_bound(activation, y, case.source / size[:, None], delta, square)
        bounds.append(bound.value / weight)
    return {"distance": torch.stack(distances, 1), "bound": torch.stack(bounds, 1)}, {}


@dataclass(frozen=True, eq=False)
class Study:
    """Distances D^symm and their bounds, (cases, noise levels)."""

    activation: str
    source: str
    distance: Tensor
    bound: Tensor

    @property
    def violations(self) -> int:
        return int((self.distance > self.bound * (1 + SLACK)).sum())

    @property
    def vacuous(self) -> int:
        return int(self.bound.isinf().sum())

    @property
    def slope(self) -> Interval:
        """The exponent r of D^symm ~ δ^r: least squares in logarithms, case by case."""
        return confidence(exponents(self.distance))


def exponents(values: Tensor) -> Tensor:
    """Slopes of log value against log δ, one per case."""
    x = torch.tensor(NOISE, dtype=values.dtype).log()
    x = x - x.mean()
    return (values.clamp_min(1e-300).log() * x).sum(1) / x.square().sum()


def judge(studies: list[Study]) -> list[Claim]:
    """Claims. A rate of at least δ holds where the interval of the exponent lies above 1, and fails where below."""
    good = [study for study in studies if study.source == SOURCES[0]]
    anywhere = [study for study in studies if study.source == SOURCES[1]]
    total = sum(study.distance.numel() - study.vacuous for study in studies)
    broken = sum(study.violations for study in studies)
    claims = [
        Claim.of(
            "The estimate bounds the symmetric Bregman distance to the truth",
            f"{broken} violations among {total} finite bounds",
            not broken,
        )
    ]
    for study in good:
        claims.append(
            Claim.of(
                f"For {study.activation}, with a source on active neurons, the Burbea–Rao term vanishes and "
                "the distance falls at least like the noise level δ, for a weight proportional to δ",
                f"exponent {study.slope.text()}, that of the bound {confidence(exponents(study.bound)).text()}",
                study.slope.above(1),
            )
        )
    text = "; ".join(
        f"{study.activation}: exponent {study.slope.text()}, {study.vacuous} of {study.bound.numel()} bounds infinite, "
        f"median distance at δ = {NOISE[-1]:.0e}: {float(study.distance[:, -1].median()):.2g}"
        for study in anywhere
    )
    claims.append(
        Claim.of(
            "The source condition alone, with a source on any neurons, makes the distance fall at least like δ",
            text,
            every(study.slope.above(1) for study in anywhere),
        )
    )
    return claims


def _summary(studies: list[Study]) -> str:
    first, second = (study.slope for study in studies if study.source == SOURCES[0])
    broken = sum(study.violations for study in studies)
    return (
        f"One random layer of {OUTPUTS} neurons per case was inverted with R = ½‖x‖² at noise levels from "
        f"{NOISE[-1]:.0e} to {NOISE[0]:g}: {len(studies[0].distance)} cases each. The estimate was violated {broken} "
        f"times. Where the source vanishes on inactive neurons, the distance to the truth falls like δ to the power "
        f"{first.text()} (ReLU) and {second.text()} (soft-threshold). Where it does not, the estimate says nothing "
        "for ReLU and stays away from zero for soft-threshold, and the distance need not vanish either."
    )


def _rates(studies: list[Study]) -> Curves:
    series = []
    for study in studies:
        label = f"{study.activation}, source on {study.source}"
        low, middle, high = (study.distance.quantile(q, 0).tolist() for q in (0.05, 0.5, 0.95))
        series.append(Series(label, NOISE, middle, low, high, group=label))
        bound: list[float | None] = study.bound.quantile(0.5, 0).tolist()
        if study.bound.isfinite().all():
            series.append(Series(f"{label}: bound", NOISE, bound, dashed=True, group=label))
    return Curves(
        "rates",
        "Distance to the truth by noise level",
        "noise level δ, B(y, Wx† + b) = δ²",
        "D^symm(x_ρ, x†)",
        series,
        x_log=True,
        y_log=True,
        note="Medians over cases, bands from 5 to 95 %; bounds dashed, where all are finite.",
    )


def _table(studies: list[Study]) -> Table:
    rows: list[list[Any]] = []
    for study in studies:
        finite = study.bound.isfinite()
        ratio = (study.distance / study.bound)[finite]
        rows.append(
            [
                *(study.activation, study.source, study.distance.numel(), study.vacuous, study.violations),
                *(float(ratio.max()) if len(ratio) else None, *study.slope),
            ]
        )
    columns = {"activation": "", "source on": "", "cases × levels": "", "infinite bounds": "", "violations": ""}
    columns |= {"largest distance/bound": ".3f", "exponent": ".3f", "from": ".3f", "to": ".3f"}
    return Table.of("exponents", "Violations and exponents", columns, rows)
