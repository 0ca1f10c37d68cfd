"""Deep networks from torch's start: they learn, and all of their layers do."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import torchlift as tl
from torchlift.data import as_batches, load_digits
from torchlift.functions.losses import CrossEntropy
from torchlift.training import Phase
from torchlift.training.plan import PlannedPhase
from torchlift.training.starts.short_runs import start_weights

LAYERS, WIDTH, STEPS = 20, 32, 250


class Residual(nn.Module):
    """u ↦ u + W σ(u)/√L, layer after layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(784, WIDTH), nn.Linear(WIDTH, 10)
        self.inner = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS - 2))

    def forward(self, y: Tensor) -> Tensor:
        u = self.first(y)
        for layer in self.inner:
            u = u + layer(torch.relu(u)) / LAYERS**0.5
        return self.last(torch.relu(u))


def chain() -> nn.Sequential:
    inner = [part for _ in range(LAYERS - 2) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(nn.Linear(784, WIDTH), nn.ReLU(), *inner, nn.Linear(WIDTH, 10))


@pytest.mark.parametrize(("build", "right"), [(chain, 0.6), (Residual, 0.8)])
def test_all_layers_of_a_deep_network_learn(build: type[nn.Module], right: float) -> None:
    """Any quarter of the inner layers, set back to where training began, makes the training loss far larger.

    Not the loss of new digits: where a network has begun to overfit, setting layers back may even lower that.
    """
    torch.manual_seed(0)
    digits, model = load_digits("train"), build()
    data = digits.images.flatten(1), digits.labels
    start_weights(PlannedPhase(Phase(steps=STEPS), model, as_batches(data, batch_size=100), CrossEntropy()))
    first = [copy.deepcopy(layer.state_dict()) for layer in model.modules() if isinstance(layer, nn.Linear)]
    tl.train(model, data, steps=STEPS, batch_size=100, weights="keep")
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
    test = load_digits("test")

    @torch.no_grad()
    def loss() -> float:
        return float(cross_entropy(model(data[0]), data[1]))

    trained = loss()
    assert float((model(test.images.flatten(1)).argmax(1) == test.labels).float().mean()) > right
    inner = list(zip(layers, first, strict=True))
    inner = [pair for pair in inner if pair[0].weight.shape == (WIDTH, WIDTH)]
    quarter = len(inner) // 4
    for begin in range(0, 4 * quarter, quarter):
        kept = [copy.deepcopy(layer.state_dict()) for layer, _ in inner]
        for layer, before in inner[begin : begin + quarter]:
            layer.load_state_dict(before)
        assert loss() > 1.3 * trained
        for (layer, _), after in zip(inner, kept, strict=True):
            layer.load_state_dict(after)
