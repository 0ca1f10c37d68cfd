"""One small run of everything random, as a script too: prints a digest of every number that came out."""

from __future__ import annotations

import hashlib
import json
import sys

import torch

import torchlift as tl
from torchlift.functions.priors import Tikhonov
from torchlift.liftings import Bregman, Conventional
from torchlift.networks import MLP
from torchlift.prox import ReLU

METHODS = {
    "sweep": {},
    "lifted": {"lifting": Bregman(1.0), "options": tl.TrainOptions(states="random")},
    "back-propagation": {"lifting": Conventional(), "solver": torch.optim.Adam},
}
"""Settings of `tl.train` by name."""


def numbers(method: str, dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, torch.Tensor]:
    """Parameters, losses and inverted inputs of a run on 60 samples."""
    generator = torch.Generator().manual_seed(seed)
    network = MLP([20, 16, 16, 8], ReLU(), generator=generator).to(dtype)
    y = torch.randn(60, 20, generator=generator, dtype=dtype)
    x = torch.randn(60, 8, generator=generator, dtype=dtype)
    result = tl.train(network, (y, x), epochs=2, batch_size=20, seed=seed, progress=False, **METHODS[method])
    found = {name: parameter.detach().clone() for name, parameter in result.network.named_parameters()}
    found["losses"] = torch.tensor(result.history["loss"], dtype=dtype)
    with torch.no_grad():
        outputs = result.network(y[:2])
    found["inverted"] = tl.invert(result.network, outputs, Tikhonov(), 1e-2, max_steps=5).x
    return found


def digest(found: dict[str, torch.Tensor]) -> str:
    """Of every bit of every number."""
    total = hashlib.sha256()
    for name, tensor in sorted(found.items()):
        total.update(name.encode())
        total.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    print(json.dumps({method: digest(numbers(method)) for method in METHODS}))
