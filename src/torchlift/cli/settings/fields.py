"""From plain values, as files hold them, to typed settings; whatever does not fit is refused by section and name."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from torchlift.core.errors import InvalidTypeError, InvalidValueError, invalid_value, message

S = TypeVar("S")


def settings_from(kind: type[S], values: Mapping[str, Any], section: str, elsewhere: Mapping[str, type]) -> S:
    """The settings of a section.

    Args:
        kind: their dataclass.
        values: by name.
        section: its name in messages, such as "[network]".
        elsewhere: the dataclasses of the other sections, to say where a misplaced name belongs.
    """
    hints = types_of(kind)
    for name in values:
        if name not in hints:
            owners = [other for other, its in elsewhere.items() if name in types_of(its)]
            hint = f"It belongs to {owners[0]}." if owners else _nearest(name, hints)
            invalid_value(section, f"the keys {', '.join(hints)}", _cut(repr(name)), hint)
    return kind(**{name: converted(f"{section} {name}", value, hints[name]) for name, value in values.items()})


@cache
def types_of(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, by name, in order."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def converted(where: str, value: Any, wanted: Any) -> Any:
    """The value as the type that is wanted; lists become tuples, whole numbers floats, strings paths."""
    found = _converted(value, wanted)
    if found is _NO:
        raise InvalidTypeError(message(where, _words(wanted), _shown(value)))
    return found


def check_choice(where: str, value: str, known: Iterable[str]) -> str:
    """One of the known names; a misspelt one is answered with the nearest."""
    names = list(known)
    if value not in names:
        wanted = f"one of {', '.join(names)}"
        raise InvalidValueError(message(where, wanted, _cut(repr(value)), _nearest(value, names)))
    return value


_NO = object()


def _converted(value: Any, wanted: Any) -> Any:
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return next((found for part in get_args(wanted) if (found := _converted(value, part)) is not _NO), _NO)
    if origin is Literal:
        return value if value in get_args(wanted) and isinstance(value, str) else _NO
    if origin is tuple:
        inner = get_args(wanted)[0]
        found = tuple(_converted(item, inner) for item in value) if isinstance(value, list | tuple) else (_NO,)
        return _NO if _NO in found else found
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value) if abs(value) < 2**1000 else math.inf
    if wanted is Path and isinstance(value, str):
        return Path(value)
    return value if type(value) is wanted else _NO


def _words(wanted: Any) -> str:
    origin = get_origin(wanted)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_words(part) for part in get_args(wanted) if part is not type(None)))
    if origin is Literal:
        return " or ".join(repr(word) for word in get_args(wanted))
    if origin is tuple:
        return f"a list ({_words(get_args(wanted)[0])} each)"
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(wanted, "a string")


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


def _nearest(name: str, known: Iterable[str]) -> str:
    spelt = {word.lower(): word for word in known}
    near = difflib.get_close_matches(name[:60].lower(), spelt, n=1, cutoff=0.5)
    return f"Did you mean {spelt[near[0]]!r}?" if near else ""
