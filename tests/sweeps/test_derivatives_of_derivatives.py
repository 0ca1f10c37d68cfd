"""Losses that contain derivatives of the network, inside `sweeping`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.networks import MLP


class LearnedThresholds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((7,), -2.0))
        self.first, self.last = nn.Linear(3, 7), nn.Linear(7, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(tl.SoftThreshold(self.log.exp())(self.first(x)))


def module_of(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "module":
        return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 5), nn.Softplus(), nn.Linear(5, 1)).double()
    if name == "chain":
        return MLP([3, 7, 7, 1], tl.Tanh()).double()
    return LearnedThresholds().double()


NAMES = ["module", "chain", "learned thresholds"]


def differentiated(name: str, gradient: Callable[[], AbstractContextManager[Any]]) -> tuple[Tensor, list[Tensor]]:
    """The derivatives of a network, and the gradients of the sum of their squares."""
    module = module_of(name)
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    with gradient():
        (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        loss = slope.square().sum()
    loss.backward()
    return slope.detach(), [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", NAMES)
def test_derivatives_in_a_loss_are_those_of_the_network(name: str) -> None:
    """Such as those in the residual of a differential equation: a perturbed one would be another equation."""
    exact, found = differentiated(name, nullcontext)[0], differentiated(name, tl.sweeping)[0]
    assert torch.allclose(found, exact, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", NAMES)
def test_such_a_loss_has_the_gradients_of_back_propagation_without_perturbations(name: str) -> None:
    small = tl.Perturbation(fixed=1e-7)
    exact, found = differentiated(name, nullcontext)[1], differentiated(name, lambda: tl.sweeping(small))[1]
    assert len(exact) == len(found) > 1
    assert all(torch.allclose(one, other, rtol=1e-6, atol=1e-9) for one, other in zip(found, exact, strict=True))
