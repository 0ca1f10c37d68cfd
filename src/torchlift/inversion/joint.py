"""Weight and anchor together, by SURE, for a start that a decoder makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from torchlift.inversion.accelerated import Accelerated
from torchlift.inversion.curve import fit_curve, inside
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.quasi_newton import QuasiNewton
from torchlift.inversion.result import WeightTrace
from torchlift.inversion.run import Budget, run_steps
from torchlift.inversion.sure import Probe, visibly_less

#: Images that decide on the curve of grey levels, if they fit, and on the rest; spread over all of them.
CURVE, IMAGES = 96, 24

#: Steps of the first trial and of every other, which starts from the best before. Trials far from their minimum have a
#: divergence that is too small, and large weights, which are done first, would win.
FIRST, STEPS = 80, 40

#: A power of 2, one of 4, and whether entries at a bound stay there.
Place: TypeAlias = tuple[int, int, bool]

#: What is tried: weights 2ς²·2^i and anchors 10ς²·4^j, none for j = −3; more than this far from (0, 0) is not.
WEIGHT, ANCHOR, REACH = 2.0, 10.0, 5

#: Squared errors of a decoder are averaged over windows of images; no place is trusted more than if its error were this
#: share of the image's; and where errors e are known, anchors are so many ς²/mean(e)·4^j.
WINDOW, FLOOR, SHARE = 5, 0.1, 0.2

#: The search moves where the risk falls by more than so many standard errors.
VISIBLE = 2.0

#: The anchor that holds everything at the start.
AT_START = 1e6


@torch.no_grad()
def choose_jointly(
    problem: InversionProblem,
    decoder: Callable[[Tensor], Tensor],
    noise: float,
    budget: Budget,
    size: int,
    free: bool = True,
) -> tuple[InversionProblem, WeightTrace]:
    """The problem with the weight and anchor of least risk, or held at the decoder's output where that has less.

    The risk is the estimate of ‖N(x̂) − N(x)‖² of a `Probe`. The decoder sees y + εb too, so
    that its own noise counts; the search goes downhill in weight and anchor, where it is so by more than
    two standard errors over images. Since the risk is an
    estimate of the error in the output, the chosen inputs are not worse than the
    decoder's in expectation there.

    The output of a decoder of images is corrected by a curve of grey levels first (`fit_curve`).
    It is wrong at some places still and right at others, such as a black
    background. How wrong, a first inversion says by how far it moves from the decoder's
    output: the anchor λt holds every place by t = mean(e)/e, as a Gaussian prior
    around the decoder's output with variances in proportion to e would, the squared
    changes averaged over small windows. Entries where the decoder's output reaches a bound of
    the prior, such as black pixels, may stay there: the risk decides that, too. Total variation raises a
    black background.

    Reference: Tipping, Journal of Machine Learning Research 1 (2001), for variances that are estimated.

    Arguments:
        size: images at once.
        free: whether entries may be held differently.
    """
    search = _Search(problem, decoder, noise, budget, size, free)
    if search.curve is not None:
        problem = replace(problem, guess=search.curve(problem))
    unchanged = float(search.risk(inside(search.pair)).mean())
    place = search.downhill()
    weight, anchor = search.settings(place)
    in_vain = unchanged < float(search.risks[place].mean())
    tried = sorted(other for other in search.risks if other[1:] == place[1:])
    trace = WeightTrace(
        "sure",
        "SURE",
        problem.weight.new_tensor([search.settings(other)[0] for other in tried]),
        problem.weight.new_tensor([float(search.risks[other].mean()) for other in tried]),
        f"SURE {search.corrected}found nothing better than the start, which is returned."
        if in_vain
        else search.sentence(place),
    )
    trust: Tensor | float = 1.0
    if search.error > 0 and not in_vain:
        indices = torch.arange(problem.batch, device=problem.guess.device).split(size)
        parts = [problem.select(index) for index in indices]
        trust = torch.cat([_trust(_errors(part, search.first(part)), search.error) for part in parts])
    anchor = AT_START if in_vain else anchor
    solution = replace(problem, weight=torch.full_like(problem.weight, weight), anchor=anchor, trust=trust)
    return solution.held() if place[2] else solution, trace


class _Search:
    """The search for the place of least risk, on a few of the images.

    Arguments:
        problem, decoder, noise, budget, size, free: as of `choose_jointly`.
    """

    def __init__(
        self,
        problem: InversionProblem,
        decoder: Callable[[Tensor], Tensor],
        noise: float,
        budget: Budget,
        size: int,
        free: bool,
    ) -> None:
        self.noise, self.budget, self.free = noise, budget, free
        self.local = free and problem.guess.ndim == 4
        """Whether inputs are images, of whose places and grey levels something can be said."""
        self.curve = fit_curve(*_paired(problem, decoder, noise, max(IMAGES, min(CURVE, size)))) if self.local else None
        """What corrects the grey levels of the decoder."""
        self.pair, self.probe = _paired(problem, decoder, noise, IMAGES)
        """Both inversions of every image, of its data and of the probe's, in one batch."""
        if self.curve is not None:
            self.pair = replace(self.pair, guess=self.curve(self.pair))
        self.unit = ANCHOR * noise**2
        """The anchor of j = 0."""
        self.error = 0.0
        """The mean squared error of the decoder, where places are trusted by theirs."""
        self.risks: dict[Place, Tensor] = {}
        self._inverted: dict[Place, Tensor] = {}
        self._solver = QuasiNewton(tolerance=0.0) if problem.entrywise else Accelerated(tolerance=0.0)

    def first(self, problem: InversionProblem) -> Tensor:
        """The inputs of a first inversion from the guess."""
        return self._solve(problem, WEIGHT * self.noise**2, ANCHOR * self.noise**2, problem.guess, FIRST)

    def risk(self, x: Tensor) -> Tensor:
        """Of the inputs of the pair: one number per image."""
        return self.probe.risk(*self.pair.forward(x).chunk(2))

    def settings(self, place: Place) -> tuple[float, float]:
        """Weight and anchor."""
        anchor = self.unit * 4.0 ** place[1] if place[1] > -3 else 0.0
        return WEIGHT * self.noise**2 * 2.0 ** place[0], anchor

    def downhill(self) -> Place:
        """The place from which no step leads to a visibly smaller risk."""
        start, here = self.first(self.pair), (0, 0, False)
        if self.local:
            self._trust_by_place(_errors(self.pair, start))
            here = (-1, 0, True) if self.pair.touching is not None else here
        self._try(here, start)
        while True:
            best = min(self._neighbours(here), key=lambda place: float(self._try(place, self._inverted[here]).mean()))
            if not visibly_less(self.risks[best], self.risks[here], VISIBLE):
                return here
            here = best

    @property
    def corrected(self) -> str:
        """That there is a curve, in sentences."""
        return "" if self.curve is None else "corrected the decoder's grey levels and "

    def sentence(self, place: Place) -> str:
        """What was chosen."""
        weight, anchor = self.settings(place)
        chosen = f"the weight {weight:.3g} and the anchor" if self.pair.split.parts else "the anchor"
        by_place = ", stronger where the decoder is right" if self.error > 0 else ""
        held = ", and what the start has at a bound stays there" if place[2] else ""
        return f"SURE {self.corrected}chose {chosen} {anchor:.3g}{by_place}{held}."

    def _trust_by_place(self, errors: Tensor) -> None:
        if (mean := float(errors.mean())) > 0:
            self.error, self.unit = mean, SHARE * self.noise**2 / mean
            self.pair = replace(self.pair, trust=_trust(errors, mean))

    def _neighbours(self, here: Place) -> list[Place]:
        i, j, held = here
        moves = [(i, j + 1, held), (i, j - 1, held)]
        if self.pair.split.parts:  # without a prior there is only the anchor to choose
            moves = [*((i + step, j, held) for step in (1, -1, 2, -2)), *moves]
        moves = [move for move in moves if abs(move[0]) <= REACH and -3 <= move[1] <= REACH]
        return [*moves, (i, j, not held)] if self.free and self.pair.touching is not None else moves

    def _try(self, place: Place, start: Tensor) -> Tensor:
        """The risk of a place, for every image."""
        if place not in self.risks:
            weight, anchor = self.settings(place)
            self._inverted[place] = self._solve(self.pair, weight, anchor, start, STEPS, held=place[2])
            self.risks[place] = self.risk(self._inverted[place])
        return self.risks[place]

    def _solve(
        self, problem: InversionProblem, weight: float, anchor: float, start: Tensor, steps: int, held: bool = False
    ) -> Tensor:
        trial = replace(problem, weight=torch.full_like(problem.weight, weight), anchor=anchor)
        trial = trial.held() if held else trial
        return run_steps(trial, self._solver, start, replace(self.budget, max_steps=steps)).x


def _paired(
    problem: InversionProblem, decoder: Callable[[Tensor], Tensor], noise: float, most: int
) -> tuple[InversionProblem, Probe]:
    """The problem of some of the images, each with its data and with those of a probe."""
    count, device = min(most, problem.batch), problem.guess.device
    few = problem.select(torch.linspace(0, problem.batch - 1, count, device=device).long())
    probe = Probe.of(few.output, noise)
    y = torch.cat([few.output, probe.moved])
    twice = few.select(torch.arange(count, device=device).repeat(2))
    return replace(twice, output=y, target=y, guess=decoder(y), curvatures=()), probe


def _errors(problem: InversionProblem, x: Tensor) -> Tensor:
    """What the squared error of the guess is taken to be at every entry, if x is better: like x."""
    square = (x - inside(problem)).square()
    mean = square.flatten(1).mean(1).view(-1, 1, 1, 1)
    return avg_pool2d(square, WINDOW, stride=1, padding=WINDOW // 2, count_include_pad=False) + FLOOR * mean


def _trust(errors: Tensor, mean: float) -> Tensor:
    """t: like x."""
    return mean / errors.clamp_min(FLOOR**2 * mean)
