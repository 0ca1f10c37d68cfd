"""What a decoder has at a bound may stay there, and SURE decides whether it does."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.functions.priors import Box, Tikhonov, TotalVariation
from torchlift.inversion import Accelerated, InversionSolver, QuasiNewton
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.run import Budget, run_steps


def blocks() -> Tensor:
    """Bright squares on black."""
    x = torch.zeros(4, 1, 8, 8, dtype=torch.float64)
    for k in range(4):
        x[k, :, 1 + k : 4 + k, 2:6] = 0.6 + 0.1 * k
    return x


def problem() -> tuple[InversionProblem, Tensor]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 50), nn.Tanh()).double()
    with torch.no_grad():
        y = module(blocks())
    start = blocks() + 0.2 * torch.randn(4, 1, 8, 8, dtype=torch.float64)
    inv = tl.invert(module, y, TotalVariation() + Box(0, 1), 1e-3, start=start, max_steps=1, progress=False)
    assert inv.problem is not None
    return inv.problem, start


@pytest.mark.parametrize("solver", [QuasiNewton(), Accelerated()])
def test_entries_at_a_bound_stay_there(solver: InversionSolver) -> None:
    whole, start = problem()
    touching = whole.touching
    assert touching is not None and torch.equal(touching, (start <= 0) | (start >= 1))
    found = run_steps(whole.held(), solver, start, Budget(60))
    assert torch.equal(found.x[touching], start[touching].clamp(0, 1))
    assert bool((found.objective < found.start_objective).all()) and not torch.equal(found.x, start.clamp(0, 1))
    # an image alone is held at its own entries
    alone = run_steps(whole.held().select(torch.tensor([2])), solver, start[2:3], Budget(60))
    assert torch.equal(alone.x[touching[2:3]], start[2:3][touching[2:3]].clamp(0, 1))


def test_without_a_constraint_nothing_is_held() -> None:
    module = nn.Linear(4, 6)
    inv = tl.invert(module, torch.rand(2, 6), Tikhonov(), 0.1, max_steps=1, progress=False)
    assert inv.problem is not None and inv.problem.touching is None and inv.problem.held() is inv.problem


def test_sure_holds_what_a_good_decoder_has_at_the_bounds() -> None:
    """Total variation raises a black background; the decoder knows that it is black."""
    torch.manual_seed(0)
    linear = nn.Linear(64, 60).double()
    module, x = nn.Sequential(nn.Flatten(), linear), blocks().repeat(3, 1, 1, 1)
    with torch.no_grad():
        y = module(x) + 0.01 * torch.randn(12, 60, dtype=torch.float64)
    inverse = torch.linalg.pinv(linear.weight.detach())

    def decoder(codes: Tensor) -> Tensor:
        rough = ((codes - linear.bias.detach()) @ inverse.T).view(-1, 1, 8, 8)
        return torch.where(x.amax(0) > 0, rough, -0.1)  # black outside of where squares can be

    prior = TotalVariation() + Box(0, 1)
    inv = tl.invert(module, y, prior, noise_level=0.01, start=decoder, progress=False)
    assert inv.weight_trace is not None and "at a bound stays there" in inv.weight_trace.note
    assert inv.problem is not None
    loose = tl.invert(
        module, y, prior, inv.weight, start=inv.problem.guess, anchor=inv.problem.anchor, progress=False
    )  # fmt: skip
    assert float((inv.x - x).norm()) < float((loose.x - x).norm())
