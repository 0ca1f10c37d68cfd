"""A run of `torchlift invert` as a record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchlift.cli.command import not_ours, read_object
from torchlift.cli.invert_files import read_batch
from torchlift.report.records import Curves, Figure, Pictures, Record, Series, Table
from torchlift.report.records.checked import check_record

SHOWN = 8
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
        return check_record(_record(folder, result))
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise not_ours(file, "invert", error) from error


def _record(folder: Path, result: Mapping[str, Any]) -> Record:
    quality = "" if result["psnr"] is None else f" Mean PSNR: {result['psnr']:.2f} dB."
    if result["psnr"] is None and result.get("relative error") is not None:
        quality = f" Error: {result['relative error']:.3g} of the norm of the true inputs."
    pictures = _pictures(folder, result)
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


def _pictures(folder: Path, result: Mapping[str, Any]) -> list[Figure]:
    """The first images, with the true inputs, the first guesses and the intervals where there were any."""
    shape = tuple(result["in_shape"])
    rows: dict[str, Tensor] = {}
    files = (("input", "truth.npy"), ("start", "start.npy"), (FOUND, "x.npy"))
    for label, name in (*files, ("lower end of the intervals", "lower.npy"), ("upper end", "upper.npy")):
        if (folder / name).exists():
            images = _as_pictures(read_batch(folder / name, shape, torch.zeros(()))[:SHOWN], shape)
            if images is not None:
                rows[label] = images
    if FOUND not in rows:
        return []
    decibels = [image["psnr"] for image in result["images"][:SHOWN]]
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
