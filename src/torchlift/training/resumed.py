"""Checkpoints that were not written by this version of `train`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torchlift.core.errors import DataError, TorchliftError, message

HINT = "It was written by another version of torchlift, or changed: go on with that version, or begin anew."


@contextmanager
def of_this_version(path: Path) -> Generator[None, None, None]:
    """Whatever goes wrong with what a checkpoint holds is a DataError that names it."""
    try:
        yield
    except TorchliftError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        got = f"{type(error).__name__}: {str(error)[:200]}"
        raise DataError(message(str(path), "a training of this version", got, HINT)) from error


def check_fields(path: Path, saved: Any, usual: Mapping[str, Any]) -> None:
    """Refuse other names than the usual ones, and values that are not of their kind."""
    with of_this_version(path):
        if not isinstance(saved, Mapping) or set(saved) != set(usual):
            names = sorted(set(saved) ^ set(usual)) if isinstance(saved, Mapping) else [type(saved).__name__]
            raise ValueError(f"not exactly the fields of this version: {', '.join(map(str, names))[:100]}")
        for name, value in saved.items():
            kinds = {int: (int,), float: (int, float), dict: (dict,)}.get(type(usual[name]), (str, type(None)))
            counts = isinstance(value, int) and (isinstance(value, bool) or not 0 <= value < 1 << 63)
            if not isinstance(value, kinds) or counts:
                raise TypeError(f"{name} is {str(value)[:40]!r}")
