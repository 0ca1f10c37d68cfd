"""`torchlift bench inversion`: inverting trained encoders, against their decoders and against back-propagation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
import tyro
from rich.console import Console
from torch import Tensor

from torchlift.cli.command import Command, Record
from torchlift.cli.tables import columns
from torchlift.core.checks import check_choice, check_positive, check_size
from torchlift.lab.benchmarks import inversion
from torchlift.lab.benchmarks.autoencoder import LEVELS, Autoencoder, Recipe, trained
from torchlift.report.records import Curves, Series

FAMILIES = ("autoencoder", "coverage", "rules", "networks", "scale")


@dataclass(frozen=True, kw_only=True)
class BenchInversion(Command):
    """Invert the paper's encoder of digits and other networks, and compare with decoders and nested methods."""

    name: ClassVar[str] = "bench inversion"

    families: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Any of autoencoder, coverage, rules, networks, scale; all by default."""
    levels: tuple[float, ...] = LEVELS
    """Losses to which the autoencoder is trained; kept in the cache folder once it is."""
    noise: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3)
    """Standard deviations of the noise on codes, in the families autoencoder and coverage."""
    images: int = 100
    """Held-out images that are reported; weights are chosen on others."""
    data: str = "mnist"
    """Train on the full mnist, or on the bundled digits."""
    train_only: bool = False
    """Train the autoencoder, if it is not in the cache folder, and stop."""
    seed: int = 0
    """Of the autoencoder and of the noise."""
    threads: int = 1
    """Threads of torch; times are processor seconds."""
    tiny: bool = False
    """A few steps with a hardly trained autoencoder, to see that everything runs; its numbers mean nothing."""

    def collect(self) -> Record:
        families = [check_choice("bench inversion", name, FAMILIES) for name in self.families] or list(FAMILIES)
        torch.set_num_threads(check_size("threads", self.threads))
        scale = self._scale()
        record: Record = {"threads": torch.get_num_threads(), "tiny": self.tiny, "scale": asdict(scale)}
        console = Console(stderr=True)
        with console.status("starting") as status:
            if self.train_only or families != ["networks"]:
                models = self._models(status.update)
                record["training"] = [{"level": model.level, **model.record} for model in models]
                if not self.train_only:
                    record |= self._encoders(families, models, scale, status.update)
            if "networks" in families and not self.train_only:
                cases = inversion.others(scale).items()
                record["networks"] = [
                    row for name, case in cases for row in inversion.other(name, case, scale, status.update)
                ]
        return record

    def _scale(self) -> inversion.Scale:
        if self.tiny:
            return replace(inversion.TINY, seed=self.seed)
        images = check_size("images", self.images)
        noise = tuple(check_positive("noise", each) for each in self.noise)
        return inversion.Scale(images=images, noise=noise, seed=self.seed)

    def _models(self, say: inversion.Report) -> list[Autoencoder]:
        """From the cache folder, or trained now."""

        def report(epoch: int, loss: float) -> None:
            say(f"training the autoencoder: epoch {epoch}, loss {loss:.3g}")

        if self.tiny:
            recipe = Recipe("digits", learning_rate=1e-3, batch_size=250, seed=self.seed, window=2, max_epochs=2)
            return trained((0.2,), recipe, report)
        return trained(self.levels, Recipe(self.data, seed=self.seed), report)

    def _encoders(
        self, families: list[str], models: list[Autoencoder], scale: inversion.Scale, say: inversion.Report
    ) -> Record:
        data = "digits" if self.tiny else self.data
        report, choice = inversion.held_out(data, scale)
        record: Record = {}
        if "autoencoder" in families:
            record["autoencoder"] = []
            for model in models:
                rows, pictures = inversion.autoencoder(model, report, choice, scale, say)
                record["autoencoder"] += rows
                self._keep(f"loss-{model.level:g}", pictures)
        if "coverage" in families:
            _, held = inversion.held_out(data, scale if self.tiny else replace(scale, choice=60))
            record["coverage"] = [
                row for model in models for row in inversion.coverage(model, report, held, scale, say)
            ]
        if "rules" in families:
            record["rules"] = [row for model in models for row in inversion.rules(model, report, scale, say)]
        if "scale" in families:
            many, _ = inversion.held_out(data, replace(scale, images=8 if self.tiny else 1000))
            record["growth"] = inversion.growth(models[-1], many, scale, say)
        return record

    def _keep(self, name: str, pictures: Mapping[str, Tensor]) -> None:
        if self.out is None or not pictures:
            return
        self.out.mkdir(parents=True, exist_ok=True)
        arrays = {key.replace(" ", "_"): tensor.numpy() for key, tensor in pictures.items()}
        np.savez(self.out / f"{name}.npz", **arrays)  # pyright: ignore[reportArgumentType]
        self.save_figure(name, lambda plot: plot.pictures(pictures))

    def show(self, record: Record, console: Console) -> None:
        for name, (title, words, numbers, lines) in _TABLES.items():
            if name in record:
                table = columns(words, numbers)
                for cells in (cells for row in record[name] for cells in lines(row)):
                    table.add_row(*cells)
                console.print(title, style="bold")
                console.print(table)
                console.print()
        console.print(
            f"{record['threads']} threads, processor seconds. All methods have the same start, prior, weight and "
            "anchor, which were chosen for Adam on other images; SURE chooses its own. Adam and L-BFGS: torch's own, "
            "on torch's own modules. Default needs: seconds until the default "
            "reaches this objective. Ahead: dB over the best of Adam, nested PDHG and L-BFGS."
        )

    def save(self, record: Record) -> None:
        if "autoencoder" in record:
            self.save_figure("bench-inversion", lambda plot: plot.figure(*gains(record["autoencoder"])), ("png", "svg"))


def gains(rows: Sequence[Mapping[str, Any]]) -> list[Curves]:
    """PSNR over the decoder against the noise, with standard errors: one panel per level."""
    figures = []
    for level in dict.fromkeys(row["level"] for row in rows):
        same = sorted((row for row in rows if row["level"] == level), key=lambda row: row["noise"])
        noise, series = [row["noise"] for row in same], []
        for name in [cell["name"] for cell in same[0]["contestants"]]:
            pairs = [next(cell["gain"] for cell in row["contestants"] if cell["name"] == name) for row in same]
            low, high = ([mean + sign * error for mean, error in pairs] for sign in (-1, 1))
            series.append(Series(name, noise, [mean for mean, _ in pairs], low, high))
        title = f"trained to {level:g}"
        figures.append(Curves("gains", title, "noise of the code", "PSNR over the decoder (dB)", series, x_log=True))
    return figures


def _gains(row: dict[str, Any]) -> list[list[str]]:
    """The lines of one level and noise; the decoder's own PSNR first."""
    lines = [
        [f"{row['level']:g}", f"{row['noise']:g}", "decoder", f"{row['decoder'][0]:.2f} dB", *[""] * 5],
        ["", "", "decoder, clamped", _pair(row["clamped decoder"]), *[""] * 5],
    ]
    for cell in row["contestants"]:
        numbers = [f"{cell['objective']:.4g}", f"{cell['seconds']:.2f}", _needs(cell), f"{cell['time ratio']:.2f}"]
        lines.append(["", "", cell["name"], _pair(cell["gain"]), *numbers, _ahead(row, cell)])
    return lines


def _needs(cell: dict[str, Any]) -> str:
    """Processor seconds in which the default reaches the final objective of a baseline."""
    if not cell["baseline"]:
        return ""
    return "never" if cell["reached"] is None else f"{cell['reached']:.2f}"


def _ahead(row: dict[str, Any], cell: dict[str, Any]) -> str:
    """dB over the best baseline of this level and noise, for our methods."""
    best = max(other["gain"][0] for other in row["contestants"] if other["baseline"])
    return "" if cell["baseline"] else f"{cell['gain'][0] - best:+.2f}"


def _pair(values: list[float], sign: str = "+") -> str:
    return f"{values[0]:{sign}.2f} ± {values[1]:.2f}"


_TABLES: dict[str, tuple[str, list[str], list[str], Callable[[dict[str, Any]], list[list[str]]]]] = {
    "training": (
        "Autoencoder", ["level"], ["loss", "epoch", "seconds"],
        lambda r: [[f"{r['level']:g}", f"{r['loss']:.3g}", str(r["epoch"]), f"{r['seconds']:.0f}"]],
    ),
    "autoencoder": (
        "Gain over the decoder", ["level", "noise", "contestant"],
        ["gain (dB)", "objective", "s", "default needs", "× Adam", "ahead"], _gains,
    ),
    "coverage": (
        "Coverage of 90 % intervals", ["level", "noise"], ["as they come", "calibrated", "factor", "width"],
        lambda r: [
            [
                *(f"{r['level']:g}", f"{r['noise']:g}", f"{r['uncalibrated'][0]:.1%}", f"{r['calibrated'][0]:.1%}"),
                *(f"{r['factor']:.2f}", f"{r['width']:.3f}"),
            ]
        ],
    ),
    "rules": (
        "Rules for the weight", ["level", "rule"], ["weight", "gain (dB)", "seconds"],
        lambda r: [[f"{r['level']:g}", r["rule"], f"{r['weight']:.3g}", _pair(r["gain"]), f"{r['seconds']:.2f}"]],
    ),
    "networks": (
        "Other networks", ["network", "contestant"], ["PSNR (dB)", "objective", "s", "default needs"],
        lambda r: [
            [r["network"], r["name"], _pair(r["psnr"], ""), f"{r['objective']:.4g}", f"{r['seconds']:.2f}", _needs(r)]
        ],
    ),
    "growth": (
        "One call", ["images"], ["ms per image", "KiB per image at once"],
        lambda r: [
            [str(r["images"]), f"{1e3 * r['seconds per image']:.2f}", f"{r['bytes per image'] / 1024:.0f}"]
        ],
    ),
}  # fmt: skip
"""What a record may hold: title, headings of words and of numbers, and the lines of each of its rows."""
