"""Choosing the weight of the prior: from the noise level, or from the shape of a curve."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import invalid_value
from torchlift.inversion.result import Inversion, WeightTrace
from torchlift.inversion.sure import SEED, Probe


class Invert(Protocol):
    """Inverts the batch with given weights (B,), from a start, for a budget of steps; `y` replaces the data."""

    def __call__(self, weight: Tensor, start: Tensor, steps: int, y: Tensor | None = None) -> Inversion: ...


@dataclass(frozen=True, eq=False)
class Trial:
    """What a rule may ask.

    Arguments:
        y: the data (B, *out_shape).
        start: the start (B, *in_shape).
        noise_level: standard deviation of the noise in each entry of y, if it is known.
        invert: an inversion.
        output: N.
        prior: R of inputs, one per image.
    """

    y: Tensor
    start: Tensor
    noise_level: float | None
    invert: Invert
    output: Callable[[Tensor], Tensor]
    prior: Callable[[Tensor], Tensor]

    def same(self, weight: float | Tensor) -> Tensor:
        """One weight for every image."""
        return self.y.new_ones(self.y.shape[0]) * weight


@dataclass(frozen=True, kw_only=True)
class WeightRule(ABC):
    """A way to choose ρ in [low, high].

    Arguments:
        low, high: the range to search, 0 < low < high; by default ς²/100 to 100ς², and 1e-4 to 1 where the noise level
            ς is not known.
        steps: steps of every trial inversion; each one starts from the last.
        per_image: choose a weight for every image instead of one for the batch.
    """

    name: ClassVar[str]
    needs_noise: ClassVar[bool] = True

    low: float | None = None
    high: float | None = None
    steps: int = 60
    per_image: bool = False

    def __post_init__(self) -> None:
        check_size(f"{type(self).__name__} steps", self.steps)
        for name in ("low", "high"):
            if getattr(self, name) is not None:
                check_positive(f"{type(self).__name__} {name}", getattr(self, name))
        if self.low is not None and self.high is not None and not self.low < self.high:
            invalid_value(type(self).__name__, "0 < low < high", f"low={self.low}, high={self.high}")

    @abstractmethod
    def choose(self, trial: Trial) -> tuple[Tensor, WeightTrace]:
        """The weights (B,), and how they were found."""

    def bounds(self, trial: Trial) -> tuple[float, float]:
        """low and high, where one is not given far enough from the other."""
        scale = 0.01 if trial.noise_level is None else trial.noise_level**2
        low = min(scale / 100, (self.high or math.inf) / 1e4) if self.low is None else self.low
        return low, max(100 * scale, 1e4 * low) if self.high is None else self.high

    def grid(self, trial: Trial, count: int) -> list[float]:
        """Weights from high to low, evenly spaced in their logarithm: solutions change slowly along it."""
        low, high = self.bounds(trial)
        return [high * (low / high) ** (k / (count - 1)) for k in range(count)]


@dataclass(frozen=True, kw_only=True)
class Sure(WeightRule):
    """The least unbiased estimate of the error in the output, Monte-Carlo SURE.

        ‖N(x̂) − y‖² − mς² + 2ς² div_y N(x̂(y))

    estimates ‖N(x̂) − N(x)‖² for Gaussian noise of standard deviation ς, with the
    divergence from a random probe (see `Probe`). The search goes downhill from 2ς² in factors of 2, for weights of
    single images over a grid; a parabola refines the least value.

    Arguments:
        count: weights on the grid, and at most so many steps downhill.
        probe: ε/ς.
        seed: of b, which must not be that of the noise: the two must be independent.

    Reference: Ramani, Blu & Unser, IEEE Transactions on Image Processing 17 (2008).
    """

    name: ClassVar[str] = "sure"

    count: int = 9
    probe: float = 0.1
    seed: int = SEED

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("Sure count", self.count, minimum=3)
        check_positive("Sure probe", self.probe)

    def choose(self, trial: Trial) -> tuple[Tensor, WeightTrace]:
        probe = Probe.of(trial.y, _noise(trial), self.probe, self.seed)
        weight, risk = self._over_a_grid(trial, probe) if self.per_image else self._downhill(trial, probe)
        order = weight.argsort(0)
        weight, risk = weight.gather(0, order), risk.gather(0, order)
        return trial.same(_vertex(weight.log(), risk).exp()), WeightTrace(self.name, "SURE", weight, risk)

    def _downhill(self, trial: Trial, probe: Probe) -> tuple[Tensor, Tensor]:
        """Weights for all images and their risks, with the least between two others unless it is at an end: (K, 1)."""
        low, high = self.bounds(trial)
        first = min(max(2 * _noise(trial) ** 2, low), high)
        risk, pair = self._risk(trial, probe, trial.same(first), (trial.start, trial.start))
        risks, best = {first: float(risk[0])}, pair
        for ratio in (2.0, 0.5):
            weight, pair = min(risks, key=lambda each: risks[each]), best
            for _ in range(self.count):
                weight *= ratio
                if not low <= weight <= high:
                    break
                risk, pair = self._risk(trial, probe, trial.same(weight), pair)
                risks[weight] = float(risk[0])
                if risks[weight] > min(risks.values()):
                    break
                best = pair
            if len(risks) > 2:
                break  # downhill was this way
        return trial.y.new_tensor([*risks])[:, None], trial.y.new_tensor([*risks.values()])[:, None]

    def _over_a_grid(self, trial: Trial, probe: Probe) -> tuple[Tensor, Tensor]:
        """Weights and risks of every image: (K, B)."""
        weights, risks = [], []
        pair = (trial.start, trial.start)
        grid = self.grid(trial, self.count)
        for weight in grid:
            weights.append(trial.same(weight))
            risk, pair = self._risk(trial, probe, weights[-1], pair)
            risks.append(risk)
        # the grid is coarse, and the risk no parabola on it: look at thirds of a step around its least value
        ratio = (grid[0] / grid[1]) ** (1 / 3)
        centre = torch.stack(weights)[torch.stack(risks).argmin(0).clamp(1, self.count - 2), 0]
        for power in (2, 1, -1, -2):
            weights.append(trial.same(centre * ratio**power))
            risk, pair = self._risk(trial, probe, weights[-1], pair)
            risks.append(risk)
        return torch.stack(weights), torch.stack(risks)

    def _risk(
        self, trial: Trial, probe: Probe, weight: Tensor, start: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The estimate for every image, or its mean for all of them, and the inversions of y and of y + εb."""
        plain = trial.invert(weight, start[0], self.steps).x
        moved = trial.invert(weight, start[1], self.steps, probe.moved).x
        risk = probe.risk(trial.output(plain), trial.output(moved))
        return risk if self.per_image else trial.same(risk.mean()), (plain, moved)


@dataclass(frozen=True, kw_only=True)
class Discrepancy(WeightRule):
    """The weight at which the residual is what the noise explains, ‖N(x̂) − y‖ = factor·ς√m.

    The residual grows with the weight: bisection of its logarithm, for the root
    mean square of the batch or for every image alone.

    Arguments:
        factor: usually 1 or a little more.
        count: trials.

    Reference: Morozov, Soviet Mathematics Doklady 7 (1966); Engl, Hanke &
    Neubauer, Regularization of Inverse Problems, section 4.3.
    """

    name: ClassVar[str] = "discrepancy"

    factor: float = 1.0
    count: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("Discrepancy factor", self.factor)
        check_size("Discrepancy count", self.count)

    def choose(self, trial: Trial) -> tuple[Tensor, WeightTrace]:
        target = self.factor * _noise(trial) * math.sqrt(trial.y[0].numel())
        (low, high), x = (trial.same(bound) for bound in self.bounds(trial)), trial.start
        weights, ratios = [], []
        for _ in range(self.count):
            weight = (low * high).sqrt()
            found = trial.invert(weight, x, self.steps)
            x, residual = found.x, found.residual
            ratio = residual / target if self.per_image else trial.same(residual.square().mean().sqrt() / target)
            weights.append(weight)
            ratios.append(ratio)
            low, high = torch.where(ratio < 1, weight, low), torch.where(ratio < 1, high, weight)
        ratio = torch.stack(ratios)
        missed = int(((ratio < 1).all(0) | (ratio > 1).all(0)).sum())
        note = f"The discrepancy of {missed} of them was out of reach: widen low and high." if missed else ""
        columns = slice(None) if self.per_image else slice(1)
        trace = WeightTrace(self.name, "residual / target", torch.stack(weights)[:, columns], ratio[:, columns], note)
        return (low * high).sqrt(), trace


@dataclass(frozen=True, kw_only=True)
class LCurve(WeightRule):
    """The corner of the curve (log ‖N(x̂) − y‖, log R(x̂)): its point of largest curvature. Needs no noise level.

    Arguments:
        count: weights on the grid.

    Reference: Hansen & O'Leary, SIAM Journal on Scientific Computing 14 (1993).
    """

    name: ClassVar[str] = "lcurve"
    needs_noise: ClassVar[bool] = False

    count: int = 13

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("LCurve count", self.count, minimum=5)

    def choose(self, trial: Trial) -> tuple[Tensor, WeightTrace]:
        weights, x, residuals, priors = self.grid(trial, self.count), trial.start, [], []
        for weight in weights:
            found = trial.invert(trial.same(weight), x, self.steps)
            x = found.x
            residuals.append(found.residual)
            priors.append(trial.prior(x))
        fit, size = torch.stack(residuals), torch.stack(priors)
        if not self.per_image:
            fit, size = fit.square().mean(1, keepdim=True).sqrt(), size.mean(1, keepdim=True)
        tiny = torch.finfo(fit.dtype).tiny
        bend = _curvature(fit.clamp_min(tiny).log().flip(0), size.clamp_min(tiny).log().flip(0)).flip(0)
        grid = trial.same(1.0).new_tensor(weights)
        inner = bend[1:-1].argmax(0) + 1
        return trial.same(grid[inner]), WeightTrace(self.name, "curvature", grid[:, None].expand_as(bend), bend)


#: Every rule by name.
RULES: dict[str, type[WeightRule]] = {rule.name: rule for rule in (Sure, Discrepancy, LCurve)}


def _noise(trial: Trial) -> float:
    assert trial.noise_level is not None  # validation checks it
    return trial.noise_level


def _vertex(positions: Tensor, values: Tensor) -> Tensor:
    """Where the parabola through the least value (K, B) and its neighbours is least; an end stays an end.

    Arguments:
        positions: (K, B), increasing.
        values: of the same shape.
    """
    least = values.argmin(0)
    inner = least.clamp(1, len(positions) - 2)
    near = [(inner + k)[None] for k in (-1, 0, 1)]
    (a, b, c), (fa, fb, fc) = ([each.gather(0, index)[0] for index in near] for each in (positions, values))
    # of the parabola through three points, left and right slopes say where its own slope is 0
    left, right = (fb - fa) / (b - a), (fc - fb) / (c - b)
    bend = (right - left).clamp_min(torch.finfo(values.dtype).tiny)
    middle = (a + b) / 2 - left * (c - a) / (2 * bend)
    refined = torch.where(right > left, middle.clamp(a, c), b)
    return torch.where(least == inner, refined, positions.gather(0, least[None])[0])


def _curvature(a: Tensor, b: Tensor) -> Tensor:
    """(a'b'' − a''b')/(a'² + b'²)^{3/2} of curves (K, B) by differences; positive at an L's corner, 0 at the ends."""
    first = [(curve[2:] - curve[:-2]) / 2 for curve in (a, b)]
    second = [curve[2:] - 2 * curve[1:-1] + curve[:-2] for curve in (a, b)]
    speed = (first[0].square() + first[1].square()).clamp_min(torch.finfo(a.dtype).eps ** 2)
    bend = (first[0] * second[1] - second[0] * first[1]) / speed.pow(1.5)
    return torch.nn.functional.pad(bend, (0, 0, 1, 1))
