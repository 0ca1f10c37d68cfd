"""Priors mean what they say: constraints of one's own are kept by inversion, or refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import torchlift as tl
from torchlift.core.checks import Shape
from torchlift.core.errors import InvalidValueError
from torchlift.functions import Ball, Box, Function, Part, Prior, check_step
from torchlift.operators import FiniteDifference


@dataclass(frozen=True)
class UnitBall(Function):
    """‖x‖ ≤ 1, without a conjugate."""

    constraint: ClassVar[bool] = True

    def value(self, x: Tensor) -> Tensor:
        inside = x.flatten(1).norm(dim=1) <= 1 + 1e-12
        return torch.zeros_like(inside, dtype=x.dtype).masked_fill(~inside, torch.inf)

    def prox(self, x: Tensor, step: float | Tensor = 1.0) -> Tensor:
        check_step(step, x)
        return x / x.flatten(1).norm(dim=1).clamp_min(1).view(-1, *(1,) * (x.ndim - 1))


@dataclass(frozen=True)
class SmallSlopes(Prior):
    """|∇x| ≤ 0.1."""

    def parts(self, shape: Shape) -> tuple[Part, ...]:
        return (Part(Box(-0.1, 0.1), FiniteDifference(shape)),)


def problem(activation: tl.prox.ProximalActivation) -> tuple[tl.networks.Network, Tensor]:
    """A network of one layer and outputs whose inputs have a norm of about 10."""
    torch.manual_seed(0)
    net = tl.networks.Perceptron(6, 8, activation=activation).double()
    return net, net(5 * torch.randn(3, 6, dtype=torch.float64)).detach()


@pytest.mark.parametrize("algorithm", ["sweep", "paper", "nested-adam", "nested-pdhg"])
@pytest.mark.parametrize("prior", [UnitBall(), UnitBall() + 0.1 * tl.priors.L1(), 3.0 * Ball(1.0)])
def test_a_constraint_of_ones_own_is_kept(prior: Prior, algorithm: str) -> None:
    net, y = problem(tl.Identity())
    assert float(tl.invert(net, y, None, 0.0).x.norm(dim=1).min()) > 3
    inv = tl.invert(net, y, prior, 0.05, algorithm=algorithm)
    assert float(inv.x.norm(dim=1).max()) <= 1 + 1e-12
    assert bool(prior.value(inv.x).isfinite().all())


def test_the_solution_on_a_ball_is_the_certified_one() -> None:
    """Least squares on a ball: x solves (WᵀW + λI)x = Wᵀ(y − b) with λ > 0 and ‖x‖ = r."""
    net, y = problem(tl.Identity())
    swept = tl.invert(net, y, UnitBall(), 0.05, tolerance=1e-12, max_steps=5000)
    exact = tl.invert(net, y, Ball(1.0), 0.05, algorithm="exact", tolerance=1e-9)
    assert exact.converged and exact.duality_gap is not None and float(exact.duality_gap.max()) < 1e-9
    torch.testing.assert_close(swept.x, exact.x, rtol=0, atol=1e-4)
    gradient = torch.func.vjp(net, swept.x)[1](net(swept.x) - y)[0]
    multiplier = -(gradient * swept.x).sum(1, keepdim=True)
    assert bool((multiplier > 0).all())
    torch.testing.assert_close(gradient, -multiplier * swept.x, rtol=0, atol=1e-5)


def test_exact_refuses_what_it_cannot_certify() -> None:
    net, y = problem(tl.Identity())
    with pytest.raises(InvalidValueError, match=r"Exact: expected .* a conjugate, got UnitBall.*sweep"):
        tl.invert(net, y, UnitBall(), 0.05, algorithm="exact")


@pytest.mark.parametrize("algorithm", ["sweep", "exact", "nested-adam"])
def test_a_constraint_after_an_operator_is_refused(algorithm: str) -> None:
    """It used to be applied to x instead of Ax."""
    net = tl.lift(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 4)), torch.zeros(1, 1, 4, 4))
    expected = r"expected a constraint on x itself, got Box of FiniteDifference\(x\)\. .*Tikhonov\(A\).*PDHG or ADMM"
    for prior in (SmallSlopes(), tl.priors.L1() + 2.0 * SmallSlopes(), SmallSlopes() + Box(0, 1)):
        with pytest.raises(InvalidValueError, match=expected):
            tl.invert(net, torch.zeros(2, 4), prior, 0.1, algorithm=algorithm)
    x = torch.zeros(2, 1, 4, 4)
    x[1, 0, 2:] = 0.5
    assert SmallSlopes().value(x).tolist() == [0.0, torch.inf]


def test_constraints_without_a_closed_intersection_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"sum of constraints: expected .*, got Ball and Box\. Write the proj"):
        (Ball() + Box(0, 1)).split((4,))
    with pytest.raises(InvalidValueError, match=r"got UnitBall and UnitBall"):
        (UnitBall() + UnitBall()).split((4,))
    smaller = (Ball(2.0) + tl.priors.TotalVariation() + Ball(0.5)).split((1, 4, 4)).proximal
    assert smaller is not None and smaller.function == Ball(0.5)
