"""Text that is safe for a terminal."""

from __future__ import annotations

from typing import Any


def printable(value: Any) -> Any:
    """The same with all text made safe for a terminal: what comes from files must not move its cursor, or worse."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in value)
    if isinstance(value, dict):
        return {printable(name): printable(item) for name, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value
