"""The paper's autoencoder of digits, untrained: an example network to train and to invert."""

from __future__ import annotations

import torch
from torch import nn

IMAGE, CODE = (1, 28, 28), 392


def build(seed: int = 0) -> tuple[nn.Sequential, nn.Sequential]:
    """Encoder (two convolutions 4 × 4 of stride 2 with ReLU, one dense layer) and decoder (the mirror image)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = nn.Sequential(
            *(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(784, CODE)),
        )
        decoder = nn.Sequential(
            *(nn.Linear(CODE, 784), nn.ReLU(), nn.Unflatten(1, (16, 7, 7))),
            *(nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU()),
            nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
        )
    return encoder, decoder
