"""Measures what the table of the README says, and keeps it in docs/records/front-page.json.

    python scripts/measure_front_page.py [dead] [revived] [healthy] [inversion]

Every row is run over three seeds and added to the record. Both sides have the same start, data, batches, loop, number
of steps and choice of the best parameters on validation digits; Adam gets the best of three learning rates with a
cosine schedule, chosen on validation digits, and torchlift none to choose. Test digits are read once for each.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchlift as tl

RECORD = Path(__file__).resolve().parent.parent / "docs" / "records" / "front-page.json"
SEEDS, RATES = (0, 1, 2), (1e-3, 3e-3, 1e-2)
STEPS, BATCH = 300, 100
SIZES = {"dead": [784, 128, 128, 128, 10], "revived": [784, 128, 128, 128, 10], "healthy": [784, 256, 256, 10]}
NAMES = {
    "dead": ("classify digits, 3 × 128 soft-threshold 0.3", "torch's, dead"),
    "revived": ("the same", "`tl.initialise_weights`, both sides"),
    "healthy": ("classify digits, 2 × 256 ReLU", "torch's, healthy"),
    "inversion": ("images from noisy codes, convolutional encoder", "the decoder's output"),
}


def data(split: str) -> tuple[Tensor, Tensor]:
    digits = tl.data.load_digits(split)
    return digits.images.flatten(1), digits.labels


@torch.no_grad()
def accuracy(model: nn.Module, split: str) -> float:
    inputs, labels = data(split)
    return 100 * float((model(inputs).argmax(1) == labels).float().mean())


def build(row: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    sizes, modules = SIZES[row], []
    for before, after in pairwise(sizes[:-1]):
        modules += [nn.Linear(before, after), nn.ReLU() if row == "healthy" else nn.Softshrink(0.3)]
    return nn.Sequential(*modules, nn.Linear(sizes[-2], sizes[-1]))


def classify(row: str, seed: int) -> dict[str, Any]:
    """Test accuracy and processor seconds of both sides."""
    start = build(row, seed)
    if row == "revived":
        inputs, labels = data("train")
        tl.initialise_weights(start, (inputs[:1000], labels[:1000]))
    common: dict[str, Any] = {
        "validation": data("validation"), "steps": STEPS, "batch_size": BATCH, "weights": "keep", "seed": seed,
        "progress": False,
    }  # fmt: skip

    def train(**method: Any) -> tuple[nn.Module, float, float]:
        model, begun = copy.deepcopy(start), time.process_time()
        tl.train(model, data("train"), **common, **method)
        return model, accuracy(model, "validation"), time.process_time() - begun

    ours, _, seconds = train()
    tried = []
    for rate in RATES:
        method = tl.training.BackPropagation(partial(torch.optim.Adam, lr=rate), "cosine")
        tried.append((*train(lifting=tl.liftings.Conventional(), solver=method), rate))
    best = max(tried, key=lambda result: result[1])
    return {
        "ours": accuracy(ours, "test"), "baseline": accuracy(best[0], "test"), "start": accuracy(start, "test"),
        "seconds": seconds, "baseline seconds": best[2], "rate": best[3],
    }  # fmt: skip


def invert(seed: int, noise: float = 0.1, count: int = 40) -> dict[str, Any]:
    """Mean PSNR of test digits from noisy codes: the decoder, Adam on the same objective, `tl.invert`."""
    torch.manual_seed(seed)
    encoder = nn.Sequential(
        *(nn.Conv2d(1, 8, 4, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(8, 16, 4, stride=2, padding=1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(784, 392)),
    )
    decoder = nn.Sequential(
        *(nn.Linear(392, 784), nn.ReLU(), nn.Unflatten(1, (16, 7, 7))),
        *(nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.ReLU()),
        nn.ConvTranspose2d(8, 1, 4, stride=2, padding=1),
    )
    images = tl.data.load_digits("train").images
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
    for _ in range(3):
        for batch in images[torch.randperm(len(images))].split(64):
            optimiser.zero_grad()
            F.mse_loss(decoder(encoder(batch)), batch).backward()
            optimiser.step()
    network, prior = tl.lift(encoder, (1, 28, 28)), tl.priors.TotalVariation() + tl.priors.Box(0, 1)
    x = tl.data.load_digits("test").images[:count]
    with torch.no_grad():
        y = encoder(x) + noise * torch.randn(count, 392)
        start = decoder(y).clamp(0, 1)
    begun = time.process_time()
    ours = tl.invert(network, y, prior, 0.02, anchor=0.1, start=start, progress=False)
    seconds, begun = time.process_time() - begun, time.process_time()
    adam = tl.invert(
        network, y, prior, 0.02, anchor=0.1, start=start, algorithm="nested-adam", max_steps=300, progress=False
    )
    baseline = time.process_time() - begun
    quality = [float(tl.data.psnr(found, x).mean()) for found in (ours.x, adam.x, start)]
    keys = ("ours", "baseline", "start", "seconds", "baseline seconds")
    return dict(zip(keys, (*quality, seconds, baseline), strict=True))


def line(row: str, runs: list[dict[str, Any]]) -> list[str]:
    """Medians of the seeds as a row of the table."""
    unit = "dB" if row == "inversion" else "%"
    ours, baseline, start = (statistics.median(run[key] for run in runs) for key in ("ours", "baseline", "start"))
    ratio = statistics.median(run["seconds"] / run["baseline seconds"] for run in runs)
    shown = [f"{start:.1f} {unit}", f"{baseline:.1f} {unit}", f"{ours:.1f} {unit}", f"{ratio:.1f}×"]
    return [*NAMES[row], *shown]


def main() -> None:
    torch.set_num_threads(1)
    kept: dict[str, Any] = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {"runs": {}}
    for row in sys.argv[1:] or NAMES:
        kept["runs"][row] = [invert(seed) if row == "inversion" else classify(row, seed) for seed in SEEDS]
        print(line(row, kept["runs"][row]), flush=True)
        kept |= {
            "columns": ["task", "start of both sides", "the start itself", "Adam", "torchlift", "processor time"],
            "rows": [line(name, kept["runs"][name]) for name in NAMES if name in kept["runs"]],
            "how": (
                f"Bundled digits, test set, median of {len(SEEDS)} seeds, one thread. Classifiers: {STEPS} steps of "
                f"{BATCH} digits; Adam by back-propagation with a cosine schedule and the best of the rates "
                f"{', '.join(f'{rate:g}' for rate in RATES)} on validation digits; torchlift has none to choose. "
                "Inversion: noise 0.1, 40 images, total variation and [0, 1], weight 0.02 and anchor 0.1 on both "
                "sides, 300 steps of Adam. Processor time is torchlift's divided by that of Adam at one rate."
            ),
            "torch": torch.__version__,
            "torchlift": tl.__version__,
        }
        RECORD.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
