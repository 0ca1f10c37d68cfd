"""Training and inference with parameters in bfloat16, and under autocast."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import torchlift as tl
from torchlift.networks import MLP


def line(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    y = torch.randn(100, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    return y, 2 * y[:, :2]


def network(dtype: torch.dtype = torch.float32) -> MLP:
    return MLP([4, 8, 2], generator=torch.Generator().manual_seed(0), dtype=dtype)


WAYS: dict[str, dict[str, Any]] = {
    "default": {},
    "full": {"batch_size": "full"},
    "lifted, full": {"batch_size": "full", "lifting": tl.liftings.Bregman()},
    "back-propagation": {"lifting": tl.liftings.Conventional(), "solver": partial(torch.optim.Adam, lr=0.03)},
}


@pytest.mark.parametrize("way", WAYS)
def test_parameters_in_bfloat16_are_trained(way: str) -> None:
    data = line(torch.bfloat16)
    settings = {"batch_size": 20, **WAYS[way]}
    result = tl.train(network(torch.bfloat16), data, epochs=40, progress=False, **settings)
    assert all(parameter.dtype == torch.bfloat16 for parameter in result.network.parameters())
    assert result.history[-1]["loss"] < 0.5 * result.history[0]["loss"]
    assert result.network.to_sequential()(data[0]).dtype == torch.bfloat16


def test_lifted_variables_kept_in_bfloat16() -> None:
    data = line(torch.float32)
    options = tl.TrainOptions(states="warm", state_dtype=torch.bfloat16)
    settings: dict[str, Any] = {"options": options, "lifting": tl.liftings.Bregman()}
    result = tl.train(network(), data, epochs=2, batch_size=50, progress=False, **settings)
    assert not result.failed
    assert all(parameter.dtype == torch.float32 for parameter in result.network.parameters())


def test_inference_and_back_propagation_under_autocast() -> None:
    y, x = line(torch.float32)
    net = network()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        output = net(y)
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), net(y).detach(), rtol=0.05, atol=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = tl.train(net, (y, x), epochs=40, batch_size=20, progress=False, **WAYS["back-propagation"])
    assert result.history[-1]["loss"] < 0.5 * result.history[0]["loss"]
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())
