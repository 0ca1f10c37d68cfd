# pyright: reportArgumentType=false
# (annotations of deepinv are narrower than what it takes)
"""Unfolded networks of deepinv's examples, trained by `tl.train` and by its own trainer at equal processor time.

    python scripts/deepinv_demos.py --seconds 20 --out docs/records/deepinv

needs deepinv and ptwt. Three models of deepinv on bundled data, small enough for a processor:

- lista: ten proximal gradient iterations with a learned step and threshold of wavelets each, 78 measurements of digits;
- unfolded: five Douglas–Rachford iterations with a learned DnCNN of depth 7, photographs at half their size;
- primal-dual: three iterations of deepinv's primal and dual blocks with the adjoint, tomography of random ellipses at
  30 angles by our Radon transform, which is faster.

Both sides start from the same weights, see the same pairs in batches of eight, and are judged on the same test
images, which choose nothing. deepinv's side has the optimiser and the rate of its example (`RATES`); ours has nothing
to choose. Processor time of a step is measured first, in turn, and gives each its number of steps.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepinv
import torch
from deepinv.models import PDNet_DualBlock, PDNet_PrimalBlock
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import torchlift as tl
from torchlift.contrib.deepinv import as_physics, with_physics
from torchlift.data import Denoising, Patches, psnr

BATCH, TIMED, ROUNDS = 8, 3, 2
#: Learning rates and options of Adam in deepinv's examples.
RATES: dict[str, dict[str, Any]] = {
    "lista": {"lr": 0.01},
    "unfolded": {"lr": 5e-4, "weight_decay": 1e-8},
    "primal-dual": {"lr": 1e-3, "betas": (0.9, 0.99)},
}
Problem = tuple[nn.Module, Any, Tensor, Tensor]
"""Model, physics, training images, test images."""


def lista() -> Problem:
    iterations = 10
    physics = deepinv.physics.CompressedSensing(m=78, img_size=(1, 28, 28), fast=True)
    train, test = (tl.data.load_digits(part).images.reshape(-1, 1, 28, 28) for part in ("train", "test"))
    # the example's steps of 1 diverge here: the square of the norm is about 16 in this version
    step = 1 / float(physics.compute_norm(train[:1], verbose=False))
    model = deepinv.optim.PGD(
        data_fidelity=deepinv.optim.L2(),
        prior=[deepinv.optim.WaveletPrior(wv="db8", level=3) for _ in range(iterations)],
        stepsize=[step] * iterations,
        lambda_reg=[0.01] * iterations,
        max_iter=iterations,
        unfold=True,
        trainable_params=["stepsize", "lambda"],
    )
    return model, physics, train[:200], test[:64]


def unfolded() -> Problem:
    iterations, size = 5, 32
    noise = deepinv.physics.GaussianNoise(0.03, rng=torch.Generator().manual_seed(1))
    physics = deepinv.physics.Downsampling(img_size=(3, size, size), factor=2, filter="gaussian", noise_model=noise)
    denoiser = deepinv.models.DnCNN(depth=7, pretrained=None)
    model = deepinv.optim.DRS(
        data_fidelity=deepinv.optim.L2(),
        prior=deepinv.optim.PnP(denoiser=denoiser),
        stepsize=[1.0] * iterations,
        sigma_denoiser=[0.01] * iterations,
        max_iter=iterations,
        unfold=True,
        trainable_params=["stepsize", "g_param"],
    )
    astronaut, cat, coffee = tl.data.load_photographs()
    draw = Patches([astronaut, coffee], Denoising(0.1), size, count=200)
    _, train, _ = draw(torch.Generator().manual_seed(2))
    test = tl.data.tiles([cat], size)
    return model, physics, train, test


class PrimalDualNet(nn.Module):
    """x ↦ primal block(x, Aᵀu), u ↦ dual block(u, A x, y) with deepinv's blocks, from x = Aᵀy and u = 0."""

    def __init__(self, iterations: int = 3, channels: int = 5) -> None:
        super().__init__()
        self.channels = channels
        self.dual = nn.ModuleList([PDNet_DualBlock() for _ in range(iterations)])
        self.primal = nn.ModuleList([PDNet_PrimalBlock() for _ in range(iterations)])

    def forward(self, y: Tensor, physics: Any, **_: Any) -> Tensor:
        x = physics.A_adjoint(y).repeat(1, self.channels, 1, 1)
        u = torch.zeros_like(y).repeat(1, self.channels, 1, 1)
        for dual, primal in zip(self.dual, self.primal, strict=True):
            u = dual(u, physics.A(x[:, 1:2]), y)
            x = primal(x, physics.A_adjoint(u[:, :1]))
        return x[:, 1:2]


def primal_dual() -> Problem:
    size = 32
    noise = deepinv.physics.GaussianNoise(0.01, rng=torch.Generator().manual_seed(1))
    operator = tl.data.Tomography(angles=30).operator((1, size, size))
    physics = as_physics(operator, noise_model=noise)
    generator = torch.Generator().manual_seed(2)
    images = tl.data.random_phantoms(216, size, generator)
    return PrimalDualNet(), physics, images[:200], images[200:]


PROBLEMS: dict[str, Callable[[], Problem]] = {"lista": lista, "unfolded": unfolded, "primal-dual": primal_dual}


def by_us(model: nn.Module, physics: Any, y: Tensor, x: Tensor, name: str, steps: int) -> str:
    result = tl.train(with_physics(model, physics), (y, x), batch_size=BATCH, steps=steps, progress=False)
    return result.message


def by_deepinv(model: nn.Module, physics: Any, y: Tensor, x: Tensor, name: str, steps: int) -> str:
    loader = DataLoader(
        TensorDataset(x, y), batch_size=BATCH, shuffle=True, drop_last=False, generator=torch.Generator().manual_seed(0)
    )
    epochs = -(-steps // len(loader))
    with tempfile.TemporaryDirectory() as folder:
        trainer = deepinv.Trainer(
            model,
            physics=physics,
            optimizer=torch.optim.Adam(model.parameters(), **RATES[name]),
            train_dataloader=loader,
            epochs=epochs,
            max_batch_steps=steps - 1,
            losses=deepinv.loss.SupLoss(metric=deepinv.metric.MSE()),
            compute_train_metrics=False,
            save_path=folder,
            ckp_interval=10**9,
            device="cpu",
            verbose=False,
            show_progress_bar=False,
        )
        trainer.train()
    return f"Adam, {RATES[name]}"


SIDES = {"tl.train": by_us, "deepinv.Trainer": by_deepinv}


@torch.no_grad()
def quality(model: nn.Module, physics: Any, y: Tensor, x: Tensor) -> float:
    model.eval()
    return round(float(psnr(model(y, physics).clamp(0, 1), x).mean()), 2)


def compare(name: str, seconds: float, seed: int = 0) -> dict[str, Any]:
    torch.manual_seed(seed)
    model, physics, train, test = PROBLEMS[name]()
    with torch.no_grad():
        y_train, y_test = physics(train), physics(test)
    times: dict[str, float] = {}
    for turn in range(ROUNDS + 1):  # the first round pays for what torch makes once
        for side, run in SIDES.items():
            spent = []
            for steps in (TIMED, 3 * TIMED):
                begin = time.process_time()
                run(copy.deepcopy(model), physics, y_train, train, name, steps)
                spent.append(time.process_time() - begin)
            each = max(spent[1] - spent[0], 0.1 * spent[1]) / (2 * TIMED)
            if turn > 0:
                times[side] = min(each, times.get(side, each))
    record: dict[str, Any] = {
        "name": name,
        "seconds": seconds,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "start": quality(copy.deepcopy(model), physics, y_test, test),
    }
    for side, run in SIDES.items():
        own, steps = copy.deepcopy(model), max(1, int(seconds / times[side]))
        begin = time.process_time()
        message = run(own, physics, y_train, train, name, steps)
        record[side] = {
            "steps": steps,
            "seconds": round(time.process_time() - begin, 1),
            "psnr": quality(own, physics, y_test, test),
            "message": message,
        }
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *PROBLEMS], default=[])
    parser.add_argument("--seconds", type=float, default=20.0, help="processor time of each run")
    parser.add_argument("--out", type=Path, help="folder of one JSON file for each model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.names or PROBLEMS:
        record = compare(name, given.seconds)
        print(json.dumps(record), flush=True)
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            (given.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
