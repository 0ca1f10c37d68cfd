"""A curve of grey levels that corrects a decoder, by Stein's estimate of the error in the output."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.sure import Probe

#: Pieces of the curve, and Gauss-Newton steps; shares of the range: how large changes of grey levels are expected to
#: be, and the differences that stand for derivatives.
PIECES, STEPS, EXPECTED, DIFFERENCE = 5, 3, 0.05, 0.05

#: Standard errors of the estimate by which the curve has to be better.
VISIBLE = 2.0


@dataclass(frozen=True, eq=False)
class Curve:
    """x ↦ x + c(x) with c piecewise linear over [low, high], and constant beyond.

    Arguments:
        low, high: where it is known.
        changes: c at the knots, evenly spaced from low to high.
    """

    low: float
    high: float
    changes: Tensor

    def hats(self, x: Tensor) -> list[Tensor]:
        """The piecewise linear functions that are 1 at one knot and 0 at the others; their sum is 1."""
        pieces = len(self.changes) - 1
        place = (x.clamp(self.low, self.high) - self.low) * (pieces / (self.high - self.low))
        return [(1 - (place - k).abs()).clamp_min(0) for k in range(pieces + 1)]

    def __call__(self, problem: InversionProblem) -> Tensor:
        """The guess of a problem after the curve, inside the constraints."""
        x = inside(problem)
        return inside(problem, x + sum(change * hat for change, hat in zip(self.changes, self.hats(x), strict=True)))

    def outward(self) -> Curve:
        """The same with ends that do not move inwards: together with a bound at them a curve without a jump."""
        low, high = self.changes[:1].clamp_max(0), self.changes[-1:].clamp_min(0)
        return replace(self, changes=torch.cat([low, self.changes[1:-1], high]))


@torch.no_grad()
def fit_curve(pair: InversionProblem, probe: Probe) -> Curve | None:
    """The curve after which a decoder's output, inside the constraints, has the least risk; None without a gain.

    The risk is that of a `Probe`, linear in the few changes of the curve but for the network and the constraints: a
    few Gauss-Newton steps. One curve serves all images, so that it also says something of what the outputs leave
    open. Entries at a bound of the prior stay there. Small changes are expected, which decides where there are few
    data. The curve has to be visibly better, and what its own fit to the noise takes off the estimate counts.

    Arguments:
        pair: with the decoder's outputs for y and for y + εb as the guess.
        probe: of y.

    Reference: Blu & Luisier, IEEE Transactions on Image Processing 16 (2007), for linear expansions.
    """
    x = inside(pair)
    low, high = float(x.min()), float(x.max())
    if not high > low:
        return None
    curve = Curve(low, high, x.new_zeros(PIECES + 1))
    hats, size = curve.hats(x), DIFFERENCE * (high - low)
    ridge = (probe.noise / (EXPECTED * (high - low))) ** 2 * torch.eye(len(hats)).to(x)
    before = pair.forward(x)
    unchanged = risk = probe.risk(*before.chunk(2))
    for _ in range(STEPS):
        z = curve(pair)
        here = pair.forward(z)
        slopes = [((pair.forward(inside(pair, z + size * hat)) - here) / size).chunk(2) for hat in hats]
        columns = torch.stack([plain.flatten() for plain, _ in slopes], 1)
        divergences = torch.stack([probe.divergence(*each).sum() for each in slopes])
        curvature = columns.T @ columns
        left = (probe.y - here.chunk(2)[0]).flatten()
        downhill = columns.T @ left - probe.noise**2 * divergences - ridge @ curve.changes
        change = torch.linalg.solve(curvature + ridge, downhill)
        for length in (1.0, 0.5, 0.25):
            longer = replace(curve, changes=curve.changes + length * change)
            longer = longer if pair.touching is None else longer.outward()
            new = probe.risk(*pair.forward(longer(pair)).chunk(2))
            if better := float(new.mean()) < float(risk.mean()):
                curve, risk = longer, new
                break
        if not better:
            break
    charge = 2 * probe.noise**2 * len(hats)
    # the estimate of a gain is off by the noise along the change of the outputs
    scatter = 2 * probe.noise * float(torch.linalg.vector_norm((pair.forward(curve(pair)) - before).chunk(2)[0]))
    return curve if float((unchanged - risk).sum()) > charge + VISIBLE * scatter else None


def inside(problem: InversionProblem, x: Tensor | None = None) -> Tensor:
    """Inputs, by default the guess, inside the constraints of the prior."""
    x = problem.guess if x is None else x
    return problem.split.prox(x, 0.0) if problem.constrained else x
