"""Means with confidence intervals, and what they decide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from torchlift.report.records import Claim

#: The quantile of the normal distribution for intervals of 95 %.
QUANTILE = 1.959964

#: With fewer values an interval says nothing.
LEAST = 3

#: The 97.5 % quantiles of Student's t where the expansion below is not accurate, by degrees of freedom.
FEW = {1: 12.706205, 2: 4.302653, 3: 3.182446}


class Interval(NamedTuple):
    """A mean and the borders of its interval of 95 %."""

    mean: float
    low: float
    high: float

    def above(self, limit: float) -> bool | None:
        """Whether the mean of all that could be drawn lies above the limit; None where the interval holds it."""
        if self.low > limit:
            return True
        return None if self.low <= limit <= self.high else False  # not a number is above nothing

    def at_most(self, limit: float) -> bool | None:
        """The contrary of `above`."""
        above = self.above(limit)
        return None if above is None else not above

    def text(self, form: str = ".2f") -> str:
        return f"{self.mean:{form}} [{self.low:{form}}, {self.high:{form}}]"


def confidence(values: Tensor) -> Interval:
    """Student's interval of 95 % for the mean of independent values: x̄ ± t s/√n.

    The quantile t is that of the normal distribution with its corrections of
    order 1/n to 1/n⁴ (Abramowitz & Stegun 26.7.5), good to 0.1 % from
    n = 5, and a table below. Fewer than three values have no interval.
    """
    values = values.double()
    mean, count = float(values.mean()), len(values)
    if count < LEAST:
        return Interval(mean, -math.inf, math.inf)
    half = student(count - 1) * float(values.std()) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t."""
    if freedom in FEW:
        return FEW[freedom]
    z, n = QUANTILE, freedom
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + first / n + second / n**2 + third / n**3 + fourth / n**4


def over_seeds(claims: Mapping[int, Sequence[Claim]]) -> list[Claim]:
    """One claim for all seeds: the numbers of the first, and the outcome where all seeds agree."""
    first, *others = claims
    together = []
    for number, claim in enumerate(claims[first]):
        outcomes = [claims[seed][number].outcome for seed in claims]
        same = len(set(outcomes)) == 1
        others_said = f"seeds {', '.join(map(str, others))}: "
        others_said += "the same outcome" if same else ", ".join(outcomes[1:])
        measured = f"{claim.measured} (seed {first}; {others_said})" if others else claim.measured
        together.append(replace(claim, measured=measured, outcome=claim.outcome if same else "not decidable"))
    return together


def every(outcomes: Iterable[bool | None]) -> bool | None:
    """All of them: False where one is false, None where one is open."""
    decided = set(outcomes)
    return False if False in decided else None if None in decided else True
