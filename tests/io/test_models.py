"""Saved networks: every architecture comes back with the same outputs; damage is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from contracts.network_cases import CASES
from torchlift.core.errors import DataError
from torchlift.io import load_model, save_model, save_tensors
from torchlift.networks import LISTA, MLP, Network, PrimalDual, Shallow, lift
from torchlift.networks.form import UnifiedForm
from torchlift.operators import FiniteDifference, Mask
from torchlift.prox import Box, ReLU, SoftThreshold, Tanh


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_architecture_comes_back(case, tmp_path: Path) -> None:
    network = case.build()
    save_model(tmp_path / "model", network)
    into = case.build() if case.name == "branching" else None  # a recorded module is not described in files
    again = load_model(tmp_path / "model", into=into)
    y, context = case.input(network), case.context()
    assert (again.in_shape, again.out_shape) == (network.in_shape, network.out_shape)
    assert torch.equal(again(y, context), network(y, context))
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in network.named_parameters()]


MORE = {
    "shallow, several activations": lambda: Shallow(3, [2, 4], 2, [ReLU(), Tanh()], output_bias=True),
    "shallow without biases": lambda: Shallow(3, [2], 2, bias=False),
    "per-channel thresholds": lambda: lift(
        nn.Sequential(nn.Linear(3, 2), SoftThreshold(torch.tensor([0.1, 0.3])).to_module())
    ),
    "coupled with masks": lambda: LISTA(Mask(shape=(1, 2, 2)), torch.eye(4), 2, form="coupled", tied=True,
                                        context=torch.ones(1, 1, 2, 2)),
    "finite differences": lambda: PrimalDual(0.5 * Mask(torch.ones(1, 3, 3)), FiniteDifference((1, 3, 3)), 2, tied=True,
                                             constraint=Box(0, 2), learnable=["step"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MORE)
def test_rarer_parts_come_back(name: str, tmp_path: Path) -> None:
    network = MORE[name]()
    save_model(tmp_path, network)
    again = load_model(tmp_path)
    y = torch.rand(2, *network.in_shape)
    context = torch.ones(2, *network.in_shape)
    assert torch.equal(again(y, context), network(y, context))
    frozen = [[n for n, p in each.named_parameters() if not p.requires_grad] for each in (network, again)]
    assert frozen[0] == frozen[1]


class Own(Network):
    """A network that torchlift knows nothing of."""

    def __init__(self) -> None:
        super().__init__((2,), (3,))
        self.inner = MLP([2, 4, 3])

    def operators(self) -> UnifiedForm:
        return self.inner.operators()


def test_a_network_of_ones_own_is_loaded_into_another(tmp_path: Path) -> None:
    network, other = Own(), Own()
    save_model(tmp_path, network)
    with pytest.raises(DataError, match=r"an architecture of torchlift, got 'Own'.*into=network"):
        load_model(tmp_path)
    y = torch.rand(2, 2)
    assert torch.equal(load_model(tmp_path, into=other)(y), network(y))
    with pytest.raises(DataError, match="a model of another network"):
        load_model(tmp_path, into=MLP([2, 4, 3]))


def test_bad_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        load_model(tmp_path / "absent")
    with pytest.raises(TypeError, match="expected a Network, got Linear"):
        save_model(tmp_path / "a", nn.Linear(2, 2))  # type: ignore[arg-type]
    save_model(tmp_path / "b", MLP([2, 4, 3]))
    record = json.loads((tmp_path / "b" / "record.json").read_text())
    (tmp_path / "b" / "record.json").write_text(json.dumps(record).replace("Linear", "system"))
    with pytest.raises(DataError):
        load_model(tmp_path / "b")


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ({"network": "Chain", "in_shape": [2], "modules": [{"module": "system"}]}, "got 'system'"),
        ({"network": "Chain", "in_shape": [2], "modules": [{"module": "Linear", "in_features": "x"}]}, "architecture"),
        ({"network": "Chain", "in_shape": [2]}, "modules"),
        ({"network": "LISTA", "H": {"class": "system"}}, "got 'system'"),
        ({"network": "LISTA", "H": 3}, "got 3"),
        ({}, "network"),
    ],
)  # fmt: skip
def test_forged_architectures_are_refused(architecture: dict, reason: str, tmp_path: Path) -> None:
    save_tensors(tmp_path / "m", {}, {"architecture": architecture, "dtype": None, "frozen": []}, kind="model")
    with pytest.raises(DataError, match=reason):
        load_model(tmp_path / "m")
