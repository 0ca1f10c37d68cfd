"""What a demonstration has found, and the record of it: numbers, claims, curves and pictures."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from torchlift.cli.pictures import compared
from torchlift.data import psnr
from torchlift.report import records
from torchlift.testing.autoencoder import IMAGE
from torchlift.training import Training

Row = Mapping[str, Any]
"""What was made of images: its name, their mean PSNR, and the steps of the training behind it."""


@dataclass(frozen=True)
class Size:
    """How much is done.

    Arguments:
        side: of the photograph, in pixels.
        restoring: steps of deblurring.
        layers: of the denoiser.
        images: for training; a tenth as many are held out, and as many again are reported.
        steps: of each training; None for as many as the seconds allow.
        inverted: images whose codes are inverted.
        sweeps: of the inversion.
    """

    side: int
    restoring: int
    layers: int
    images: int
    steps: int | None
    inverted: int
    sweeps: int


FULL = Size(side=128, restoring=30, layers=7, images=5000, steps=None, inverted=100, sweeps=40)
TINY = Size(side=24, restoring=2, layers=1, images=80, steps=2, inverted=8, sweeps=2)
THRESHOLD, NOISE, BATCH = 0.2, 0.1, 50
#: Images of a row.
SHOWN = 8

TORCH, FIT = "torch's start", "from the fit"
ALONE = "the fit alone"
#: Decibels by which two methods from one start may differ and still count as equal.
EQUAL = 0.3
#: Steps below which a training says nothing.
ENOUGH = 20
#: Times as long as on a machine of its own that a training may take where others are at work.
PATIENCE = 20.0


@dataclass(frozen=True, eq=False)
class Part:
    """Images that no training saw, and what was made of them.

    Arguments:
        truth: the clean images.
        images: what they were degraded to, and what was restored from that, by name.
        trainings: of the networks behind images of the same names.
    """

    truth: Tensor
    images: dict[str, Tensor]
    trainings: dict[str, Training] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        quality = {name: float(psnr(images, self.truth).mean()) for name, images in self.images.items()}
        steps = {name: training.steps for name, training in self.trainings.items()}
        return [{"name": name, "psnr": value, "steps": steps.get(name)} for name, value in quality.items()]


@dataclass
class Results:
    """What there is so far."""

    parts: dict[str, Part] = field(default_factory=dict)
    begun: float = field(default_factory=time.perf_counter)
    published: bool = False
    spent: float = field(default_factory=time.process_time)

    @property
    def busy(self) -> float:
        """Seconds that a second of work has taken so far, at least 1."""
        return min(max(self.seconds() / max(time.process_time() - self.spent, 1e-3), 1.0), PATIENCE)

    def rows(self) -> dict[str, list[Row]]:
        return {name: part.rows() for name, part in self.parts.items()}

    def seconds(self) -> float:
        return time.perf_counter() - self.begun


def claims(rows: Mapping[str, Sequence[Row]], decidable: bool) -> list[records.Claim]:
    """What the demonstration shows, or not, as far as it has come."""
    db = {part: {row["name"]: row["psnr"] for row in lines} for part, lines in rows.items()}
    steps = {part: min((row.get("steps") or ENOUGH for row in lines), default=ENOUGH) for part, lines in rows.items()}
    trained, coded = (decidable and steps.get(part, ENOUGH) >= ENOUGH for part in ("denoising", "inversion"))
    photograph, denoising, inversion = (db.get(part, {}) for part in ("photograph", "denoising", "inversion"))
    statements: list[tuple[str, str, bool | None]] = []
    if "certified denoiser" in photograph:
        noisy, free, firm = (photograph[name] for name in ("noisy", "denoiser", "certified denoiser"))
        text = "Both bundled denoisers improve a photograph that they never saw; the certified one less."
        statements.append((text, f"{free:.2f} and {firm:.2f} dB, noisy {noisy:.2f} dB", free > firm > noisy))
    if f"Adam, {TORCH}" in denoising and f"lifting, {TORCH}" in denoising:
        noisy, adam, lifting = (denoising[name] for name in ("noisy images", f"Adam, {TORCH}", f"lifting, {TORCH}"))
        text = "From torch's start, whose layers are dead, neither method makes the images better than they came."
        measured = f"Adam {adam:.2f} dB, lifting {lifting:.2f} dB, noisy images {noisy:.2f} dB"
        statements.append((text, measured, max(adam, lifting) < noisy if trained else None))
    if ALONE in denoising:
        noisy, alone = denoising["noisy images"], denoising[ALONE]
        text = "Regressions layer by layer, which train may choose by itself, make it a denoiser without a step."
        statements.append((text, f"the fit {alone:.2f} dB, noisy images {noisy:.2f} dB", alone > noisy))
    if f"lifting, {FIT}" in denoising:
        adam, lifting = (denoising[f"{method}, {FIT}"] for method in ("Adam", "lifting"))
        text = f"From the fit both methods end within {EQUAL:g} dB of each other: it is the start that decides."
        measured = f"Adam {adam:.2f} dB, lifting {lifting:.2f} dB"
        statements.append((text, measured, abs(adam - lifting) <= EQUAL if trained else None))
    if inversion:
        decoder, inverted = inversion["decoder"], inversion["inverted encoder"]
        text = "Inverting the encoder, from the decoder's output on, gives better images than the decoder."
        measured = f"inversion {inverted:.2f} dB, decoder {decoder:.2f} dB"
        statements.append((text, measured, inverted > decoder if coded else None))
    return [
        records.Claim.of(statement, measured, held if decidable else None, "torchlift")
        for statement, measured, held in statements
    ]


def record_of(size: Size, results: Results, *, seconds: float, seed: int, tiny: bool) -> records.Record:
    """What a demonstration with these settings has found so far."""
    rows = results.rows()
    summary = (
        f"A photograph is restored by bundled denoisers, a network of {size.layers} layers of soft-thresholding learns "
        "to denoise digits, and the encoder of an autoencoder is inverted at codes with noise of standard deviation "
        f"{NOISE:g}. Each training had "
        + (f"{seconds:g} seconds of work." if size.steps is None else f"{size.steps} steps.")
        + ("" if "inversion" in results.parts else " Not all of it is done.")
    )
    flags = " --tiny" if tiny else f" --seconds {seconds:g}"
    configuration = {
        "photograph": f"{size.side} x {size.side} pixels, noise 25/255; blur of sigma 1.6 and noise 0.01",
        "sharpening": f"plug-and-play, strength 0.02, {size.restoring} steps at most from the blurred photograph",
        "denoiser": f"MLP, {size.layers} hidden layers of 784 units, SoftThreshold({THRESHOLD})",
        "noise of the images": 0.15,
        "training images": size.images,
        "batch": BATCH,
        "Adam": "back-propagation, learning rate 5e-4, cosine annealing",
        "lifting": "defaults of train, but for weights='keep'",
        "fit": "initialise_weights(network, data, 'layer-wise'), the same for both methods",
        "autoencoder": "Adam, learning rate 2e-3, cosine annealing",
        "inversion": f"total variation and pixels in [0, 1], weight 0.01, anchor {10 * NOISE**2:g}",
        "seconds": seconds,
        "seed": seed,
    }
    return records.Record(
        "demo", "Demonstration", summary, f"torchlift demo{flags} --seed {seed}", configuration,
        records.environment(), results.seconds(), claims(rows, decidable=not tiny), _figures(results),
    )  # fmt: skip


def _figures(results: Results) -> list[records.Figure]:
    figures: list[records.Figure] = []
    parts = results.parts
    if (part := parts.get("photograph")) is not None:
        figures.append(_pictures("photograph", "A photograph that no denoiser saw", part))
        figures.append(table("restored", "Restored photograph", part.rows()))
    if (part := parts.get("denoising")) is not None and part.trainings:
        figures += [
            table("denoising", "Denoising of digits that no training saw", part.rows()),
            _curves(part.trainings),
            _pictures("denoised", "Denoised digits", part),
            records.network_blocks(next(iter(part.trainings.values())).network),
        ]
    if (part := parts.get("inversion")) is not None:
        figures.append(table("inversion", "Inversion of an encoder at noisy codes", part.rows()))
        figures.append(_pictures("inverted", "Images from noisy codes", part))
    return figures


def table(name: str, title: str, rows: Sequence[Row]) -> records.Table:
    columns = {"": ("name", ""), "PSNR (dB)": ("psnr", ".2f"), "steps": ("steps", "")}
    return records.Table.of_records(name, title, columns, rows)


def _curves(trainings: Mapping[str, Training]) -> records.Curves:
    series = []
    for name, training in trainings.items():
        rows = [row for row in training.history if row["kind"] == "validation"]
        kept = [row for row in rows if math.isfinite(row["metrics"]["psnr"])]
        x, y = [row["seconds"] for row in kept], [row["metrics"]["psnr"] for row in kept]
        series.append(records.Series(name, x, y, dashed=name.startswith("Adam"), group=name.partition(", ")[2]))
    return records.Curves("training", "PSNR of held-out images", "seconds", "PSNR (dB)", series)


def _pictures(name: str, title: str, part: Part) -> records.Pictures:
    """The first images; digits may come as vectors."""
    rows = {label: batch[:SHOWN] for label, batch in {"clean": part.truth, **part.images}.items()}
    colours = part.truth.ndim == 4 and part.truth.shape[1] == 3
    return compared(name, title, rows, "clean", tuple(part.truth.shape[1:]) if colours else IMAGE[1:])
