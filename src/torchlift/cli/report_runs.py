"""Runs of `torchlift train` and `torchlift invert` as records."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchlift.cli.command import not_ours, read_object
from torchlift.cli.invert_files import read_batch
from torchlift.cli.pictures import compared
from torchlift.cli.settings.data import load_samples
from torchlift.cli.settings.files import read_configuration, to_plain
from torchlift.cli.settings.network import reads_context
from torchlift.cli.settings.settings import Configuration
from torchlift.core.errors import DataError, TorchliftError
from torchlift.data.tasks import TASKS
from torchlift.io import load_model
from torchlift.networks import Network
from torchlift.operators.context import select_context
from torchlift.report.plot.training import MEASURES
from torchlift.report.records import Curves, Figure, Pictures, Record, Series, Table
from torchlift.report.records.figures import network_blocks
from torchlift.report.records.files import check_record
from torchlift.training import History, read_history

SAMPLES = 5
"""Validation images that are shown."""

FORM = "N(y) = K u + d, M u = V z, z = σ(W u + b)"
LABELS = {"loss": "loss", "objective": "lifted objective", "gap": "gap of the lifted variables"}


def training_record(folder: Path) -> Record:
    """Curves, the table of validation values, the network's structure and some restored images.

    A run that is not finished has its curves so far.
    """
    configuration = read_configuration(folder / "config.toml")
    history = read_history(folder / "history.jsonl")
    file = folder / "train.json"
    finished = read_object(file) if file.exists() else {}
    try:
        return check_record(_training(folder, configuration, history, finished))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise not_ours(file, "train", error) from error


def _training(folder: Path, configuration: Configuration, history: History, finished: Mapping[str, Any]) -> Record:
    network, trouble = _network(folder)
    figures = [*_table(finished), *_curves(history)]
    if network is not None:
        images, missing = _pictures(configuration, network)
        figures += [
            *images,
            replace(network_blocks(network, "structure"), title="Structure of the network", note=FORM),
        ]
        trouble = missing
    steps, seconds = (history[-1]["step"], history[-1]["seconds"]) if len(history) else (0, 0.0)
    summary = finished.get("message") or f"Not finished: {steps} steps so far."
    name = shlex.quote(str(folder / "config.toml"))
    return Record(
        name="training",
        title=f"Training of {_words(configuration)}",
        summary=" ".join(sentence for sentence in (f"{_words(configuration)}.", summary, trouble) if sentence),
        command=f"torchlift train {name} --out {shlex.quote(str(folder) + '-again')}",
        configuration=finished.get("configuration") or to_plain(configuration),
        environment=finished.get("environment") or {},
        seconds=finished.get("seconds") or seconds or 0.0,
        figures=figures,
    )


def _words(configuration: Configuration) -> str:
    network, data = configuration.network, configuration.data
    return f"{network.kind} for {data.task} of {data.set}"


def _network(folder: Path) -> tuple[Network | None, str]:
    """The trained network, or why it cannot be shown."""
    if not (folder / "model").exists():
        return None, ""
    try:
        return load_model(folder / "model").eval(), ""
    except DataError as error:
        return None, f"The network is not drawn: {error}"


def _table(finished: Mapping[str, Any]) -> list[Figure]:
    """Validation values of the input, the start, the best and the last parameters."""
    rows = finished.get("validation", {})
    units = finished.get("units", {})
    if not rows or not units:
        return []
    columns = ["", "step", *(f"{name} ({unit})" if unit else name for name, unit in units.items())]
    cells = [[name, row["step"], *(row["metrics"].get(metric) for metric in units)] for name, row in rows.items()]
    return [Table("validation", "Validation", columns, cells, ["", "", *(".4g" for _ in units)])]


def _curves(history: History) -> list[Figure]:
    """Loss of both kinds; objective, gap and validation metrics where there are any."""
    figures = [
        _curve(name, name, label, [_series(history, name, kind) for kind in ("train", "validation")])
        for name, label in LABELS.items()
    ]
    metrics: dict[str, None] = dict.fromkeys(name for row in history for name in row["metrics"] if name != "loss")
    figures += [
        _curve(name, f"metric-{number}", MEASURES.get(name, (name,))[0], [_series(history, name, "validation")])
        for number, name in enumerate(metrics, start=1)
    ]
    rate = "learning-rate"
    figures.append(_curve(rate, rate, "learning rate", [_series(history, "learning_rate", "train")]))
    return [curves for curves in figures if curves.series]


def _series(history: History, name: str, kind: str) -> Series | None:
    steps, values = history.column(name, kind)
    if not steps:
        return None
    label = "training" if kind == "train" else "validation"
    return Series(label, steps, values, dashed=kind == "validation" and name in LABELS, group=name)


def _curve(name: str, file_name: str, label: str, series: list[Series | None]) -> Curves:
    drawn = [curve for curve in series if curve is not None]
    positive = all(y is not None and y > 0 for curve in drawn for y in curve.y)
    log = name in (*LABELS, "learning-rate") and positive
    return Curves(file_name, label[:1].upper() + label[1:], "step", label, drawn, y_log=log)


def _pictures(configuration: Configuration, network: Network) -> tuple[list[Figure], str]:
    """The first validation images: as they are, degraded, and restored; or why not."""
    settings = configuration.data
    if settings.task not in TASKS or settings.validation == 0:
        return [], ""
    try:
        samples = load_samples(settings, getattr(torch, configuration.network.dtype), configuration.training.seed)
        held_out = samples.shaped(network.in_shape, network.out_shape, reads_context(network))[1]
    except TorchliftError as error:
        return [], f"No images are shown: {error}"
    if held_out is None or samples.validation is None:
        return [], ""
    y, x, context = held_out
    with torch.no_grad():
        restored = network(y[:SAMPLES], select_context(context, slice(SAMPLES)))
    rows = {"truth": x[:SAMPLES], "input": y[:SAMPLES], "network": restored}
    shape = samples.validation.x.shape[1:]
    if any(row[0].numel() != shape.numel() for row in rows.values()) or shape.numel() != shape[-2] * shape[-1]:
        return [], ""
    images = {name: row.float() for name, row in rows.items()}
    return [compared("samples", "Validation images", images, "truth", tuple(shape[-2:]))], ""


IMAGES = 8
"""Images that are shown."""
LISTED = 100
"""Images in the table."""
FOUND = "inversion"

SETTINGS = ("model", "data", "in_shape", "out_shape", "prior", "algorithm", "weight")


def inversion_record(folder: Path) -> Record:
    """What was found for each image, how the weight was chosen, and the first images."""
    file = folder / "invert.json"
    result = read_object(file)
    try:
        return check_record(_inversion(folder, result))
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise not_ours(file, "invert", error) from error


def _inversion(folder: Path, result: Mapping[str, Any]) -> Record:
    quality = "" if result["psnr"] is None else f" Mean PSNR: {result['psnr']:.2f} dB."
    if result["psnr"] is None and result.get("relative error") is not None:
        quality = f" Error: {result['relative error']:.3g} of the norm of the true inputs."
    pictures = _found(folder, result)
    gaps = [[f"layer {number}", gap] for number, gap in enumerate(result["gaps"], 1)]
    return Record(
        name="inversions",
        title=f"Inversion of {result['model']}",
        summary=f"{result['message']}{quality}",
        command=result["command"],
        configuration={name: result[name] for name in SETTINGS},
        environment=result["environment"],
        seconds=result["seconds"],
        figures=[
            *pictures,
            *_weights(result),
            Table.of("gaps", "Mean gap of each layer", {"": "", "gap": ".4g"}, gaps),
            _each("image" if pictures else "sample", result),
        ],
    )


def _found(folder: Path, result: Mapping[str, Any]) -> list[Figure]:
    """The first images, with the true inputs, the first guesses and the intervals where there were any."""
    shape = tuple(result["in_shape"])
    rows: dict[str, Tensor] = {}
    files = (("input", "truth.npy"), ("start", "start.npy"), (FOUND, "x.npy"))
    for label, name in (*files, ("lower end of the intervals", "lower.npy"), ("upper end", "upper.npy")):
        if (folder / name).exists():
            images = _as_pictures(read_batch(folder / name, shape, torch.zeros(()))[:IMAGES], shape)
            if images is not None:
                rows[label] = images
    if FOUND not in rows:
        return []
    decibels = [image["psnr"] for image in result["images"][:IMAGES]]
    captions = {} if None in decibels else {FOUND: [f"{value:.1f} dB" for value in decibels]}
    truth = "input" if "input" in rows else None
    return [Pictures("images", "Inputs that were found", rows, captions, truth)]


def _as_pictures(x: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """(B, H, W); vectors of a square number of entries are shown as squares, nothing else is."""
    side = math.isqrt(math.prod(shape))
    if len(shape) == 3 and shape[0] == 1:
        return x[:, 0]
    return x.reshape(-1, side, side) if len(shape) == 1 and side * side == shape[0] >= 64 else None


def _weights(result: Mapping[str, Any]) -> list[Figure]:
    """What the rule saw at each weight that it tried."""
    trace = result["trace"]
    if trace is None:
        return []
    rows = sorted(trace["rows"], key=lambda row: row["weight"])
    names = [name for name in rows[0] if name != "weight"]
    x = [row["weight"] for row in rows]
    series = [Series(name, x, [row[name] for row in rows]) for name in names]
    title = f"Choice of the weight by {trace['rule']}"
    note = f"Chosen: {result['weight']:.4g}, the mean over all of them."
    return [Curves("weights", title, "weight", ", ".join(names), series, x_log=True, note=note)]


def _each(noun: str, result: Mapping[str, Any]) -> Table:
    images = result["images"]
    names = [name for name in images[0] if any(image[name] is not None for image in images)]
    rows = [[number, *(image[name] for name in names)] for number, image in enumerate(images[:LISTED], 1)]
    formats = ["", *("" if name in ("status", "steps") else ".4g" for name in names)]
    note = f"The first {LISTED} of {len(images)}; all are in invert.json." if len(images) > LISTED else ""
    return Table("results", f"Each {noun}", [noun, *names], rows, formats, note=note)
