"""Thresholds given as parameters are registered, trained, copied and written back in every network."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import torchlift as tl
from torchlift.core.errors import DataError
from torchlift.networks import MLP, Network, Perceptron, ResNet, Shallow


def _sigma(values: tuple[float, ...] = ()) -> tl.SoftThreshold:
    return tl.SoftThreshold(nn.Parameter(torch.tensor(values or 0.1)))


def _lifted() -> Network:
    return tl.lift(nn.Sequential(nn.Linear(3, 4), _sigma((0.1, 0.2, 0.1, 0.3)).to_module(), nn.Linear(4, 2)))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.sigma, self.b = nn.Linear(3, 4), _sigma().to_module(), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.sigma(self.a(x)))


BUILD: dict[str, Callable[[], Network]] = {
    "MLP": lambda: MLP([3, 4, 4, 2], _sigma()),
    "MLP, one each": lambda: MLP([3, 4, 4, 2], [_sigma(), _sigma((0.1, 0.2, 0.3, 0.4))]),
    "ResNet": lambda: ResNet(3, [4, 5], 2, _sigma()),
    "ResNet, rk4": lambda: ResNet(3, [4], 2, _sigma(), tableau="rk4"),
    "Perceptron": lambda: Perceptron(3, 2, _sigma()),
    "Shallow": lambda: Shallow(3, [2, 2], 2, _sigma()),
    "lift": _lifted,
    "lift, a forward of its own": lambda: tl.lift(Own(), (3,)),
}


@pytest.mark.parametrize("name", BUILD)
def test_thresholds_are_parameters(name: str) -> None:
    torch.manual_seed(0)
    network = BUILD[name]()
    y = torch.randn(5, 3)
    names = [name for name, _ in network.named_parameters() if name.endswith("threshold")]
    assert len(names) == (2 if "each" in name else 1)
    threshold = network.get_parameter(names[0])
    network(y).square().sum().backward()
    assert threshold.grad is not None and threshold.grad.abs().sum() > 0

    before, twin = network(y).detach(), copy.deepcopy(network)
    with torch.no_grad():
        twin.get_parameter(names[0]).add_(0.05)
    assert torch.equal(network(y), before) and not torch.equal(twin(y), before)
    torch.testing.assert_close(twin.to_sequential()(y), twin(y))
    network.load_state_dict(twin.state_dict())
    torch.testing.assert_close(network(y), twin(y))
    assert network.double()(y.double()).dtype == torch.float64


@pytest.mark.parametrize("name", ["MLP", "ResNet", "lift", "Shallow"])
def test_objectives_move_thresholds(name: str) -> None:
    torch.manual_seed(0)
    network = BUILD[name]().double()
    y = torch.randn(5, 3, dtype=torch.float64)
    x = torch.randn(5, 2, dtype=torch.float64)
    objective = tl.Objective(network, tl.liftings.Bregman())
    z = objective.initialise(y).map(lambda layer: layer + 0.3)
    (path,) = [name for name, _ in network.named_parameters() if name.endswith("threshold")]
    slope = objective.gradients(y, x, z).parameters[path]
    values = []
    for step in (1e-6, -2e-6):
        with torch.no_grad():
            network.get_parameter(path).add_(step)
        values.append(float(objective.value(y, x, z)))
    assert (values[0] - values[1]) / 2e-6 == pytest.approx(float(slope.sum()), rel=1e-4)


def test_chains_with_thresholds_come_back() -> None:
    torch.manual_seed(0)
    sequential = nn.Sequential(nn.Linear(3, 4), _sigma().to_module(), nn.Linear(4, 2))
    chain = tl.lift(sequential)
    assert isinstance(chain, tl.networks.Chain)
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter.add_(0.1)
    chain.load_back(sequential)
    y = torch.randn(2, 3)
    torch.testing.assert_close(sequential(y), chain(y))
    assert dict(chain.scatter(dict(chain.named_parameters())))["1.threshold"].shape == ()
    assert "SoftThreshold(threshold=" in repr(sequential)


def test_learned_thresholds_are_saved_as_numbers(tmp_path: Path) -> None:
    network, other = BUILD["MLP"](), BUILD["MLP"]()
    folder = network.save_pretrained(tmp_path / "model")
    y = torch.randn(2, 3)
    assert torch.equal(Network.from_pretrained(folder, into=other)(y), network(y))
    with pytest.raises(DataError, match="into=network"):
        Network.from_pretrained(folder)


def test_slopes_are_trained() -> None:
    network = tl.lift(nn.Sequential(nn.Linear(3, 4), nn.PReLU(4), nn.Linear(4, 2)))
    assert tl.check_activation(tl.prox.PReLU.example()).ok
    network(torch.randn(5, 3)).sum().backward()
    assert network.get_parameter("module.1.weight").grad is not None
