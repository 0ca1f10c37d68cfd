"""Options that may be left out, as the help shows them: FLOAT, and not {None}|FLOAT."""

from __future__ import annotations

import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

_NAMES: dict[type, str] = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}

OPTIONAL = ConstructorRegistry()
"""For tyro.cli."""


@OPTIONAL.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A value, or None for what is chosen elsewhere; the word None undoes what a file says."""
    parts = [part for part in get_args(info.type) if part is not types.NoneType]
    if get_origin(info.type) not in (Union, types.UnionType) or len(parts) != 1 or parts[0] not in _NAMES:
        return None
    kind: Callable[[str], Any] = parts[0]
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=_NAMES[parts[0]],
        instance_from_str=lambda words: None if words[0] == "None" else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, parts[0]),
        str_from_instance=lambda value: [str(value)],
    )
