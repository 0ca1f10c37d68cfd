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
from torchlift.cli.tables import shown
from torchlift.core.checks import check_choice, check_positive, check_size
from torchlift.lab.benchmarks import inversion
from torchlift.lab.benchmarks.autoencoder import LEVELS, Autoencoder, Recipe, trained
from torchlift.report.records import Cell, Curves, Series, Table
from torchlift.report.records.figures import Column

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
        for name, (title, columns) in _TABLES.items():
            if name in record:
                rows = record[name]
                lines = [line for row in rows for line in _lines(row)] if name == "autoencoder" else rows
                console.print(shown(Table.of_records(name, title, columns, lines)))
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


def _lines(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The decoder and all contestants of one level and noise."""
    place = {"level": row["level"], "noise": row["noise"]}
    best = max(cell["gain"][0] for cell in row["contestants"] if cell["baseline"])
    nothing = dict.fromkeys(("objective", "seconds", "reached", "time ratio", "ahead"))
    decoder = {"name": "decoder", "psnr": row["decoder"], "gain": (None, None)}
    clamped = {"name": "decoder, clamped", "psnr": (None, None), "gain": row["clamped decoder"]}
    return [
        {**place, **nothing, **decoder, "baseline": False},
        {**place, **nothing, **clamped, "baseline": False},
        *(
            {**place, **cell, "ahead": None if cell["baseline"] else cell["gain"][0] - best}
            for cell in row["contestants"]
        ),
    ]


def _needs(cell: Mapping[str, Any]) -> Cell:
    """Processor seconds in which the default reaches the final objective of a baseline."""
    return "never" if cell["baseline"] and cell["reached"] is None else cell["reached"]


def _mean(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    """Of a mean and its standard error."""
    return lambda row: row[name][0]


def _error(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    return lambda row: row[name][1]


_TABLES: dict[str, tuple[str, dict[str, Column]]] = {
    "training": (
        "Autoencoder",
        {"level": ("level", "g"), "loss": ("loss", ".3g"), "epoch": ("epoch", ""), "seconds": ("seconds", ".0f")},
    ),
    "autoencoder": (
        "Gain over the decoder",
        {
            "level": ("level", "g"), "noise": ("noise", "g"), "contestant": ("name", ""),
            "PSNR (dB)": (_mean("psnr"), ".2f"), "gain (dB)": (_mean("gain"), "+.2f"), "±": (_error("gain"), ".2f"),
            "objective": ("objective", ".4g"), "s": ("seconds", ".2f"), "default needs": (_needs, ".2f"),
            "× Adam": ("time ratio", ".2f"), "ahead": ("ahead", "+.2f"),
        },
    ),
    "coverage": (
        "Coverage of 90 % intervals",
        {
            "level": ("level", "g"), "noise": ("noise", "g"), "as they come": (_mean("uncalibrated"), ".1%"),
            "calibrated": (_mean("calibrated"), ".1%"), "factor": ("factor", ".2f"), "width": ("width", ".3f"),
        },
    ),
    "rules": (
        "Rules for the weight",
        {
            "level": ("level", "g"), "rule": ("rule", ""), "weight": ("weight", ".3g"),
            "gain (dB)": (_mean("gain"), "+.2f"), "±": (_error("gain"), ".2f"), "seconds": ("seconds", ".2f"),
        },
    ),
    "networks": (
        "Other networks",
        {
            "network": ("network", ""), "contestant": ("name", ""), "PSNR (dB)": (_mean("psnr"), ".2f"),
            "±": (_error("psnr"), ".2f"), "objective": ("objective", ".4g"), "s": ("seconds", ".2f"),
            "default needs": (_needs, ".2f"),
        },
    ),
    "growth": (
        "One call",
        {
            "images": ("images", ""),
            "ms per image": (lambda row: 1e3 * row["seconds per image"], ".2f"),
            "KiB per image at once": (lambda row: row["bytes per image"] / 1024, ".0f"),
        },
    ),
}  # fmt: skip
"""What a record may hold: title, and columns as `Table.of_records` takes them."""
