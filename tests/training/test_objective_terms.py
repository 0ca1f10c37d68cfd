"""Quadratic coupling, the contrastive clamp and regularisers, from `tl.train` and from the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import torchlift as tl
from cli.runs import TINY
from torchlift.cli import main
from torchlift.core.errors import InvalidValueError
from torchlift.functions.losses import Target, WeightedSquaredError
from torchlift.functions.regularisers import L1, ElasticNet, GroupNorm
from torchlift.liftings import Bregman, Contrastive
from torchlift.networks import MLP
from torchlift.solvers import ProximalAdam
from torchlift.training import TrainOptions


def _data() -> tuple[Tensor, Tensor]:
    y = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
    return y, y[:, :2].sin()


def _network() -> MLP:
    return MLP([4, 6, 6, 2], generator=torch.Generator().manual_seed(0))


def _train(network: MLP, **options: object) -> tl.Training:
    given = {"lifting": Bregman(), "weights": "keep", "steps": 20, "progress": False} | options
    return tl.train(network, _data(), **given)  # type: ignore[arg-type]


def _objectives(result: tl.Training) -> list[float]:
    return [row["objective"] for row in result.history if row["objective"] is not None]


@pytest.mark.parametrize("batch_size", ["full", None])
def test_a_quadratic_coupling_is_trained(batch_size: object) -> None:
    network = _network()
    y, x = _data()
    before = (network(y) - x).square().mean()
    _train(network, batch_size=batch_size, options=TrainOptions(coupling=1.0))
    assert (network(y) - x).square().mean() < before


def test_the_clamp_is_the_energy_of_the_last_layer() -> None:
    """The source's clamped energy ends with μ_J/2 ‖x − (W_J z + b_J)‖²."""
    clamped, weighted = _network(), _network()
    lifting = Contrastive((0.5, 0.3))
    result = _train(clamped, lifting=lifting, loss=Target(), steps=3)
    _train(weighted, lifting=lifting, loss=WeightedSquaredError(0.3), steps=3)
    for ours, theirs in zip(clamped.parameters(), weighted.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert not torch.equal(clamped(_data()[0]), _network()(_data()[0]))
    assert not result.failed


def test_the_clamp_needs_a_last_layer_without_activation() -> None:
    network = tl.lift(
        torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2), torch.nn.ReLU())
    )
    with pytest.raises(InvalidValueError, match=r"Target with Contrastive.*no activation.*SquaredError"):
        tl.train(network, _data(), lifting=Contrastive(), loss=Target(), progress=False)


@pytest.mark.parametrize("batch_size", ["full", None])
@pytest.mark.parametrize("regulariser", [L1(0.05), ElasticNet(0.05, 0.1)], ids=["l1", "elastic net"])
def test_matched_adam_finds_sparse_weights(regulariser: tl.functions.Function, batch_size: object) -> None:
    """Exact zeros, which a gradient never gives, and the prox of every entry with its own step."""
    network = _network()
    options = TrainOptions(parameter_regularisers={"*weight": regulariser})
    _train(network, solver=ProximalAdam(1e-2, matched=True), batch_size=batch_size, steps=30, options=options)
    weights = torch.cat([p.flatten() for name, p in network.named_parameters() if name.endswith("weight")])
    assert 0.05 < float((weights == 0).float().mean()) < 1


def test_matched_adam_refuses_groups_for_their_own_sake() -> None:
    options = TrainOptions(parameter_regularisers={"*weight": GroupNorm(0.1, -1)})
    with pytest.raises(InvalidValueError, match="'parameters': expected a prox that acts by entries"):
        _train(_network(), solver=ProximalAdam(matched=True), options=options)


def test_groups_of_weights_vanish_together() -> None:
    network = _network()
    options = TrainOptions(parameter_regularisers={"*weight": GroupNorm(0.1, -1)})
    _train(network, batch_size="full", steps=30, options=options)
    rows = torch.cat(
        [p.flatten(0, -2).norm(dim=1).sign() for name, p in network.named_parameters() if "weight" in name]
    )
    assert 0 < int((rows == 0).sum()) < len(rows)


@pytest.mark.parametrize("regulariser", [L1(0.5), ElasticNet(0.5, 0.5)], ids=["l1", "elastic net"])
def test_lifted_variables_are_regularised(regulariser: tl.functions.Function) -> None:
    values = [
        _objectives(_train(_network(), batch_size="full", options=TrainOptions(state_regularisers=states)))
        for states in (None, regulariser, {2: regulariser})
    ]
    assert all(series[-1] < series[0] for series in values)
    assert values[0][-1] < values[2][-1] < values[1][-1], "each regulariser adds to the objective"


TERMS = {
    "coupling": ("lifting = 'bregman'\ncoupling = 0.5", "coupling"),
    "states": ("lifting = 'bregman'\nstate_regularisers = ['l1 0.01']", "state_regularisers"),
    "one layer": ("lifting = 'bregman'\nstate_regularisers = ['1: elastic-net 0.01 0.1']", "state_regularisers"),
    "parameters": (
        "lifting = 'bregman'\nparameter_regularisers = ['*weight: group-norm 1e-3 -1']",
        "parameter_regularisers",
    ),
    "clamp": ("lifting = 'contrastive'\nloss = 'target'", "loss"),
}


def _configured(folder: Path, lines: str) -> Path:
    head, _, rest = TINY.partition("[training]")
    kept = [line for line in rest.splitlines() if not line.startswith(("lifting", "solver", "loss", "mu"))]
    path = folder / "run.toml"
    path.write_text("\n".join([head + "[training]", lines, *kept]), encoding="utf-8")
    return path


@pytest.mark.parametrize("case", TERMS)
def test_the_command_has_them_all(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines, key = TERMS[case]
    status = main(["train", str(_configured(tmp_path, lines)), "--json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert json.loads(captured.out)["configuration"]["training"][key]


BAD = {
    "no such regulariser": ("state_regularisers = ['l2 0.01']", "one of 'elastic-net'"),
    "no numbers": ("state_regularisers = ['l1 much']", "with its numbers"),
    "no names": ("parameter_regularisers = ['l1 0.01']", r"NAMES: REGULARISER"),
    "no layer": ("state_regularisers = ['first: l1 0.01']", "a layer, counted from 1"),
    "negative": ("parameter_regularisers = ['*: l1 -1']", "L1 weight"),
    "without a lifting": ("coupling = 1.0", "a method with lifted variables"),
}


@pytest.mark.parametrize("case", BAD)
def test_the_command_refuses(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines, words = BAD[case]
    head = "" if case == "without a lifting" else "lifting = 'bregman'\n"
    assert main(["train", str(_configured(tmp_path, head + lines))]) != 0
    assert words in capsys.readouterr().err
