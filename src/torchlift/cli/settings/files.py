"""Configurations as TOML files."""

from __future__ import annotations

import importlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from torchlift.cli.settings.fields import check_choice, settings_from
from torchlift.cli.settings.settings import (
    Configuration,
    DataSettings,
    NetworkSettings,
    PhaseSettings,
    TrainingSettings,
)
from torchlift.core.errors import DataError, InvalidTypeError, message
from torchlift.core.files import read_bytes

SECTIONS: dict[str, type] = {"data": DataSettings, "network": NetworkSettings, "training": TrainingSettings}
LARGEST = 1 << 18
"""No configuration has more than 256 KiB."""
MOST_PARTS = 20
"""Of a dotted name."""
_NO_NAMES = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|#[^\n]*|\d\.\d")  # strings, comments, numbers with a point
_BETWEEN_NAMES = re.compile(r"[^\w. \t-]")


def read_configuration(path: str | Path) -> Configuration:
    """The settings of a TOML file; what it does not mention has its default.

    Raises:
        DataError: there is no such file, or it is not TOML.
        InvalidValueError, InvalidTypeError: a section, key or value is wrong; it says which, and what is near.
    """
    content = _parsed(Path(path))
    for name in content:
        check_choice(f"{path}: section", name, (*SECTIONS, "phase"))
    sections: dict[str, Any] = {}
    for name, kind in SECTIONS.items():
        values = content.get(name, {})
        if not isinstance(values, dict):
            raise InvalidTypeError(message(f"{path}: {name}", f"a section [{name}]", type(values).__name__))
        sections[name] = settings_from(kind, values, f"{path}: [{name}]", _others(kind))
    phases = content.get("phase", [])
    if not isinstance(phases, list) or not all(isinstance(each, dict) for each in phases):
        raise InvalidTypeError(message(f"{path}: phase", "tables [[phase]]", type(phases).__name__))
    sections["phase"] = tuple(
        settings_from(PhaseSettings, values, f"{path}: [[phase]] {number}", _others(PhaseSettings))
        for number, values in enumerate(phases, start=1)
    )
    return Configuration(**sections)


def write_configuration(path: Path, configuration: Configuration, heading: str = "") -> None:
    """All settings that are not None, such that reading them gives the same configuration.

    Args:
        path: replaced as a whole.
        configuration: what to write.
        heading: a first line, as a comment.
    """
    lines = [f"# {heading}", ""] if heading else []
    for name in SECTIONS:
        lines += [f"[{name}]", *_lines(getattr(configuration, name)), ""]
    for phase in configuration.phase:
        lines += ["[[phase]]", *_lines(phase), ""]
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write("\n".join(lines))
            file.flush()
            os.fsync(file.fileno())
        Path(part).chmod(0o644)
        Path(part).replace(path)
    finally:
        Path(part).unlink(missing_ok=True)


def to_plain(settings: Any) -> dict[str, Any]:
    """The settings that are not None, as values of JSON and TOML."""
    found = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _others(kind: type) -> dict[str, type]:
    return {f"[{name}]": other for name, other in SECTIONS.items() if other is not kind}


def _parsed(path: Path) -> Mapping[str, Any]:
    where = f"configuration {path}"
    content = read_bytes(where, path, LARGEST, "a TOML file")
    try:
        text = content.decode("utf-8")
        _check_names(text)
        return _toml().loads(text)
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deep
        raise DataError(message(where, "a TOML file", str(error)[:200])) from error


def _check_names(text: str) -> None:
    """Refuse very long dotted names: the time that the parser takes for a.a.a.… grows with the square of its parts."""
    if any(part.count(".") > MOST_PARTS for part in _BETWEEN_NAMES.split(_NO_NAMES.sub("x", text))):
        raise ValueError(f"a name of more than {MOST_PARTS} parts")


def _toml() -> Any:
    """The standard library's parser, or the package it came from on Python 3.10."""
    for name in ("tomllib", "tomli"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise DataError("TOML files need Python 3.11 or newer, or the package tomli: pip install tomli.")


def _lines(settings: Any) -> list[str]:
    return [f"{name} = {_toml_value(value)}" for name, value in to_plain(settings).items()]


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):  # a JSON string is a TOML string, but for one character that JSON does not escape
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    return repr(value)
