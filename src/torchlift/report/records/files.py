"""Records on disk: JSON, and safetensors for pictures; verified when read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchlift.core.errors import DataError, message
from torchlift.io import load_tensors, save_tensors
from torchlift.report.records.checked import check_record
from torchlift.report.records.figures import (
    KINDS,
    Blocks,
    Claim,
    Curves,
    Figure,
    Grid,
    HeatMap,
    Pictures,
    Record,
    Series,
)

KIND = "torchlift record"
#: The experiments of the reproduction, in the order of the paper; ours last.
PAPER_ORDER = (
    "table-forward",
    "table-backward",
    "optimisers",
    "auxiliary-start",
    "deblurring",
    "denoising",
    "inpainting",
    "conventional-sweep",
    "inversion",
    "error-estimate",
    "implicit-stability",
    "architectures",
    "memory",
    "scaling",
)
FOLDER = "record"
"""The pair of files of a record lies in this folder of a run's own folder."""


def save_record(folder: Path | str, record: Record) -> Path:
    """Write a record into `folder`/record, whole or not at all.

    Raises:
        InvalidTypeError, InvalidValueError: Some part of it cannot be shown; it says which.
        DataError: The disk is full or refuses.
    """
    check_record(record)
    tensors: dict[str, Tensor] = {}
    claims = [dataclasses.asdict(claim) for claim in record.claims]
    figures = [_encode(figure, tensors) for figure in record.figures]
    content = {**vars(record), "claims": claims, "figures": figures}
    return save_tensors(Path(folder) / FOLDER, tensors, content, kind=KIND)


def load_record(folder: Path | str) -> Record:
    """The record that `save_record` wrote.

    Raises:
        DataError: There is none, it is damaged, or of another version.
    """
    path = Path(folder) / FOLDER
    tensors, content = load_tensors(path, kind=KIND)
    try:
        content["claims"] = tuple(Claim(**claim) for claim in content["claims"])
        content["figures"] = tuple(_decode(figure, tensors) for figure in content["figures"])
        return check_record(Record(**content))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        hint = "It was written by another version: repeat the run."
        got = f"{type(error).__name__}: {error}"
        raise DataError(message(str(path), "a record of this version", got, hint)) from error


def _encode(figure: Figure, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """JSON values; tensors go to `tensors` under `<figure>.<number>`."""
    content: dict[str, Any] = {"kind": figure.kind, **_plain(figure)}
    stored: dict[str, Tensor] = {}
    if isinstance(figure, Pictures):
        stored = {f"{figure.name}.{number}": images for number, images in enumerate(figure.rows.values())}
        content["rows"] = dict(zip(figure.rows, stored, strict=True))
    elif isinstance(figure, HeatMap):
        stored = {figure.name: figure.values}
        content["values"] = figure.name
    tensors.update({name: tensor.detach().cpu().float().contiguous() for name, tensor in stored.items()})
    return content


def _plain(value: Any) -> Any:
    """Data classes as dicts; everything else is JSON already, or a tensor that is put elsewhere."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if not isinstance(item, Tensor)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return None if isinstance(value, Tensor) else value


def _decode(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> Figure:
    kind = KINDS[content.pop("kind")]
    if kind is Pictures:
        content["rows"] = {label: _numbers(tensors[name]) for label, name in content["rows"].items()}
    elif kind is HeatMap:
        content["values"] = _numbers(tensors[content["values"]])
    elif kind is Curves:
        content["series"] = tuple(Series(**series) for series in content["series"])
    elif kind is Blocks:
        content["grids"] = tuple(Grid(**grid) for grid in content["grids"])
    return kind(**content)


def _numbers(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32:
        raise TypeError(f"numbers of type {tensor.dtype}, not float32")
    return tensor
