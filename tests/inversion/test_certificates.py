"""Convergence is what the optimality conditions say, and what is said to have converged has."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.functions.priors import L1, Prior, Tikhonov, TotalVariation
from torchlift.inversion import Status

WEIGHTS = (1e-4, 1e-2, 0.3, 3.0)
#: Algorithms whose objective is that of "exact" for a layer without an activation, and for one with.
AFFINE = ("auto", "quasi-newton", "accelerated", "sweep", "paper", "nested-pdhg")
LIFTED = ("sweep", "paper")


def images() -> Tensor:
    x = torch.zeros(3, 1, 6, 6, dtype=torch.float64)
    x[:, :, 1:4, 2:5] = 1
    return x + 0.1 * torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def layer(activation: nn.Module | None) -> nn.Sequential:
    torch.manual_seed(0)
    parts = [nn.Flatten(), nn.Linear(36, 90), *([] if activation is None else [activation])]
    nn.init.orthogonal_(parts[1].weight, 2.0)
    return nn.Sequential(*parts).double()


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("activation", [None, nn.ReLU(), nn.Softshrink(0.1)], ids=["affine", "relu", "soft-threshold"])
def test_every_algorithm_agrees_with_the_exact_one(activation: nn.Module | None, weight: float) -> None:
    """On convex problems, to 1e-3 in the objective, in double and in single precision."""
    module = layer(activation)
    with torch.no_grad():
        y = module(images())
    double = tl.lift(module, (1, 6, 6))
    exact = tl.invert(double, y, TotalVariation(), weight, algorithm="exact", tolerance=1e-5)
    assert exact.converged
    single = tl.lift(layer(activation).float(), (1, 6, 6))
    for algorithm in AFFINE if activation is None else LIFTED:
        for net, data in ((double, y), (single, y.float())):
            inv = tl.invert(net, data, TotalVariation(), weight, algorithm=algorithm, max_steps=2000)
            gap = inv.objective.double() / exact.objective - 1
            assert float(gap.abs().max()) < 1e-3, (algorithm, net.like, gap, inv.message)


@pytest.mark.parametrize("prior", [L1(), Tikhonov()], ids=["l1", "tikhonov"])
def test_what_has_converged_is_within_its_bound(prior: Prior) -> None:
    """The bound holds for the gain that is left, and smaller tolerances leave less."""
    torch.manual_seed(0)
    net = tl.lift(nn.Sequential(nn.Linear(12, 30)).double())
    y = torch.randn(4, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    exact = tl.invert(net, y, prior, 0.1, algorithm="exact", tolerance=1e-9)
    for tolerance in (1e-1, 1e-3, 1e-5):
        for algorithm in ("accelerated", "sweep", "nested-pdhg"):
            inv = tl.invert(net, y, prior, 0.1, algorithm=algorithm, tolerance=tolerance, max_steps=3000)
            assert inv.converged and bool((inv.bound <= tolerance).all())
            assert bool(((inv.objective - exact.objective) / exact.objective <= 2 * tolerance).all())


def wide() -> tuple[tl.networks.Network, Tensor, Tensor]:
    """Three inputs, three layers of 300 neurons."""
    torch.manual_seed(0)
    sizes = (3, 300, 300, 300, 40)
    parts = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    net = tl.lift(nn.Sequential(*parts[:-1]))
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return net, x, net(x)


def test_wide_layers_do_not_hide_that_nothing_happened() -> None:
    net, x, y = wide()
    start = torch.zeros_like(x)
    for algorithm in ("sweep", "paper"):
        inv = tl.invert(net, y, Tikhonov(), 1e-4, algorithm=algorithm, start=start, max_steps=30)
        assert not bool((inv.status == Status.CONVERGED).any()), algorithm
    inv = tl.invert(net, y, Tikhonov(), 1e-4)
    assert float((inv.x - x).norm(dim=1).mean()) < 0.05 * float(x.norm(dim=1).mean())
    before, after = float(inv.start_residual.mean()), float(inv.residual.mean())
    assert after < 0.05 * before and f"{before:.4g} → {after:.4g}" in inv.message


def test_a_large_weight_does_not_stop_at_the_start() -> None:
    """The primal objective of a primal-dual method increases at first; that is no reason to stop."""
    module = layer(None)
    with torch.no_grad():
        y = module(images())
    net = tl.lift(module, (1, 6, 6))
    for algorithm in ("paper", "nested-pdhg", "sweep", "auto"):
        inv = tl.invert(net, y, TotalVariation(), 3.0, algorithm=algorithm)
        assert float(inv.objective.max() / inv.start_objective.max()) < 0.9 and float(inv.x.abs().min()) > 0.05
