"""Records on disk: JSON, and safetensors for pictures; whether they are what their classes say is checked both ways."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from torchlift.core.errors import DataError, InvalidTypeError, invalid_value, message
from torchlift.io import load_tensors, save_tensors
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

DEEPEST = 50
"""Levels of lists and dicts in a configuration."""

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_LARGEST = 1 << 63  # a whole number that is larger is none that was counted, and no float may hold it


def check_record(record: Record) -> Record:
    """The same record, if it can be saved and shown.

    Raises:
        InvalidTypeError, InvalidValueError: some part of it is not of its type; it says which.
    """
    for name in (record.name, *(figure.name for figure in record.figures)):
        check_name(name)
    _check("record", record, Record)
    if not math.isfinite(record.seconds):
        invalid_value("record.seconds", "a finite number", record.seconds)
    for figure in record.figures:
        for grid in figure.grids if isinstance(figure, Blocks) else ():
            for row, column, _ in grid.cells:
                if not (0 <= row < len(grid.rows) and 0 <= column < len(grid.columns)):
                    invalid_value(f"Grid {grid.name}", "cells within its rows and columns", (row, column))
    return record


def check_name(name: object) -> str:
    """The name of a record or a figure, which is also that of files: no path, and nothing to escape."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        invalid_value("record", "names of lower-case words joined by hyphens", repr(name)[:80])
    return name


def _check(where: str, value: Any, annotation: Any) -> None:
    """Refuse a value that does not fit its annotation, by its place."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        _check_depth(where, value)
    elif origin in (Union, types.UnionType):
        if not any(_is_plain(value, part) for part in parts):
            _refuse(where, annotation, value)
    elif origin is Literal:
        if not isinstance(value, str) or value not in parts:
            invalid_value(where, f"one of {', '.join(parts)}", repr(value)[:80])
    elif origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            _refuse(where, annotation, value)
        for index, part in enumerate(parts):
            _check(f"{where}[{index}]", value[index], part)
    elif origin is Sequence:
        if not isinstance(value, list | tuple):
            _refuse(where, annotation, value)
        for index, item in enumerate(value):
            _check(f"{where}[{index}]", item, parts[0])
    elif origin is Mapping:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            _refuse(where, annotation, value)
        for key, item in value.items():
            _check(f"{where}[{key[:40]!r}]", item, parts[1])
    elif dataclasses.is_dataclass(annotation):
        kind = type(value) if annotation is Figure and type(value) in KINDS.values() else annotation
        if type(value) is not kind:
            _refuse(where, annotation, value)
        for name, part in _fields(kind).items():
            _check(f"{where}.{name}", getattr(value, name), part)
    elif not _is_plain(value, annotation):
        _refuse(where, annotation, value)


@cache
def _fields(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _is_plain(value: Any, annotation: Any) -> bool:
    if annotation is type(None):
        return value is None
    if annotation in (int, float) and isinstance(value, int) and not isinstance(value, bool):
        return abs(value) < _LARGEST
    return isinstance(value, annotation) and (annotation in (bool, str, float, Tensor))


def _check_depth(where: str, value: Any, levels: int = DEEPEST) -> None:
    if levels == 0:
        invalid_value(where, f"at most {DEEPEST} levels of lists and dicts", "more")
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        _check_depth(where, item, levels - 1)


def _refuse(where: str, annotation: Any, value: object) -> None:
    got = f"{type(value).__name__} {value}"[:80] if isinstance(value, int | float | str) else type(value).__name__
    raise InvalidTypeError(message(where, _words(annotation), got))


def _words(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(part) for part in parts)
    if origin is not None:
        return {Sequence: "a list", Mapping: "a dict with text as keys"}.get(origin, f"{len(parts)} values")
    words = {int: "a whole number below 2**63", float: "a number", bool: "true or false", str: "text"}
    return words.get(annotation, "None" if annotation is type(None) else annotation.__name__)


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
