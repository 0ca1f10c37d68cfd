"""Weight and anchor together, by SURE, for a start that a decoder makes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

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
REACH = 5


@torch.no_grad()
def choose_jointly(
    problem: InversionProblem, decoder: Callable[[Tensor], Tensor], noise: float, budget: Budget, hold: bool = True
) -> tuple[InversionProblem, WeightTrace]:
    """The problem with the weight and anchor of least risk, or held at the decoder's output where that has less.

        risk = ‖N(x̂) − y‖² − mς² + 2ς² div_y N(x̂(y)),   div ≈ ⟨b, N(x̂(y + εb)) − N(x̂(y))⟩/ε, b = ±1

    estimates ‖N(x̂) − N(x)‖². The decoder sees y + εb too, so that its own noise
    counts; the search goes downhill in weight and anchor. Since the risk is an
    estimate of the error in the output, the chosen inputs are not worse than the
    decoder's in expectation there.

    Entries where the decoder's output reaches a bound of the prior, such as black pixels, may
    stay there (`hold`): the risk decides that, too. Total variation raises a black background.

    Reference: Ramani, Blu & Unser, IEEE Transactions on Image Processing 17 (2008).
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
    risks: dict[Place, float] = {}
    found: dict[Place, Tensor] = {}

    def risk(x: Tensor) -> float:
        output = twice.forward(x)
        divergence = (b * (output[count:] - output[:count])).flatten(1).sum(1) / (PROBE * noise)
        return float((square_sum(output[:count] - part.output) + 2 * noise**2 * divergence).mean()) - m * noise**2

    def settings(place: Place) -> tuple[float, float]:
        return 2 * noise**2 * 2.0 ** place[0], 10 * noise**2 * 4.0 ** place[1] if place[1] > -3 else 0.0

    def tried(place: Place, start: Tensor) -> float:
        if place not in risks:
            weight, anchor = settings(place)
            trial = replace(twice, weight=torch.full_like(twice.weight, weight), anchor=anchor)
            trial = trial.held() if place[2] else trial
            found[place] = run_steps(trial, solver, start, replace(budget, max_steps=STEPS if risks else FIRST)).x
            risks[place] = risk(found[place])
        return risks[place]

    start = part.split.prox(guess, 0.0) if problem.constrained else guess
    # without a prior there is only the anchor to choose
    directions = [(0, 1), (0, -1)] if not part.split.parts else [(1, 0), (-1, 0), (0, 1), (0, -1)]
    here, unchanged = (0, 0, False), risk(start)
    tried(here, start)
    while True:
        moves = [(here[0] + i, here[1] + j, here[2]) for i, j in directions]
        moves = [move for move in moves if abs(move[0]) <= REACH and -3 <= move[1] <= REACH]
        moves += [(here[0], here[1], not here[2])] if hold and twice.touching is not None else []
        best = min([here, *moves], key=lambda place: tried(place, found[here]))
        if best == here:
            break
        here = best
    weight, anchor = settings(here)
    chosen = f"the weight {weight:.3g} and the anchor" if part.split.parts else "the anchor"
    note = f"SURE chose {chosen} {anchor:.3g}."
    if here[2]:
        note = f"{note[:-1]}, and what the start has at a bound stays there."
    if unchanged < risks[here]:
        anchor, note = 1e6, "SURE found nothing better than the start, which is returned."
    places = sorted(place for place in risks if place[1:] == here[1:])
    trace = WeightTrace(
        "sure",
        "SURE",
        problem.weight.new_tensor([settings(place)[0] for place in places]),
        problem.weight.new_tensor([risks[place] for place in places]),
        note,
    )
    chosen = replace(problem, weight=torch.full_like(problem.weight, weight), anchor=anchor)
    return chosen.held() if here[2] else chosen, trace
