"""Train the bundled colour denoisers on the folder that `build_photographs.py` wrote.

    python scripts/train_denoiser.py FOLDER --network ddfb --steps 500 --out src/torchlift/io/files/denoiser
    python scripts/train_denoiser.py FOLDER --network firm --steps 300 --out src/torchlift/io/files/firm-denoiser

Noise of standard deviation 25/255 is added to patches whose colours were multiplied by random numbers, so that the
network knows strong and weak contrasts: s·N(y/s) then removes noise of standard deviation 25 s/255. The last picture
of the folder is held out to choose the step that is kept; the bundled photographs are measured once at the end.
A run that was stopped goes on from its checkpoint when the same command is given again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torchlift as tl
from torchlift.data import Denoising, Patches, psnr, tiles
from torchlift.networks import DDFB, FirmDenoiser

NOISE, SIZE = 25 / 255, 40


@dataclass(frozen=True)
class Tinted:
    """Patches with colours multiplied by 2^a, a in [−1, 2] the same and in [−½, ½] another one for each channel."""

    patches: Patches

    def __call__(self, generator: torch.Generator) -> tuple[Any, ...]:
        _, x, _ = self.patches(generator)
        exponent = 3 * torch.rand(len(x), 1, 1, 1, generator=generator) - 1
        x = x * (exponent + torch.rand(len(x), 3, 1, 1, generator=generator) - 0.5).exp2()
        return Denoising(NOISE).degrade(x, generator).y, x


def build(name: str) -> DDFB | FirmDenoiser:
    torch.manual_seed(0)
    if name == "firm":
        return FirmDenoiser((3, SIZE, SIZE), 6, features=48, size=5, threshold=0.06)
    # without bounds on pixels s·N(y/s) makes sense for every s > 0
    return DDFB((3, SIZE, SIZE), 6, features=48, size=5, threshold=0.06, constraint=tl.Identity())


@torch.no_grad()
def quality(network: Any, images: Tensor, noise: float) -> float:
    """Mean PSNR over images after removal of noise of a standard deviation."""
    noisy = images + noise * torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    return float(psnr(network.prox(noisy, torch.tensor(noise / NOISE)).clamp(0, 1), images).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--network", choices=("ddfb", "firm"), default="ddfb")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--folder", type=Path, help="of the run, which goes on where it was stopped")
    parser.add_argument("--out", type=Path, help="folder to save the model to")
    given = parser.parse_args()
    torch.set_num_threads(1)
    *train, held_out = tl.data.load_images(given.pictures, channels=3)
    network = build(given.network)
    targets = tiles([held_out], SIZE)
    noisy = Denoising(NOISE).degrade(targets, torch.Generator().manual_seed(0)).y
    before = time.process_time()
    with torch.autocast("cpu", torch.bfloat16):  # convolutions take half the time
        result = tl.train(
            network,
            Tinted(Patches(train, Denoising(NOISE), SIZE)),
            validation=(noisy, targets),
            batch_size=8,
            steps=given.steps,
            folder=given.folder,
            resume=given.folder is not None,
            progress=False,
        )
    bundled = tl.data.load_photographs()
    record = {
        "network": given.network,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "steps": result.steps,
        "best_step": result.best["step"],
        "processor_seconds": round(time.process_time() - before),
        "held_out_psnr": round(result.best["value"], 2),
        "bundled_psnr": {f"{n}/255": round(quality(network, bundled, n / 255), 2) for n in (10, 25, 50)},
    }
    print(json.dumps(record), flush=True)
    if given.out is not None:
        network.save_pretrained(given.out)


if __name__ == "__main__":
    main()
