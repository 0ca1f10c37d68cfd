"""Errors that say what was expected, what came, and what to try.

Every error that torchlift raises on bad input is a `TorchliftError`, and also
a `ValueError`, `TypeError` or `OSError`, so that ordinary `except` clauses
keep working.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from importlib import import_module
from inspect import isabstract
from typing import Any, NoReturn

_LONGEST = 2000


class TorchliftError(Exception):
    """Base class of all errors raised on purpose by torchlift."""


class InvalidValueError(TorchliftError, ValueError):
    """An argument has the right type but an impossible value or shape."""


class InvalidTypeError(TorchliftError, TypeError):
    """An argument has the wrong type."""


class NotProximalError(InvalidValueError):
    """An activation is not the proximal map of any convex function."""


class NotRepresentableError(InvalidValueError):
    """A module cannot be written in the form N(y) = K u + d, M u = V z, z = σ(W u + b)."""


class DataError(TorchliftError, OSError):
    """A data file is absent, damaged or not what its name says."""


class MissingPackageError(TorchliftError, ImportError):
    """An optional package is not installed."""


def message(where: str, expected: str, got: object, hint: str = "") -> str:
    """The one sentence form that all our errors share; what came may be as long as a file."""
    came = str(got)
    text = f"{where}: expected {expected}, got {came if len(came) <= _LONGEST else f'{came[:_LONGEST]}…'}."
    return f"{text} {hint}" if hint else text


def optional_module(where: str, module: str, package: str, extra: str) -> Any:
    """A module of a package that an extra of torchlift brings."""
    try:
        return import_module(module)
    except ImportError as error:
        hint = f'Try `pip install "torchlift[{extra}]"`.'
        raise MissingPackageError(message(where, f"the package {package}", error, hint)) from None


def did_you_mean(name: object, known: Iterable[str], otherwise: str = "", cutoff: float = 0.5) -> str:
    """A hint that names the nearest of the known names; `otherwise` where none is as near as `cutoff`, at most 1."""
    spelt = {_plain(word): word for word in known}
    near = difflib.get_close_matches(_plain(str(name)[:60]), spelt, n=1, cutoff=cutoff)
    return f"Did you mean {spelt[near[0]]!r}?" if near else otherwise


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").replace(" ", "-")


_SYSTEM = {
    errno.ENOENT: "no such file or folder",
    errno.EISDIR: "a folder",
    errno.ENOTDIR: "a path that leads through a file",
    errno.EEXIST: "something that exists already",
    errno.EACCES: "no permission",
    errno.EPERM: "no permission",
    errno.EROFS: "a place that is read-only",
    errno.ENOSPC: "a full disk",
    errno.ENAMETOOLONG: "a name that is too long",
    errno.ELOOP: "links that lead in a circle",
}


def system_words(error: OSError) -> str:
    """What the system says about a file, in words that go with "got"."""
    return _SYSTEM.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__


def invalid_value(where: str, expected: str, got: object, hint: str = "") -> NoReturn:
    raise InvalidValueError(message(where, expected, got, hint))


def invalid_type(where: str, expected: str, got: object, hint: str = "") -> NoReturn:
    if isinstance(got, type):
        instance = "" if isabstract(got) else f"Try {got.__name__}(…). "  # what cannot be made is no advice
        raise InvalidTypeError(message(where, expected, f"the class {got.__name__}", f"{instance}{hint}".strip()))
    raise InvalidTypeError(message(where, expected, type(got).__name__, hint))
