"""Train a denoiser of at most 50,000 parameters on grey photographs and measure it once on others.

    python scripts/denoise_photographs.py TRAIN.npz --network cnn --method sweep --steps 2000 --test TEST.npz

TRAIN.npz has an array `images` (n, height, width) of bytes, the last 40 of which are held out; TEST.npz has one array
per image. Times are those of the processor, so that methods can be compared on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import torchlift as tl
from torchlift.data import Denoising, Patches, psnr, tiles
from torchlift.networks.denoisers import Denoiser
from torchlift.training import BackPropagation

NOISE, SIZE, HELD_OUT = 25 / 255, 40, 40


class Residual(nn.Module):
    """y − f(y), f on every second pixel of every second row: four small images instead of a large one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, y: Tensor) -> Tensor:
        height, width = y.shape[-2:]
        even = nn.functional.pad(y, (0, width % 2, 0, height % 2), mode="replicate")
        small = nn.functional.pixel_unshuffle(even, 2)
        noise = nn.functional.pixel_shuffle(self.inner(small), 2)
        return y - noise[..., :height, :width]


class Unshuffled(nn.Module):
    """One of torchlift's denoisers on the same four small images, of any size."""

    def __init__(self, denoiser: Denoiser) -> None:
        super().__init__()
        self.denoiser: Denoiser = denoiser

    def forward(self, y: Tensor) -> Tensor:
        height, width = y.shape[-2:]
        even = nn.functional.pad(y, (0, width % 2, 0, height % 2), mode="replicate")
        small = nn.functional.pixel_unshuffle(even, 2)
        net = self.denoiser.for_images((4, small.shape[-2], small.shape[-1]))
        return nn.functional.pixel_shuffle(net(small), 2)[..., :height, :width]


def build(name: str, seed: int) -> nn.Module:
    """A network of fewer than 50,000 parameters."""
    torch.manual_seed(seed)
    if name == "cnn":
        layers = [nn.Conv2d(4, 32, 3, padding=1), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Conv2d(32, 32, 3, padding=1), nn.ReLU()]
        return Residual(nn.Sequential(*layers, nn.Conv2d(32, 4, 3, padding=1)))
    half = (4, SIZE // 2, SIZE // 2)
    if name == "firm":
        return Unshuffled(tl.networks.FirmDenoiser(half, 6, features=64, size=3, threshold=0.1))
    kind = {"ddfb": tl.networks.DDFB, "sccp": tl.networks.ScCP}[name]
    constraint = tl.Identity()  # pixels at 0 and 1 would stop the signal
    return Unshuffled(kind(half, 6, features=64, size=3, threshold=0.1, adjoint=False, constraint=constraint))


@torch.no_grad()
def measure(network: nn.Module, images: list[Tensor], seed: int) -> float:
    """Mean PSNR over images, noise of a seed."""
    generator = torch.Generator().manual_seed(seed)
    values = []
    for image in images:
        x = image[None].float() / 255
        y = x + NOISE * torch.randn(x.shape, generator=generator)
        values.append(float(psnr(network(y).clamp(0, 1), x).mean()))
    return sum(values) / len(values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", type=Path)
    parser.add_argument("--network", choices=("cnn", "ddfb", "sccp", "firm"), default="cnn")
    parser.add_argument("--method", choices=("sweep", "adamw"), default="sweep")
    parser.add_argument("--lr", type=float, default=1e-3, help="of adamw, whose cosine falls to 0")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--weights", help="how weights start, see torchlift.train; by default as it chooses")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with np.load(given.train, allow_pickle=False) as stored:
        images = [torch.from_numpy(image)[None] for image in stored["images"]]
    train, held_out = images[:-HELD_OUT], images[-HELD_OUT:]
    network = build(given.network, given.seed)
    lifting, solver = None, None
    if given.method == "adamw":
        lifting = tl.liftings.Conventional()
        solver = BackPropagation(partial(torch.optim.AdamW, lr=given.lr, fused=True), "cosine")
    squares = tiles(held_out[::4], SIZE)
    noisy = Denoising(NOISE).degrade(squares, torch.Generator().manual_seed(given.seed)).y
    before = time.process_time()
    result = tl.train(
        network,
        Patches(train, Denoising(NOISE), SIZE),
        validation=(noisy, squares),
        lifting=lifting,
        solver=solver,
        batch_size=given.batch_size,
        steps=given.steps,
        weights=given.weights,
        seed=given.seed,
        progress=False,
    )
    record = {
        "network": given.network,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "method": given.method if given.method == "sweep" else f"adamw, lr {given.lr:g}, cosine",
        "steps": result.steps,
        "processor_seconds": round(time.process_time() - before, 1),
        "best_step": result.best["step"],
        "curve": [round(row["metrics"]["psnr"], 2) for row in result.history if row["kind"] == "validation"],
        "validation_psnr": round(measure(network, held_out, 1), 3),
    }
    if given.test is not None:
        with np.load(given.test, allow_pickle=False) as stored:
            record["test_psnr"] = round(measure(network, [torch.from_numpy(stored[n])[None] for n in stored], 2), 3)
    if isinstance(network, Unshuffled) and isinstance(network.denoiser, tl.networks.FirmDenoiser):
        record["largest_norm"] = max(network.denoiser.certificate().norms)
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
