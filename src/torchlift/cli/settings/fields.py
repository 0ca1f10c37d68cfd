"""Typed settings from plain values, as files hold them; whatever does not fit is refused by section and name."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from torchlift.core.errors import InvalidTypeError, did_you_mean, invalid_value, message

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
