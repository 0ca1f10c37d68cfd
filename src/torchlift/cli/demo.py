"""`torchlift demo`: a photograph, dead layers and an encoder, on bundled data, in about two minutes."""

from __future__ import annotations

import copy
import sys
import webbrowser
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import tyro
from rich.console import Console
from torch import Tensor, nn

from torchlift import report
from torchlift.cli.command import Command, Record
from torchlift.cli.demo_record import (
    ALONE,
    BATCH,
    FIT,
    FULL,
    NOISE,
    THRESHOLD,
    TINY,
    TORCH,
    Part,
    Results,
    Size,
    record_of,
    table,
)
from torchlift.cli.tables import shown
from torchlift.core.checks import check_positive, check_size
from torchlift.core.errors import DataError, message
from torchlift.core.files import write_file
from torchlift.core.solution import Result
from torchlift.data import Deblurring, Denoising, load_digits, load_photographs
from torchlift.functions.priors import Box, PlugAndPlay, TotalVariation
from torchlift.inversion import Inversion, invert
from torchlift.io import load_denoiser
from torchlift.liftings import Conventional
from torchlift.networks import MLP, Chain, lift
from torchlift.prox import SoftThreshold
from torchlift.report import records
from torchlift.testing.autoencoder import IMAGE, build
from torchlift.training import BackPropagation, Training, initialise_weights, train

PAGE = "report.html"
#: Seconds after which the page is read again while the work goes on.
RELOAD = 2


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
        made = record_of(size, results, seconds=self.seconds, seed=self.seed, tiny=self.tiny)
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
        console.print(shown(table("", "", record["photograph"])))
        depth = "1 layer" if layers == 1 else f"{layers} layers"
        console.print(f"\nDenoising: {depth} of soft-thresholding, which turns what is below {threshold} to zero")
        console.print(shown(table("", "", record["denoising"])))
        console.print("\nInversion: from noisy codes of an encoder back to its images")
        console.print(shown(table("", "", record["inversion"])))
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
            lift(parts[0], IMAGE), codes, TotalVariation() + Box(0.0, 1.0),
            noise_level=NOISE, start=parts[1], max_steps=size.sweeps,
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
