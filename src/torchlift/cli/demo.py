"""`torchlift demo`: what lifting is good for, on the bundled digits, in about two minutes."""

from __future__ import annotations

import copy
import math
import sys
import time
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as Lines
from torch import Tensor, nn

from torchlift import report
from torchlift.cli.command import Command, Record
from torchlift.core.checks import check_positive, check_size
from torchlift.core.solution import Result
from torchlift.data import Denoising, load_digits, psnr
from torchlift.functions.priors import Box, TotalVariation
from torchlift.inversion import Inversion, invert
from torchlift.liftings import Conventional
from torchlift.networks import MLP, Chain, lift
from torchlift.prox import SoftThreshold
from torchlift.report import records
from torchlift.testing.autoencoder import IMAGE, build
from torchlift.training import BackPropagation, Training, initialise_weights, train

PAGE = "report.html"
SHOWN = 8
NOISE = 0.1
BATCH = 50


@dataclass(frozen=True)
class Size:
    """How much is done.

    Arguments:
        layers: of the denoiser.
        images: for training; a tenth as many are held out, and as many again are reported.
        steps: of each training; None for as many as the seconds allow.
        inverted: images whose codes are inverted.
        sweeps: of the inversion.
    """

    layers: int
    images: int
    steps: int | None
    inverted: int
    sweeps: int


FULL = Size(layers=7, images=5000, steps=None, inverted=100, sweeps=40)
TINY = Size(layers=1, images=80, steps=2, inverted=8, sweeps=2)
THRESHOLD = 0.2

TORCH, FIT = "torch's start", "from the fit"
ALONE = "the fit alone"
#: Decibels by which two methods from one start may differ and still count as equal.
EQUAL = 0.3


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Train a denoiser by lifting and by back-propagation, invert an encoder, and show both on a page."""

    name: ClassVar[str] = "demo"
    replaces: ClassVar[bool] = True

    seconds: float = 15.0
    """Time for each of five trainings."""
    seed: int = 0
    """Of weights, noise and the order of the images."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/demo")
    """Where the record and the page go; those of an earlier demonstration are replaced."""
    open: bool = False
    """Open the page in a browser."""
    tiny: bool = False
    """Two steps on a few images, to see that everything runs."""

    def check(self) -> None:
        check_positive("demo: --seconds", self.seconds)
        check_size("demo: --seed", self.seed, minimum=0)

    def collect(self) -> Record:
        begin = time.perf_counter()
        size = TINY if self.tiny else FULL
        denoised, encoded = self._denoise(size), self._invert(size)
        seconds = time.perf_counter() - begin
        made = _record(self, size, denoised, encoded, seconds)
        records.save_record(self.out, made)
        page = self.out / PAGE
        page.write_text(report.html([made]), encoding="utf-8")
        if self.open:
            webbrowser.open(page.resolve().as_uri())
        return {
            "seed": self.seed,
            "layers": size.layers,
            "threshold": THRESHOLD,
            "denoising": denoised.rows(),
            "inversion": encoded.rows(),
            "seconds": seconds,
            "report": str(page),
        }

    def show(self, record: Record, console: Console) -> None:
        threshold, layers = record["threshold"], record["layers"]
        console.print(
            f"\nDenoising: {layers} layers of soft-thresholding, which turns what is below {threshold} to zero"
        )
        console.print(_lines(record["denoising"]))
        console.print("Inversion: from noisy codes of an encoder back to its images")
        console.print(_lines(record["inversion"]))
        console.print(
            "PSNR in dB, mean over images that no training saw; more is better. The fit is a ridge regression"
        )
        console.print("for each layer, the same for both methods; from torch's start nothing was done before training.")
        console.print(f"Curves and pictures: {record['report']}", soft_wrap=True)

    def _denoise(self, size: Size) -> Denoised:
        data, held_out, unseen = (
            _noisy(split, count, 10 * self.seed + number) for number, (split, count) in enumerate(_splits(size).items())
        )
        trainings: dict[str, Training] = {}
        restored: dict[str, Tensor] = {}
        fitted: MLP | None = None
        for number, (method, start, options) in enumerate(_methods(), start=1):
            name = f"{method}, {start}"
            self._tell(f"{number}/5  denoiser, {name}")
            generator = torch.Generator().manual_seed(self.seed)
            network = MLP([784] * (size.layers + 2), SoftThreshold(THRESHOLD), generator=generator)
            if start == FIT:
                if fitted is None:
                    initialise_weights(network, data, "layer-wise", generator=generator)
                    fitted = copy.deepcopy(network)
                    with torch.no_grad():
                        restored[ALONE] = fitted(unseen[0])
                network.load_state_dict(fitted.state_dict())
            trainings[name] = self._train(network, data, held_out, size, batch_size=BATCH, weights="keep", **options)
            with torch.no_grad():
                restored[name] = network(unseen[0])
        return Denoised(*unseen, trainings, restored)

    def _invert(self, size: Size) -> Encoded:
        """An autoencoder trained in the ordinary way; its encoder is inverted at noisy codes."""
        self._tell("5/5  autoencoder, back-propagation")
        splits = _splits(size)
        images, held_out = (load_digits(split).images[: splits[split]] for split in ("train", "validation"))
        encoder, decoder = build(self.seed)
        whole = lift(nn.Sequential(*encoder, *decoder), IMAGE)
        options = {"lifting": Conventional(), "solver": _adam(2e-3), "batch_size": BATCH}
        training = self._train(whole, (images, images), (held_out, held_out), size, **options)
        modules = list(whole.to_sequential())
        parts = nn.Sequential(*modules[: len(encoder)]), nn.Sequential(*modules[len(encoder) :])
        x = load_digits("test").images[: size.inverted]
        self._tell(f"     inversion of {len(x)} codes")
        with torch.no_grad():
            codes = parts[0](x)
            noise = torch.randn(codes.shape, generator=torch.Generator().manual_seed(self.seed))
            codes = codes + NOISE * noise
            guess = parts[1](codes).clamp(0, 1)
        found = invert(
            lift(parts[0], IMAGE), codes, TotalVariation() + Box(0.0, 1.0), 0.01,
            start=guess, anchor=10 * NOISE**2, max_steps=size.sweeps,
        )  # fmt: skip
        if found.counts.get("stopped"):
            raise KeyboardInterrupt
        return Encoded(x, guess, found, training)

    def _train(self, network: Chain, data: Any, held_out: Any, size: Size, **options: Any) -> Training:
        budget = {"time_limit": self.seconds} if size.steps is None else {"steps": size.steps}
        result = train(
            network, data, validation=held_out, metrics=("psnr",), seed=self.seed, progress=not self.json,
            **budget, **options,
        )  # fmt: skip
        if result.result is Result.INTERRUPTED:
            raise KeyboardInterrupt
        return result.raise_if_failed()

    def _tell(self, text: str) -> None:
        if not self.json:
            print(text, file=sys.stderr, flush=True)


def _splits(size: Size) -> dict[str, int]:
    """For training, for choosing the best parameters, and for the numbers that are shown."""
    return {"train": size.images, "validation": size.images // 10, "test": size.images // 10}


def _noisy(split: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = load_digits(split).images[:count]
    return Denoising().degrade(x, torch.Generator().manual_seed(seed)).y.flatten(1), x.flatten(1)


def _adam(rate: float) -> BackPropagation:
    return BackPropagation(partial(torch.optim.Adam, lr=rate), "cosine")


def _methods() -> list[tuple[str, str, dict[str, Any]]]:
    """(name, start of the weights, options of `train`): both methods from both starts."""
    adam = {"lifting": Conventional(), "solver": _adam(5e-4)}
    return [(name, start, options) for start in (TORCH, FIT) for name, options in (("Adam", adam), ("lifting", {}))]


@dataclass(frozen=True, eq=False)
class Denoised:
    """Noisy and clean images that no training saw, and what each network made of them."""

    y: Tensor
    x: Tensor
    trainings: Mapping[str, Training]
    restored: Mapping[str, Tensor]

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [{"name": "noisy images", "psnr": _psnr(self.y, self.x), "steps": None}]
        for name, images in self.restored.items():
            steps = self.trainings[name].steps if name in self.trainings else None
            rows.append({"name": name, "psnr": _psnr(images, self.x), "steps": steps})
        return rows


@dataclass(frozen=True, eq=False)
class Encoded:
    """Images, what the decoder makes of their noisy codes, and the inversion of the encoder."""

    x: Tensor
    guess: Tensor
    inversion: Inversion
    training: Training

    def rows(self) -> list[dict[str, Any]]:
        steps = self.training.steps
        return [
            {"name": "decoder", "psnr": _psnr(self.guess, self.x), "steps": steps},
            {"name": "inverted encoder", "psnr": _psnr(self.inversion.x, self.x), "steps": None},
        ]


def _psnr(images: Tensor, x: Tensor) -> float:
    return float(psnr(images.reshape(len(x), *IMAGE), x.reshape(len(x), *IMAGE)).mean())


def _lines(rows: Sequence[Mapping[str, Any]]) -> Lines:
    table = Lines("", box=SIMPLE, show_edge=False)
    for heading in ("PSNR", "steps"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row["name"], f"{row['psnr']:.2f}", "" if row["steps"] is None else f"{row['steps']:,}")
    return table


# -- the record -------------------------------------------------------------------------------------------------------


def claims(denoising: Mapping[str, float], inversion: Mapping[str, float], decidable: bool) -> list[records.Claim]:
    """What the demonstration shows, or not: from PSNR by name."""
    noisy = denoising["noisy images"]
    plain, fitted = ([denoising[f"{method}, {start}"] for method in ("Adam", "lifting")] for start in (TORCH, FIT))
    alone = denoising[ALONE]
    decoder, inverted = inversion["decoder"], inversion["inverted encoder"]
    statements = [
        (
            "From torch's start, whose layers are dead, neither method makes the images better than they came.",
            f"Adam {plain[0]:.2f} dB, lifting {plain[1]:.2f} dB, noisy images {noisy:.2f} dB",
            max(plain) < noisy,
        ),
        (
            "Regressions layer by layer, which is what train does by default here, make it a denoiser without a step.",
            f"the fit {alone:.2f} dB, noisy images {noisy:.2f} dB",
            alone > noisy,
        ),
        (
            f"From the fit both methods end within {EQUAL:g} dB of each other: it is the start that decides.",
            f"Adam {fitted[0]:.2f} dB, lifting {fitted[1]:.2f} dB",
            abs(fitted[0] - fitted[1]) <= EQUAL,
        ),
        (
            "Inverting the encoder, from the decoder's output on, gives better images than the decoder.",
            f"inversion {inverted:.2f} dB, decoder {decoder:.2f} dB",
            inverted > decoder,
        ),
    ]
    return [
        records.Claim.of(statement, measured, held if decidable else None, "torchlift")
        for statement, measured, held in statements
    ]


def _record(demo: Demo, size: Size, denoised: Denoised, encoded: Encoded, seconds: float) -> records.Record:
    found = [{row["name"]: row["psnr"] for row in part.rows()} for part in (denoised, encoded)]
    summary = (
        f"A network of {size.layers} layers of soft-thresholding learns to denoise digits, and the encoder of an "
        f"autoencoder is inverted at codes with noise of standard deviation {NOISE:g}. Each training had "
        + (f"{demo.seconds:g} seconds." if size.steps is None else f"{size.steps} steps.")
    )
    flags = " --tiny" if demo.tiny else f" --seconds {demo.seconds:g}"
    configuration = {
        "denoiser": f"MLP, {size.layers} hidden layers of 784 units, SoftThreshold({THRESHOLD})",
        "noise of the images": 0.15,
        "training images": size.images,
        "batch": BATCH,
        "Adam": "back-propagation, learning rate 5e-4, cosine annealing",
        "lifting": "defaults of train, but for weights='keep'",
        "fit": "initialise_weights(network, data, 'layer-wise'), the same for both methods",
        "autoencoder": "Adam, learning rate 2e-3, cosine annealing",
        "inversion": f"total variation and pixels in [0, 1], weight 0.01, anchor {10 * NOISE**2:g}",
        "seconds": demo.seconds,
        "seed": demo.seed,
    }
    network = next(iter(denoised.trainings.values())).network
    return records.Record(
        "demo", "Demonstration", summary, f"torchlift demo{flags} --seed {demo.seed}", configuration,
        records.environment(), seconds, claims(*found, decidable=not demo.tiny),
        [
            _table("denoising", "Denoising of digits that no training saw", denoised.rows()),
            _curves(denoised.trainings),
            _pictures("denoised", "Denoised digits", {"clean": denoised.x, "noisy": denoised.y, **denoised.restored}),
            _table("inversion", "Inversion of an encoder at noisy codes", encoded.rows()),
            _pictures(
                "inverted", "Images from noisy codes",
                {"clean": encoded.x, "decoder": encoded.guess, "inverted encoder": encoded.inversion.x},
            ),
            records.network_blocks(network),
        ],
    )  # fmt: skip


def _table(name: str, title: str, rows: Sequence[Mapping[str, Any]]) -> records.Table:
    cells = [[row["name"], row["psnr"], row["steps"]] for row in rows]
    return records.Table(name, title, ["", "PSNR (dB)", "steps"], cells, ["", ".2f", ""])


def _curves(trainings: Mapping[str, Training]) -> records.Curves:
    series = []
    for name, training in trainings.items():
        rows = [row for row in training.history if row["kind"] == "validation"]
        kept = [row for row in rows if math.isfinite(row["metrics"]["psnr"])]
        x, y = [row["seconds"] for row in kept], [row["metrics"]["psnr"] for row in kept]
        series.append(records.Series(name, x, y, dashed=name.startswith("Adam"), group=name.partition(", ")[2]))
    return records.Curves("training", "PSNR of held-out images", "seconds", "PSNR (dB)", series)


def _pictures(name: str, title: str, rows: Mapping[str, Tensor]) -> records.Pictures:
    images = {label: each[:SHOWN].reshape(-1, *IMAGE) for label, each in rows.items()}
    captions = {
        label: [f"{value:.1f} dB" for value in psnr(each, images["clean"]).tolist()]
        for label, each in images.items()
        if label != "clean"
    }
    shown = {label: each[:, 0] for label, each in images.items()}
    return records.Pictures(name, title, shown, captions, truth="clean")
