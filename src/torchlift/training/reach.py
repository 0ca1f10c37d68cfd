"""Targets that an activation at the end of a network keeps out of reach."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from torchlift.core.errors import message
from torchlift.data import Batch
from torchlift.training.modules import apply, in_mode
from torchlift.training.starts.recording import hooks

#: What the activations that people put at the end of networks return.
RANGES: dict[type[nn.Module], tuple[float, float]] = {
    nn.Tanh: (-1, 1), nn.Softsign: (-1, 1), nn.Sigmoid: (0, 1), nn.Hardsigmoid: (0, 1), nn.Softmax: (0, 1),
    nn.ReLU: (0, math.inf), nn.ReLU6: (0, 6), nn.Softplus: (0, math.inf),
}  # fmt: skip
#: Targets out of reach, as a share of all, from which on this is said: noise may lead a few of them there.
OUTSIDE = 0.1


@torch.no_grad()
def reach_warning(network: nn.Module, batch: Batch, samples: int = 8) -> str | None:
    """A sentence where many targets are beyond what the last activation returns; None where there is none."""
    network = getattr(network, "_orig_mod", network)  # of a compiled module, which would be compiled for the hooks
    ends = any(type(part) in RANGES for part in network.modules())
    if not ends or not batch.x.is_floating_point() or batch.context is not None:
        return None
    made: list[tuple[nn.Module, Tensor]] = []

    def note(_: str, part: nn.Module, output: Tensor) -> None:
        made.append((part, output))

    with hooks(RANGES, network, note), in_mode(network, False), torch.random.fork_rng(devices=()):
        output = apply(network, batch.y[:samples])
    last = next((part for part, value in made if value is output), None)
    if last is None or batch.x.shape[1:] != output.shape[1:]:
        return None
    low, high = RANGES[type(last)]
    outside = float(((batch.x < low) | (batch.x > high)).double().mean())
    if outside <= OUTSIDE:
        return None
    name, least, most = type(last).__name__, float(batch.x.min()), float(batch.x.max())
    expected = f"targets from {low:g} to {high:g}, which are all that the {name} at the end of the network returns"
    got = f"{outside:.0%} of them outside, from {least:.3g} to {most:.3g}".replace("%", " %", 1)
    return message("train data", expected, got, f"Scale the targets, or leave the {name} away.")
