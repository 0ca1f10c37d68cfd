"""Runs of `torchlift bench photographs`: denoisers of at most 50,000 parameters, at equal processor time.

Rules, the same for all:

- One network and one start, drawn by torch with the seed; patches, flips and noise drawn anew by the same generator.
- The budget is processor time of one thread. Start-up and a step of all methods are timed first, in turn, and give each
  the number of its steps, so that a run can be interrupted and continued without losing its schedule.
- Ours is `train` with nothing chosen. Baselines try the same number of rates at a tenth of the budget, judged on
  held-out images, and are run at the best one with a cosine schedule; the last weights count.
- The test images are read once for each finished run.
- BM3D (the package of its authors) learns nothing and is told the noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchlift.cli.settings.arrays import read_npz
from torchlift.core.errors import invalid_value
from torchlift.core.files import write_file
from torchlift.core.png import png
from torchlift.data import Denoising, Patches, load_photographs, psnr, tiles
from torchlift.lab.benchmarks.kept import keep, kept, markdown_table
from torchlift.lab.benchmarks.optimisers import Muon
from torchlift.liftings import Conventional
from torchlift.networks import FirmDenoiser
from torchlift.training import BackPropagation, TrainOptions, train

NOISE, SIZE, BATCH, HELD_OUT = 25 / 255, 56, 8, 40
#: Share of the budget of each trial of a rate; steps of the shorter of two runs that are timed, and how often they are.
TRIAL, TIMED, ROUNDS = 0.1, 40, 3


class Residual(nn.Module):
    """y − f(y), f a network of two resolutions that uses its two blocks twice: few parameters, much computation.

    A block adds two convolutions to its input. The fine one comes before and after the coarse one, which works twice on
    half the resolution and so reaches 15 pixels to either side. Each of the four times only a quarter is added: weights
    that are used again and again move the output more than others, and at full size training by `train` broke down
    after some 16,000 steps. Convolutions are computed in bfloat16, which takes 0.6 of the time of single precision on
    processors that have it.
    """

    def __init__(self, features: int = 32) -> None:
        super().__init__()
        self.head, self.tail = nn.Conv2d(1, features, 3, padding=1), nn.Conv2d(features, 1, 3, padding=1)
        self.fine, self.coarse = _block(features), _block(features)
        self.down = nn.Conv2d(features, features, 2, stride=2)
        self.up = nn.ConvTranspose2d(features, features, 2, stride=2)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=y.device.type == "cpu"):
            noise = self.noise(_even(y).contiguous(memory_format=torch.channels_last))
        return y - noise.to(y.dtype)[..., : y.shape[-2], : y.shape[-1]]

    def noise(self, y: Tensor) -> Tensor:
        """f of images with even sides."""
        x = self.head(y)
        x = x + self.fine(x) / 4
        z = self.down(x)
        for _ in range(2):
            z = z + self.coarse(z) / 4
        x = x + self.up(z.relu())
        x = x + self.fine(x) / 4
        return self.tail(x.relu())


def _block(features: int) -> nn.Sequential:
    convolutions = (nn.Conv2d(features, features, 3, padding=1) for _ in range(2))
    return nn.Sequential(*(module for convolution in convolutions for module in (nn.ReLU(), convolution)))


class Firm(nn.Module):
    """The firmly nonexpansive denoiser on every second pixel: four small images, an isometry of the large one."""

    def __init__(self) -> None:
        super().__init__()
        self.denoiser = FirmDenoiser((4, SIZE // 2, SIZE // 2), 6, features=64, size=3, threshold=0.1)

    def forward(self, y: Tensor) -> Tensor:
        small = self.denoiser(nn.functional.pixel_unshuffle(_even(y), 2))
        return nn.functional.pixel_shuffle(small, 2)[..., : y.shape[-2], : y.shape[-1]]


def _even(y: Tensor) -> Tensor:
    height, width = y.shape[-2:]
    return nn.functional.pad(y, (0, width % 2, 0, height % 2), mode="replicate")


#: Optimiser and rates of each baseline, and the network of each row.
BASELINES: dict[str, tuple[Any, tuple[float, ...]]] = {
    "AdamW": (partial(torch.optim.AdamW, fused=True), (1e-3, 3e-3, 6e-3)),
    "Muon": (Muon, (1e-3, 3e-3, 1e-2)),
}
TRAINED = ("ours", "AdamW", "ours, firmly nonexpansive", "Muon")
ROWS = (*TRAINED, "BM3D")


def build(row: str, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return Firm() if "firmly" in row else Residual()


def load(file: Path) -> list[Tensor]:
    """The images of an .npz file: an array `images` (n, height, width), or one array for each."""
    stored = read_npz(f"bench photographs {file}", file)
    arrays = list(stored["images"]) if "images" in stored else list(stored.values())
    return [torch.from_numpy(np.ascontiguousarray(array))[None] for array in arrays]


def bm3d(y: Tensor) -> Tensor:
    """Block matching in three dimensions, told the noise (Dabov, Foi, Katkovnik & Egiazarian, 2007)."""
    try:
        from bm3d import bm3d as denoise  # type: ignore[import-not-found]
    except ImportError:
        invalid_value("bench photographs BM3D", "the package bm3d", "none", "Install it: pip install bm3d.")
    return torch.from_numpy(denoise(y[0, 0].double().numpy(), NOISE)).to(y)[None, None]


def example() -> tuple[Tensor, Tensor]:
    """A grey crop (1, 1, 128, 128) of a bundled photograph, which may be shown anywhere, and the same with noise."""
    clean = load_photographs()[1:2, :, 64:192, 64:192].mean(1, keepdim=True)
    return clean, clean + NOISE * torch.randn(clean.shape, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def qualities(
    denoise: Callable[[Tensor], Tensor], images: Sequence[Tensor], seed: int, known: int = 0
) -> Iterator[float]:
    """PSNR of whole images, noise of a seed; the first `known` are skipped."""
    generator = torch.Generator().manual_seed(seed)
    for number, image in enumerate(images):
        x = image[None].float() / 255
        y = x + NOISE * torch.randn(x.shape, generator=generator)
        if number >= known:
            yield float(psnr(denoise(y).clamp(0, 1), x).mean())


def measure(denoise: Callable[[Tensor], Tensor], images: Sequence[Tensor], seed: int) -> float:
    """Mean PSNR over whole images, noise of a seed."""
    return sum(qualities(denoise, images, seed)) / len(images)


class Bench:
    """Runs of one seed and one budget, kept in a folder: a JSON file and a picture of each; checkpoints elsewhere.

    Arguments:
        images: to train on; the last 40 are held out.
        records: the folder of JSON and PNG files.
        work: the folder of checkpoints.
        seconds: budget of processor time.
    """

    def __init__(self, images: Sequence[Tensor], records: Path, work: Path, seconds: float, seed: int = 0) -> None:
        self.train, self.held_out = images[:-HELD_OUT], images[-HELD_OUT:]
        self.records, self.work, self.seconds, self.seed = records, work, seconds, seed

    def file(self, row: str) -> Path:
        """The record of a row."""
        budget = "" if row == "BM3D" else f"{self.seconds:.0f}-s-"
        return self.records / f"{_slug(row)}-{budget}{self.seed}.json"

    def row(self, row: str, test: Sequence[Tensor] | None) -> dict[str, Any]:
        """One row of the table, continued where it was; the test images are read when it is done."""
        file = self.file(row)
        record = kept(file, "row")
        if record and file.with_suffix(".png").exists():
            return record
        denoise: Callable[[Tensor], Tensor] = bm3d
        if row != "BM3D":
            measured, denoise = self._raced(row, test if not record else None)
            record = record or measured
        record = record or self._bm3d(test)
        keep(file, record)
        clean, noisy = example()
        drawn = {"clean": clean, "noisy": noisy, file.stem: denoise(noisy).detach()}
        for name, image in drawn.items():
            write_file(self.records / f"{name}.png", png((255 * image[0, 0].clamp(0, 1)).round().int()))
        return record

    def _bm3d(self, test: Sequence[Tensor] | None) -> dict[str, Any]:
        """BM3D on the test images; it takes so long that a stopped run goes on at the image where it was."""
        if test is None:
            invalid_value("bench photographs BM3D", "test images", "none", "Give --test FILE.")
        file = self.work / f"bm3d-{self.seed}.json"
        known = kept(file, "row") or {"psnr": [], "seconds": 0.0}
        begin = time.process_time()
        for value in qualities(bm3d, test, 2, len(known["psnr"])):
            known = {"psnr": [*known["psnr"], value], "seconds": known["seconds"] + time.process_time() - begin}
            begin = time.process_time()
            keep(file, known)
        return {
            "row": "BM3D", "budget": None, "seed": self.seed, "parameters": None, "steps": None,
            "seconds_per_image": round(known["seconds"] / len(test), 2),
            "test": round(sum(known["psnr"]) / len(test), 3),
        }  # fmt: skip

    def _raced(self, row: str, test: Sequence[Tensor] | None) -> tuple[dict[str, Any], nn.Module]:
        trials = {}
        if row in BASELINES:
            for rate in BASELINES[row][1]:
                trials[f"{rate:g}"] = self._trained(row, rate, TRIAL * self.seconds)[0]["held_out"]
        rate = float(max(trials, key=trials.get)) if trials else None  # type: ignore[arg-type]
        record, module = self._trained(row, rate, self.seconds)
        record = {"row": row, "budget": self.seconds, "seed": self.seed, "rate": rate, "trials": trials, **record}
        if test is not None:
            record["test"] = round(measure(module, test, 2), 3)
        if isinstance(module, Firm):
            record["largest_norm"] = max(module.denoiser.certificate().norms)
        return record, module

    def _trained(self, row: str, rate: float | None, seconds: float) -> tuple[dict[str, Any], nn.Module]:
        """Train for as many steps as the budget has time for; the number is kept beside the checkpoints."""
        folder = self.work / f"{_slug(row)}-{'bare' if rate is None else f'{rate:g}'}-{seconds:.0f}-s-{self.seed}"
        planned = kept(folder / "plan.json", "row")
        if not planned:
            start, step = self.times((row,))[row]
            planned = {"steps": max(1, int((seconds - start) / step)), "seconds_per_step": step}
            keep(folder / "plan.json", planned)
        begin = time.process_time()
        module, result = self._train(row, rate, planned["steps"], folder / "run")
        record = {
            "parameters": sum(parameter.numel() for parameter in module.parameters()),
            "steps": result.steps,
            "seconds_per_step": round(planned["seconds_per_step"], 5),
            "seconds_of_last_process": round(time.process_time() - begin, 1),
            "message": result.message,
            "held_out": round(measure(module, self.held_out, 1), 3),
            "curve": [
                [entry["step"], round(entry["metrics"]["psnr"], 2)]
                for entry in result.history
                if entry["kind"] == "validation"
            ],
        }
        return record, module

    def times(self, rows: Sequence[str]) -> dict[str, tuple[float, float]]:
        """Processor seconds of the start-up and of a step of rows that are trained, kept beside the checkpoints.

        Runs of two lengths are timed in turn, so that all rows meet the same neighbours on the machine, and the least
        time of each counts; a round before them pays for what torch makes once.
        """
        file = self.work / f"times-{self.seed}.json"
        known = kept(file, "row")
        missing = [row for row in rows if row in TRAINED and row not in known]
        seconds: dict[tuple[str, int], float] = {}
        for turn in range(ROUNDS + 1 if missing else 0):
            for row in missing:
                for steps in (TIMED, 3 * TIMED):
                    begin = time.process_time()
                    self._train(row, BASELINES[row][1][0] if row in BASELINES else None, steps, None)
                    if turn > 0:
                        passed = time.process_time() - begin
                        seconds[row, steps] = min(passed, seconds.get((row, steps), passed))
        for row in missing:
            short, long = seconds[row, TIMED], seconds[row, 3 * TIMED]
            step = max(long - short, 0.1 * long) / (2 * TIMED)
            known[row] = [max(0.0, short - TIMED * step), step]
        keep(file, known)
        return {row: (known[row][0], known[row][1]) for row in rows if row in known}

    def _train(self, row: str, rate: float | None, steps: int, folder: Path | None) -> tuple[nn.Module, Any]:
        module = build(row, self.seed)
        solver, lifting = None, None
        if rate is not None:
            solver, lifting = BackPropagation(partial(BASELINES[row][0], lr=rate), "cosine"), Conventional()
        squares = tiles(self.held_out[::8], SIZE)
        noisy = Denoising(NOISE).degrade(squares, torch.Generator().manual_seed(self.seed)).y
        result = train(
            module,
            Patches(self.train, Denoising(NOISE), SIZE),
            validation=None if folder is None else (noisy, squares),
            solver=solver,
            lifting=lifting,
            weights=None if rate is None else "keep",
            batch_size=BATCH,
            steps=steps,
            seed=self.seed,
            folder=folder,
            resume=folder is not None,
            progress=False,
            options=TrainOptions(evaluate_every=max(250, steps // 20)),
        )
        return module, result


def markdown(records: Sequence[Mapping[str, Any]]) -> str:
    """The table of the documentation."""
    rows = []
    for record in sorted(records, key=lambda record: (record["budget"] or 0, record["row"])):
        name = record["row"] if not record.get("rate") else f"{record['row']}, rate {record['rate']:g}, cosine"
        rows.append([
            name,
            "–" if record["budget"] is None else f"{record['budget']:,.0f} s",
            "–" if record["parameters"] is None else f"{record['parameters']:,}",
            "–" if record["steps"] is None else f"{record['steps']:,}",
            *("–" if record.get(key) is None else f"{record[key]:.2f} dB" for key in ("held_out", "test")),
        ])  # fmt: skip
    return markdown_table(["Method", "Processor time", "Parameters", "Steps", "Held-out images", "BSD68"], rows)


def strip(records: Path) -> str:
    """The pictures in a folder of records side by side, as HTML for a page beside `records`."""
    drawn = sorted(file.stem for file in records.glob("*.png") if file.stem not in ("clean", "noisy"))
    address = f"records/{records.name}"
    figures = [
        f'<figure><img src="{address}/{name}.png" alt="" width="160"><figcaption>{name}</figcaption></figure>'
        for name in ("clean", "noisy", *drawn)
    ]
    return '<div class="strip">' + "".join(figures) + "</div>" if drawn else ""


def _slug(name: str) -> str:
    return "-".join(name.replace(",", "").lower().split())
