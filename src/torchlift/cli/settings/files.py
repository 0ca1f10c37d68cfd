"""Configurations as TOML files; whatever does not fit its setting is refused by section and name."""

from __future__ import annotations

import re
import tomllib
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from torchlift.cli.settings.settings import (
    Configuration,
    DataSettings,
    NetworkSettings,
    PhaseSettings,
    TrainingSettings,
)
from torchlift.core.checks import check_choice
from torchlift.core.errors import DataError, InvalidTypeError, did_you_mean, invalid_value, message
from torchlift.core.files import read_bytes, write_file

S = TypeVar("S")


def settings_from(kind: type[S], values: Mapping[str, Any], section: str, others: Mapping[str, type]) -> S:
    """The settings of a section.

    Arguments:
        kind: their dataclass.
        values: by name.
        section: its name in messages, such as "[network]".
        others: the dataclasses of the other sections, to say where a misplaced name belongs.
    """
    hints = types_of(kind)
    for name in values:
        if name not in hints:
            owners = [other for other, settings in others.items() if name in types_of(settings)]
            belongs = f"It belongs to {owners[0]}." if owners else ""
            hint = did_you_mean(name, hints, belongs, cutoff=0.8 if owners else 0.5)
            invalid_value(section, f"the keys {', '.join(hints)}", _cut(repr(name)), hint)
    return kind(**{name: converted(f"{section} {name}", value, hints[name]) for name, value in values.items()})


@cache
def types_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, by name, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def converted(where: str, value: Any, kind: Any) -> Any:
    """The value as a type of Python; lists become tuples, whole numbers floats, strings paths."""
    try:
        return msgspec.convert(value, kind, dec_hook=_path)
    except (msgspec.ValidationError, UnicodeError) as error:
        raise InvalidTypeError(message(where, _words(kind), _shown(value))) from error


def _path(kind: type, value: Any) -> Path:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise TypeError(f"no {kind.__name__}")


def _words(kind: Any) -> str:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(part) for part in get_args(kind) if part is not type(None)))
    if origin is Literal:
        return " or ".join(repr(word) for word in get_args(kind))
    if origin is tuple:
        return f"a list ({_words(get_args(kind)[0])} each)"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "a string")


def _shown(value: Any) -> str:
    """A value of a file in words: the string 'x', the number 3, true, a table."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a table"
    kind = {int: "number", float: "number", str: "string", list: "list"}.get(type(value), type(value).__name__)
    return f"the {kind} {_cut(repr(value))}"


def _cut(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}…"


SECTIONS: dict[str, type] = {"data": DataSettings, "network": NetworkSettings, "training": TrainingSettings}
LARGEST = 1 << 18
"""No configuration has more than 256 KiB."""
MOST_PARTS = 20
"""Parts that a dotted name may have."""
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
        owners = [f"[{section}]" for section, kind in SECTIONS.items() if name in types_of(kind)]
        if owners:
            hint = f"It belongs to {owners[0]}: write that line above it."
            invalid_value(f"{path}", "keys in sections", f"{name!r} before the first", hint)
        check_choice(f"{path}: section", name, (*SECTIONS, "phase"))
    sections: dict[str, Any] = {}
    for name, kind in SECTIONS.items():
        values = content.get(name, {})
        if not isinstance(values, dict):
            raise InvalidTypeError(message(f"{path}: {name}", f"a section [{name}]", type(values).__name__))
        sections[name] = settings_from(kind, values, f"{path}: [{name}]", _others(kind))
    phases = content.get("phase", [])
    if not isinstance(phases, list) or not all(isinstance(phase, dict) for phase in phases):
        got = "[phase]" if isinstance(phases, dict) else type(phases).__name__
        raise InvalidTypeError(message(f"{path}: phase", "tables [[phase]], in double brackets", got))
    sections["phase"] = tuple(
        settings_from(PhaseSettings, values, f"{path}: [[phase]] {number}", _others(PhaseSettings))
        for number, values in enumerate(phases, start=1)
    )
    return Configuration(**sections)


def write_configuration(path: Path, configuration: Configuration, heading: str = "") -> None:
    """All settings that are not None, such that reading them gives the same configuration.

    Arguments:
        path: replaced as a whole.
        configuration: what to write.
        heading: a first line, as a comment.
    """
    text = (f"# {heading}\n\n" if heading else "") + tomli_w.dumps(to_plain(configuration))
    write_file(path, text)


def to_plain(settings: Any) -> Any:
    """Settings that are not None, as values of JSON and TOML."""
    if is_dataclass(settings):
        values = {field.name: getattr(settings, field.name) for field in fields(settings)}
        return {name: to_plain(value) for name, value in values.items() if value is not None}
    if isinstance(settings, tuple):
        return [to_plain(item) for item in settings]
    return str(settings) if isinstance(settings, Path) else settings


def _others(kind: type) -> dict[str, type]:
    return {f"[{name}]": other for name, other in SECTIONS.items() if other is not kind}


def _parsed(path: Path) -> Mapping[str, Any]:
    where = f"configuration {path}"
    content = read_bytes(where, path, LARGEST, "a TOML file")
    try:
        text = content.decode("utf-8")
        _check_names(text)
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise DataError(message(where, "a TOML file", "a file that is no text")) from error
    except (ValueError, RecursionError) as error:  # not TOML, or nested too deep
        raise DataError(message(where, "a TOML file", str(error)[:200])) from error


def _check_names(text: str) -> None:
    """Refuse very long dotted names: the time that the parser takes for a.a.a.… grows with the square of its parts."""
    if any(part.count(".") > MOST_PARTS for part in _BETWEEN_NAMES.split(_NO_NAMES.sub("x", text))):
        raise ValueError(f"a name of more than {MOST_PARTS} parts")
