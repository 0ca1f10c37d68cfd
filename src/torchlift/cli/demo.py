"""`torchlift demo`: a photograph, dead layers and an encoder, on bundled data, in about two minutes."""

from __future__ import annotations

import copy
import math
import sys
import time
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import tyro
from rich.console import Console
from torch import Tensor, nn

from torchlift import report
from torchlift.cli.command import Command, Record
from torchlift.cli.pictures import compared
from torchlift.cli.tables import shown
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import DataError, message
from torchlift.core.files import write_file
from torchlift.core.solution import Result
from torchlift.data import Deblurring, Denoising, load_digits, load_photographs, psnr
from torchlift.functions.priors import Box, PlugAndPlay, TotalVariation
from torchlift.inversion import Inversion, invert
from torchlift.io import load_denoiser
from torchlift.liftings import Conventional
from torchlift.networks import MLP, Chain, lift
from torchlift.prox import SoftThreshold
from torchlift.report import records
from torchlift.testing.autoencoder import IMAGE, build
from torchlift.training import BackPropagation, Training, initialise_weights, train

Row = Mapping[str, Any]
"""What was made of images: its name, their mean PSNR, and the steps of the training behind it."""

PAGE = "report.html"
#: Seconds after which the page is read again while the work goes on.
RELOAD = 2
SHOWN = 8
NOISE = 0.1
BATCH = 50


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
THRESHOLD = 0.2

TORCH, FIT = "torch's start", "from the fit"
ALONE = "the fit alone"
#: Decibels by which two methods from one start may differ and still count as equal.
EQUAL = 0.3
#: Steps below which a training says nothing.
ENOUGH = 20
#: Times as long as on a machine of its own that a training may take where others are at work.
PATIENCE = 20.0


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Restore a photograph, train a denoiser by lifting and by back-propagation, invert an encoder: on a live page."""

    name: ClassVar[str] = "demo"
    replaces: ClassVar[bool] = True

    seconds: float = 12.0
    """Time for each of five trainings; longer where the processor is busy with other work."""
    seed: int = 0
    """Seed of weights, noise and the order of the images."""
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/demo")
    """Where the record and the page go; those of an earlier demonstration are replaced."""
    open: bool = False
    """Open the page in a browser."""
    tiny: bool = False
    """Two steps on a few images, to see that everything runs."""

    def check(self) -> None:
        check_positive("demo: --seconds", self.seconds)
        check_size("demo: --seed", self.seed, minimum=0)
        for name in ("history.jsonl", "invert.json"):
            if (self.out / name).exists():
                hint = "Choose another folder."
                raise DataError(message(f"--out {self.out}", "no run of another command", name, hint))

    def collect(self) -> Record:
        # Threads that wait for each other on a busy machine made 24 steps where one thread makes hundreds.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._collect()
        finally:
            torch.set_num_threads(threads)

    def _collect(self) -> Record:
        size = TINY if self.tiny else FULL
        results = Results()
        try:
            for part in (self._photograph, self._denoise, self._invert):
                for _ in part(size, results):  # after every piece of it, the page shows what there is
                    self._publish(size, results, RELOAD)
        except KeyboardInterrupt:
            if results.rows():
                self._tell(f"Stopped. What was done so far: {self._publish(size, results, None)}")
            raise
        page = self._publish(size, results, None)
        if self.open and self.json:
            webbrowser.open(page.resolve().as_uri())
        return {
            "seed": self.seed,
            "layers": size.layers,
            "threshold": THRESHOLD,
            **results.rows(),
            "seconds": results.seconds(),
            "report": str(page),
        }

    def _publish(self, size: Size, results: Results, reload: int | None) -> Path:
        """Save the record and the page of what there is."""
        first = not (results.published or self.json)
        results.published = True
        made = _record(self, size, results)
        records.save_record(self.out, made)
        page = self.out / PAGE
        write_file(page, report.html([made], reload=reload).encode())
        if first:
            self._tell(f"     look at it while it runs: {page.resolve().as_uri()}")
            if self.open:
                webbrowser.open(page.resolve().as_uri())
        return page

    def show(self, record: Record, console: Console) -> None:
        threshold, layers = record["threshold"], record["layers"]
        console.print("\nA photograph that no denoiser saw: with noise of 25/255, and out of focus")
        console.print(shown(_table("", "", record["photograph"])))
        depth = "1 layer" if layers == 1 else f"{layers} layers"
        console.print(f"\nDenoising: {depth} of soft-thresholding, which turns what is below {threshold} to zero")
        console.print(shown(_table("", "", record["denoising"])))
        console.print("\nInversion: from noisy codes of an encoder back to its images")
        console.print(shown(_table("", "", record["inversion"])))
        console.print(
            "\nPSNR in dB, mean over images that no training saw; more is better. The fit is a ridge regression for "
            "each layer, the same for both methods; from torch's start nothing was done before training."
        )
        console.print(f"Curves and pictures: {record['report']}", soft_wrap=True)

    def _photograph(self, size: Size, results: Results) -> Iterator[None]:
        """The bundled denoisers on a photograph with noise, and as priors for one that is out of focus."""
        self._tell("1/6  photograph, bundled denoisers")
        shape = (3, size.side, size.side)
        x = load_photographs()[1:2, :, 40 : 40 + size.side, 32 : 32 + size.side]
        generator = torch.Generator().manual_seed(self.seed)
        denoisers = {"denoiser": load_denoiser(), "certified denoiser": load_denoiser(certified=True)}
        noisy = Denoising(25 / 255).degrade(x, generator).y
        photograph = results.parts["photograph"] = Part(x, {"noisy": noisy})
        for name, denoiser in denoisers.items():
            with torch.no_grad():
                photograph.images[name] = denoiser(noisy)
        yield
        task = Deblurring(size=9, sigma=1.6, noise=0.01)
        blurred = photograph.images["out of focus"] = task.degrade(x, generator).y
        for name, denoiser in denoisers.items():
            sharpened = _invert(
                task.operator(shape), blurred, PlugAndPlay(denoiser), 0.02,
                start=blurred, max_steps=size.restoring, progress=False,
            )  # fmt: skip
            photograph.images[f"sharpened, {name} as prior"] = sharpened.x
        yield

    def _denoise(self, size: Size, results: Results) -> Iterator[None]:
        data, held_out, unseen = (
            _noisy(split, count, 10 * self.seed + number) for number, (split, count) in enumerate(_splits(size).items())
        )
        noisy, clean = unseen
        denoised = results.parts["denoising"] = Part(clean, {"noisy images": noisy})
        fitted: MLP | None = None
        adam = {"lifting": Conventional(), "solver": _adam(5e-4)}
        methods = [(name, start, how) for start in (TORCH, FIT) for name, how in (("Adam", adam), ("lifting", {}))]
        for number, (method, start, options) in enumerate(methods, start=2):
            name = f"{method}, {start}"
            self._tell(f"{number}/6  denoiser, {name}")
            generator = torch.Generator().manual_seed(self.seed)
            network = MLP([784] * (size.layers + 2), SoftThreshold(THRESHOLD), generator=generator)
            if start == FIT:
                if fitted is None:
                    initialise_weights(network, data, "layer-wise", generator=generator)
                    fitted = copy.deepcopy(network)
                    with torch.no_grad():
                        denoised.images[ALONE] = fitted(noisy)
                network.load_state_dict(fitted.state_dict())
            training = self._train(network, data, held_out, size, results, batch_size=BATCH, weights="keep", **options)
            denoised.trainings[name] = training
            with torch.no_grad():
                denoised.images[name] = network(noisy)
            yield

    def _invert(self, size: Size, results: Results) -> Iterator[None]:
        """An autoencoder trained in the ordinary way; its encoder is inverted at noisy codes."""
        self._tell("6/6  autoencoder, back-propagation")
        splits = _splits(size)
        digits, held_out = (load_digits(split).images[: splits[split]] for split in ("train", "validation"))
        encoder, decoder = build(self.seed)
        whole = lift(nn.Sequential(*encoder, *decoder), IMAGE)
        options = {"lifting": Conventional(), "solver": _adam(2e-3), "batch_size": BATCH}
        training = self._train(whole, (digits, digits), (held_out, held_out), size, results, **options)
        modules = list(whole.to_sequential())
        parts = nn.Sequential(*modules[: len(encoder)]), nn.Sequential(*modules[len(encoder) :])
        x = load_digits("test").images[: size.inverted]
        self._tell(f"     inversion of {len(x)} codes")
        with torch.no_grad():
            codes = parts[0](x)
            noise = torch.randn(codes.shape, generator=torch.Generator().manual_seed(self.seed))
            codes = codes + NOISE * noise
            guess = parts[1](codes).clamp(0, 1)
        inversion = _invert(
            lift(parts[0], IMAGE), codes, TotalVariation() + Box(0.0, 1.0), 0.01,
            start=guess, anchor=10 * NOISE**2, max_steps=size.sweeps,
        )  # fmt: skip
        images = {"decoder": guess, "inverted encoder": inversion.x}
        results.parts["inversion"] = Part(x, images, {"decoder": training})
        yield

    def _train(
        self, network: Chain, data: Any, held_out: Any, size: Size, results: Results, **options: Any
    ) -> Training:
        budget = {"time_limit": self.seconds * results.busy} if size.steps is None else {"steps": size.steps}
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
    """Images for training, for choosing the best parameters, and for the numbers that are shown."""
    return {"train": size.images, "validation": size.images // 10, "test": size.images // 10}


def _noisy(split: str, count: int, seed: int) -> tuple[Tensor, Tensor]:
    x = load_digits(split).images[:count]
    return Denoising().degrade(x, torch.Generator().manual_seed(seed)).y.flatten(1), x.flatten(1)


def _invert(*arguments: Any, **options: Any) -> Inversion:
    """`invert`, which returns what it has after Ctrl-C; here that ends the demonstration."""
    inversion = invert(*arguments, **options)
    if inversion.counts.get("stopped"):
        raise KeyboardInterrupt
    return inversion


def _adam(rate: float) -> BackPropagation:
    return BackPropagation(partial(torch.optim.Adam, lr=rate), "cosine")


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


# -- the record -------------------------------------------------------------------------------------------------------


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


def _record(demo: Demo, size: Size, results: Results) -> records.Record:
    rows = results.rows()
    summary = (
        f"A photograph is restored by bundled denoisers, a network of {size.layers} layers of soft-thresholding learns "
        "to denoise digits, and the encoder of an autoencoder is inverted at codes with noise of standard deviation "
        f"{NOISE:g}. Each training had "
        + (f"{demo.seconds:g} seconds of work." if size.steps is None else f"{size.steps} steps.")
        + ("" if "inversion" in results.parts else " Not all of it is done.")
    )
    flags = " --tiny" if demo.tiny else f" --seconds {demo.seconds:g}"
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
        "seconds": demo.seconds,
        "seed": demo.seed,
    }
    return records.Record(
        "demo", "Demonstration", summary, f"torchlift demo{flags} --seed {demo.seed}", configuration,
        records.environment(), results.seconds(), claims(rows, decidable=not demo.tiny), _figures(results),
    )  # fmt: skip


def _figures(results: Results) -> list[records.Figure]:
    figures: list[records.Figure] = []
    parts = results.parts
    if (part := parts.get("photograph")) is not None:
        figures.append(_pictures("photograph", "A photograph that no denoiser saw", part))
        figures.append(_table("restored", "Restored photograph", part.rows()))
    if (part := parts.get("denoising")) is not None and part.trainings:
        figures += [
            _table("denoising", "Denoising of digits that no training saw", part.rows()),
            _curves(part.trainings),
            _pictures("denoised", "Denoised digits", part),
            records.network_blocks(next(iter(part.trainings.values())).network),
        ]
    if (part := parts.get("inversion")) is not None:
        figures.append(_table("inversion", "Inversion of an encoder at noisy codes", part.rows()))
        figures.append(_pictures("inverted", "Images from noisy codes", part))
    return figures


def _table(name: str, title: str, rows: Sequence[Row]) -> records.Table:
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


def _pictures(name: str, title: str, part: Part) -> records.Pictures:
    """The first images; digits may come as vectors."""
    rows = {label: batch[:SHOWN] for label, batch in {"clean": part.truth, **part.images}.items()}
    colours = part.truth.ndim == 4 and part.truth.shape[1] == 3
    return compared(name, title, rows, "clean", tuple(part.truth.shape[1:]) if colours else IMAGE[1:])
