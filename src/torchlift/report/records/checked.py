"""Whether a record is what its classes say: files, and programs, may put anything into it."""

from __future__ import annotations

import dataclasses
import math
import re
import types
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from torchlift.core.errors import InvalidTypeError, invalid_value, message
from torchlift.report.records.figures import KINDS, Blocks, Figure, Record

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
