"""The dilogarithm on the real line, by one short series."""

from __future__ import annotations

import torch
from torch import Tensor

#: B_{2k} / (2k + 1)! for k = 1 … 9, with B_{2k} the Bernoulli numbers.
_COEFFICIENTS = (
    1 / 36,
    -1 / 3600,
    1 / 211680,
    -1 / 10886400,
    1 / 526901760,
    -691 / 16999766784000,
    1 / 1120863744000,
    -3617 / 181400588328960000,
    43867 / 97072790126247936000,
)


def debye(w: Tensor) -> Tensor:
    """D(w) = ∫₀^w t / (e^t − 1) dt = Li₂(1 − e^{−w}), for |w| ≤ log 2 (any |w| ≤ 1 at slightly less precision).

    The series w − w²/4 + Σ B_{2k} w^{2k+1} / (2k + 1)! gains almost two digits
    per term, so nine terms reach double precision.

    Reference: 't Hooft & Veltman, Nuclear Physics B 153 (1979), appendix A.
    """
    square = w * w
    tail = torch.full_like(w, _COEFFICIENTS[-1])
    for coefficient in reversed(_COEFFICIENTS[:-1]):
        tail = tail * square + coefficient
    return w - 0.25 * square + w * square * tail
