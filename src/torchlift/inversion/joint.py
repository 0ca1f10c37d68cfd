"""Weight and anchor together, by SURE, for a start that a decoder makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from torchlift.inversion.accelerated import Accelerated
from torchlift.inversion.problem import InversionProblem, square_sum
from torchlift.inversion.quasi_newton import QuasiNewton
from torchlift.inversion.result import WeightTrace
from torchlift.inversion.run import Budget, run_steps

#: Images that decide, spread over all of them.
IMAGES = 24

#: Steps of the first trial and of every other, which starts from the best before. Trials far from their minimum have a
#: divergence that is too small, and large weights, which are done first, would win.
FIRST, STEPS = 80, 40

#: ε/ς of the probes, and the seed of their signs, which must not be that of the noise.
PROBE, SEED = 0.1, 271_828

#: A power of 2, one of 4, and whether entries at a bound stay there.
Place: TypeAlias = tuple[int, int, bool]

#: What is tried: weights 2ς²·2^i and anchors 10ς²·4^j, none for j = −3; more than this far from (0, 0) is not.
WEIGHT, ANCHOR, REACH = 2.0, 10.0, 5

#: Squared errors of a decoder are averaged over windows of images; no place is trusted more than if its error were this
#: share of the image's; and where errors e are known, anchors are so many ς²/mean(e)·4^j.
WINDOW, FLOOR, SHARE = 5, 0.1, 0.2


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

        risk = ‖N(x̂) − y‖² − mς² + 2ς² div_y N(x̂(y)),   div ≈ ⟨b, N(x̂(y + εb)) − N(x̂(y))⟩/ε, b = ±1

    estimates ‖N(x̂) − N(x)‖². The decoder sees y + εb too, so that its own noise
    counts; the search goes downhill in weight and anchor, where it is so by more than
    the standard error over images. Since the risk is an
    estimate of the error in the output, the chosen inputs are not worse than the
    decoder's in expectation there.

    A decoder of images is wrong at some places and right at others, such as a black
    background. How wrong, a first inversion says by how far it moves from the decoder's
    output: the anchor λt holds every place by t = mean(e)/e, as a Gaussian prior
    around the decoder's output with variances in proportion to e would, the squared
    changes averaged over small windows. Entries where the decoder's output reaches a bound of
    the prior, such as black pixels, may stay there: the risk decides that, too. Total variation raises a
    black background.

    Reference: Ramani, Blu & Unser, IEEE Transactions on Image Processing 17 (2008), for
    SURE; Tipping, Journal of Machine Learning Research 1 (2001), for variances that are estimated.

    Arguments:
        size: images at once.
        free: whether entries may be held differently.
    """
    few = torch.linspace(0, problem.batch - 1, min(IMAGES, problem.batch), device=problem.guess.device).long()
    part = problem.select(few)
    m, count = part.output[0].numel(), len(few)
    coins = torch.randint(0, 2, part.output.shape, generator=torch.Generator().manual_seed(SEED))
    b = (2 * coins - 1).to(part.output)
    y = torch.cat([part.output, part.output + PROBE * noise * b])
    guess = decoder(y)
    # both halves in one batch
    twice = part.select(torch.arange(count, device=few.device).repeat(2))
    twice = replace(twice, output=y, target=y, guess=guess, curvatures=())
    solver = QuasiNewton(tolerance=0.0) if problem.entrywise else Accelerated(tolerance=0.0)

    def solve(
        problem: InversionProblem, weight: float, anchor: float, start: Tensor, steps: int, held: bool = False
    ) -> Tensor:
        trial = replace(problem, weight=torch.full_like(problem.weight, weight), anchor=anchor)
        trial = trial.held() if held else trial
        return run_steps(trial, solver, start, replace(budget, max_steps=steps)).x

    def first(problem: InversionProblem) -> Tensor:
        return solve(problem, WEIGHT * noise**2, ANCHOR * noise**2, problem.guess, FIRST)

    def risk(x: Tensor) -> Tensor:
        output = twice.forward(x)
        divergence = (b * (output[count:] - output[:count])).flatten(1).sum(1) / (PROBE * noise)
        return square_sum(output[:count] - part.output) + noise**2 * (2 * divergence - m)

    start, scale, unit = _inside(twice), 0.0, ANCHOR * noise**2
    unchanged, here = risk(start), (0, 0, False)
    start = first(twice)
    if free and guess.ndim == 4:
        errors = _errors(twice, start)
        if (scale := float(errors.mean())) > 0:
            twice, unit = replace(twice, trust=_trust(errors, scale)), SHARE * noise**2 / scale
    risks: dict[Place, Tensor] = {}
    inverted: dict[Place, Tensor] = {}

    def settings(place: Place) -> tuple[float, float]:
        return WEIGHT * noise**2 * 2.0 ** place[0], unit * 4.0 ** place[1] if place[1] > -3 else 0.0

    def tried(place: Place, start: Tensor) -> Tensor:
        if place not in risks:
            inverted[place] = solve(twice, *settings(place), start, STEPS, place[2])
            risks[place] = risk(inverted[place])
        return risks[place]

    # without a prior there is only the anchor to choose
    directions = [(0, 1), (0, -1)] if not part.split.parts else [(1, 0), (-1, 0), (0, 1), (0, -1)]
    tried(here, start)
    while True:
        moves = [(here[0] + i, here[1] + j, here[2]) for i, j in directions]
        moves = [move for move in moves if abs(move[0]) <= REACH and -3 <= move[1] <= REACH]
        moves += [(here[0], here[1], not here[2])] if free and twice.touching is not None else []
        best = min(moves, key=lambda place: float(tried(place, inverted[here]).mean()))
        if not _visibly_less(risks[best], risks[here]):
            break
        here = best
    weight, anchor = settings(here)
    chosen = f"the weight {weight:.3g} and the anchor" if part.split.parts else "the anchor"
    note = f"SURE chose {chosen} {anchor:.3g}."
    if scale > 0:
        note = f"{note[:-1]}, stronger where the decoder is right."
    if here[2]:
        note = f"{note[:-1]}, and what the start has at a bound stays there."
    if float(unchanged.mean()) < float(risks[here].mean()):
        anchor, note = 1e6, "SURE found nothing better than the start, which is returned."
    places = sorted(place for place in risks if place[1:] == here[1:])
    trace = WeightTrace(
        "sure",
        "SURE",
        problem.weight.new_tensor([settings(place)[0] for place in places]),
        problem.weight.new_tensor([float(risks[place].mean()) for place in places]),
        note,
    )
    trust: Tensor | float = 1.0
    if scale > 0 and anchor < 1e6:
        parts = [problem.select(index) for index in torch.arange(problem.batch, device=few.device).split(size)]
        trust = torch.cat([_trust(_errors(part, first(part)), scale) for part in parts])
    solution = replace(problem, weight=torch.full_like(problem.weight, weight), anchor=anchor, trust=trust)
    return solution.held() if here[2] else solution, trace


def _visibly_less(new: Tensor, old: Tensor) -> bool:
    """Whether the mean over images is less by more than its standard error, since estimates scatter: of (B,) each."""
    gain = old - new
    scatter = float(gain.std()) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
    return float(gain.mean()) > scatter


def _inside(problem: InversionProblem) -> Tensor:
    """The guess, inside the constraints."""
    return problem.split.prox(problem.guess, 0.0) if problem.constrained else problem.guess


def _errors(problem: InversionProblem, x: Tensor) -> Tensor:
    """What the squared error of the guess is taken to be at every entry, if x is better: like x."""
    square = (x - _inside(problem)).square()
    mean = square.flatten(1).mean(1).view(-1, 1, 1, 1)
    return avg_pool2d(square, WINDOW, stride=1, padding=WINDOW // 2, count_include_pad=False) + FLOOR * mean


def _trust(errors: Tensor, mean: float) -> Tensor:
    """t: like x."""
    return mean / errors.clamp_min(FLOOR**2 * mean)
