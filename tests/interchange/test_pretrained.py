"""`save_pretrained` and `from_pretrained`: local folders of safetensors and JSON."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import torchlift as tl
from contracts.network_cases import CASES, Case
from torchlift.core.errors import DataError
from torchlift.networks import MLP, Network


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_architecture_comes_back(case: Case, tmp_path: Path) -> None:
    network = case.build()
    folder = network.save_pretrained(tmp_path / "model")
    y, context = case.input(network), case.context()
    into = case.build() if case.name == "branching" else None  # a recorded module is not described in files
    again = Network.from_pretrained(folder, into=into)
    torch.testing.assert_close(again(y, context), network(y, context), rtol=0, atol=1e-12)
    assert {path.suffix for path in folder.iterdir() if path.is_file()} == {".safetensors", ".json"}


def test_the_same_folder_as_models(tmp_path: Path) -> None:
    network = MLP([3, 4, 2], tl.SoftThreshold(0.1))
    network.save_pretrained(tmp_path / "a")
    y = torch.randn(2, 3)
    assert torch.equal(tl.io.load_model(tmp_path / "a")(y), network(y))
    tl.io.save_model(tmp_path / "b", network)
    assert torch.equal(MLP.from_pretrained(tmp_path / "b")(y), network(y))


def test_a_network_of_ones_own_is_loaded_into_another(tmp_path: Path) -> None:
    class Own(MLP):
        """An architecture that torchlift would build as a chain."""

    network, other = Own([3, 4, 2]), Own([3, 4, 2])
    network.save_pretrained(tmp_path / "a")
    assert Network.from_pretrained(tmp_path / "a", into=other) is other
    assert torch.equal(other(torch.ones(1, 3)), network(torch.ones(1, 3)))


def test_names_on_the_internet_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="google/some-model"):
        Network.from_pretrained("google/some-model")
