"""An anchor that holds every place as strongly as the decoder is right there."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.functions.priors import Box, Tikhonov, TotalVariation
from torchlift.inversion import Accelerated, InversionSolver, QuasiNewton, Sweep
from torchlift.inversion.intervals import posterior_deviation
from torchlift.inversion.joint import FLOOR, _errors, _trust
from torchlift.inversion.nested import NestedPDHG
from torchlift.inversion.problem import InversionProblem
from torchlift.inversion.run import Budget, run_steps
from torchlift.inversion.sure import visibly_less


def affine(algorithm: str) -> tuple[InversionProblem, Tensor, Tensor]:
    """½‖Wx + b − y‖² + ½0.3‖x‖² + ½0.2 Σ t_i (x − x₀)_i², whose minimiser and curvature are known: (3, 6)."""
    torch.manual_seed(0)
    linear = nn.Linear(6, 5).double()
    y, start, trust = torch.randn(3, 5), torch.randn(3, 6), torch.rand(3, 6) + 0.1
    y, start, trust = y.double(), start.double(), trust.double()
    inv = tl.invert(
        linear, y, Tikhonov(), 0.3, start=start, anchor=0.2, algorithm=algorithm, max_steps=1, progress=False
    )  # fmt: skip
    assert inv.problem is not None
    W, b = linear.weight.detach(), linear.bias.detach()
    curvature = W.T @ W + 0.3 * torch.eye(6, dtype=torch.float64) + torch.diag_embed(0.2 * trust)
    right = (y - b) @ W + 0.2 * trust * start
    return replace(inv.problem, trust=trust), torch.linalg.solve(curvature, right), curvature


@pytest.mark.parametrize("solver", [QuasiNewton(), Accelerated(), NestedPDHG(), Sweep()])
def test_every_algorithm_obeys_the_trust(solver: InversionSolver) -> None:
    problem, best, _ = affine("sweep" if isinstance(solver, Sweep) else "auto")
    found = run_steps(problem, replace(solver, tolerance=1e-12, visible=1e-15), problem.guess, Budget(3000))
    torch.testing.assert_close(found.x, best, rtol=0, atol=1e-5)
    alone = problem.select(torch.tensor([2]))
    found = run_steps(alone, replace(solver, tolerance=1e-12, visible=1e-15), alone.guess, Budget(3000))
    torch.testing.assert_close(found.x, best[2:], rtol=0, atol=1e-5)


def test_error_bars_know_the_trust() -> None:
    problem, best, curvature = affine("auto")
    inverse = torch.linalg.inv(curvature).diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(posterior_deviation(problem, best, 0.1), 0.1 * inverse.sqrt(), rtol=1e-4, atol=0)


def test_the_anchor_is_the_gradient_of_its_value() -> None:
    problem, _, _ = affine("auto")
    x = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(problem.anchor_value(x).sum(), x)
    torch.testing.assert_close(gradient, problem.stiffness * (x - problem.guess))
    moved = 0.1 * (problem.trust * (x - problem.guess).square()).sum(1)
    torch.testing.assert_close(problem.anchor_value(x), moved)


def test_trust_is_the_inverse_of_local_errors() -> None:
    """A decoder that is wrong in one corner is trusted least there, and by a bounded factor more elsewhere."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 64)).double()
    start = torch.rand(2, 1, 8, 8, dtype=torch.float64)
    inv = tl.invert(module, torch.zeros(2, 64).double(), Box(0, 1), 0.0, start=start, max_steps=1, progress=False)
    assert inv.problem is not None
    x = start.clone()
    x[0, :, :3, :3] += 0.5
    errors = _errors(inv.problem, x)
    trust = _trust(errors, float(errors.mean()))
    floor = FLOOR * 0.25 * 9 / 64
    assert float(errors[0, 0, 0, 0]) == pytest.approx(0.25 + floor)  # the window inside the image is wrong all over
    assert float(errors[0, 0, 3, 3]) == pytest.approx(0.25 * 4 / 25 + floor)
    assert float(errors[0, 0, 7, 7]) == pytest.approx(floor)
    assert bool(trust.isfinite().all())  # an image whose decoder is right all over is held, not divided by zero
    torch.testing.assert_close(trust[0] * errors[0], torch.full_like(trust[0], float(errors.mean())))
    assert float(trust[1].min()) == pytest.approx(1 / FLOOR**2)


def test_the_decoder_is_believed_where_it_is_right() -> None:
    """It knows the grey background, away from all bounds, and is noisy inside: no anchor that is the same everywhere
    does as well, with any weight."""
    torch.manual_seed(0)
    linear = nn.Linear(64, 48).double()
    module, x = nn.Sequential(nn.Flatten(), linear), torch.full((12, 1, 8, 8), 0.5, dtype=torch.float64)
    for k in range(12):
        x[k, 0, 4:, 4:] = torch.rand(4, 4, dtype=torch.float64)
    with torch.no_grad():
        y = module(x) + 0.02 * torch.randn(12, 48, dtype=torch.float64)
    inverse = torch.linalg.pinv(linear.weight.detach())

    def decoder(codes: Tensor) -> Tensor:
        rough = ((codes - linear.bias.detach()) @ inverse.T).view(-1, 1, 8, 8)
        return torch.where(x.std(0) > 0, rough, 0.5)

    def error(inv: tl.inversion.Inversion) -> float:
        return float((inv.x - x).square().mean())

    prior = TotalVariation()
    inv = tl.invert(module, y, prior, noise_level=0.02, start=decoder, progress=False)
    assert inv.weight_trace is not None and "stronger where the decoder is right" in inv.weight_trace.note
    alike = [
        tl.invert(module, y, prior, 4e-4 * 2.0**i, start=decoder(y), anchor=4e-4 * 4.0**j, progress=False)
        for i in range(-3, 5)
        for j in range(5)
    ]
    assert error(inv) < min(map(error, alike))


def test_vectors_have_no_neighbours() -> None:
    module = nn.Linear(4, 6)
    y = torch.rand(8, 6)
    inv = tl.invert(module, y, Tikhonov(), noise_level=0.1, start=nn.Linear(6, 4).requires_grad_(False), progress=False)
    assert inv.problem is not None and inv.problem.trust == 1.0


def test_risks_within_their_scatter_are_alike() -> None:
    """A gain of 1 on average with a deviation of √(4/3)·3 over four images has that over 2 as its standard error."""
    old = torch.tensor([10.0, 20.0, 30.0, 40.0])
    assert not visibly_less(old - torch.tensor([4.0, -2.0, 4.0, -2.0]), old)
    assert visibly_less(old - torch.tensor([2.0, 0.0, 2.0, 0.0]), old)  # what images have in common does not count
    assert not visibly_less(old, old) and not visibly_less(old + 1, old)
    assert not visibly_less(old - torch.tensor([2.0, 0.0, 2.0, 0.0]), old, errors=2.0)
    assert visibly_less(old[:1] - 1, old[:1])
