"""Records as strict JSON in which NaN and the infinities survive.

JSON knows neither, so the three floats become objects of one tagged key,

    {"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"},

and a key of the record's own that starts with "$" gets a second "$", so that
it can never be taken for the tag. All else is plain JSON; tuples become lists.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from torchlift.core.errors import TorchliftError, invalid_type, invalid_value

_MARK = "$"
_TAG = "$float"
_NOT_FINITE = ("nan", "inf", "-inf")


def encode(record: Mapping[str, Any]) -> bytes:
    """The record as ASCII JSON; refuses, by its place, any value that would not come back the same."""
    try:
        return json.dumps(_tagged("record", record), allow_nan=False).encode("ascii")
    except TorchliftError:
        raise
    except (RecursionError, ValueError) as error:  # circular, or a whole number of thousands of digits
        invalid_value("record", "values that JSON can hold", error)


def decode(text: bytes) -> Any:
    """The inverse of `encode`; a ValueError if it is none of its results."""
    return json.loads(text, object_hook=_untagged, parse_constant=refuse_constant)


def _tagged(where: str, value: object) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_TAG: str(float(value))}
    if isinstance(value, list | tuple):
        return [_tagged(f"{where}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_escaped(where, key): _tagged(f"{where}[{key!r}]", item) for key, item in value.items()}
    hint = "Tensors belong into `tensors`; a number in one is `tensor.item()`."
    invalid_type(where, "None, a bool, a number, a string, a list or a dict", value, hint)


def _escaped(where: str, key: object) -> str:
    if not isinstance(key, str):
        invalid_type(f"a key of {where}", "a string", key, "Try `str(key)`.")
    return _MARK + key if key.startswith(_MARK) else key


def _untagged(read: dict[str, Any]) -> Any:
    if list(read) == [_TAG]:
        return float(read[_TAG]) if read[_TAG] in _NOT_FINITE else refuse_constant(read[_TAG])
    return {key.removeprefix(_MARK): value for key, value in read.items()}


def refuse_constant(constant: object) -> Any:
    """For `json.loads(parse_constant=...)`, which reads more than the standard has."""
    raise ValueError(f"{constant} is not JSON")
