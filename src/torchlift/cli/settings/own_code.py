"""Networks from code of the user's own, named as module:function."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from torchlift.core.errors import InvalidValueError, TorchliftError, invalid_type, invalid_value, message
from torchlift.networks import Network


def call_named(where: str, path: str) -> Network | nn.Sequential:
    """What a function without arguments returns; modules of the current folder are found too.

    Arguments:
        where: names the setting in messages.
        path: "package.module:function".
    """
    module, _, name = path.partition(":")
    parts = [*module.split("."), *name.split(".")]
    if not all(part.isidentifier() for part in parts):
        invalid_value(where, "module:function, such as mypackage.models:denoiser", repr(path))
    if module.endswith(".py"):
        invalid_value(where, "the name of a module", repr(module), f"Write {module.removesuffix('.py')}:{name}.")
    with _current_folder_importable():
        try:
            function: Any = importlib.import_module(module)
            for part in name.split("."):
                function = getattr(function, part)
            made = function()
        except TorchliftError:
            raise
        except Exception as error:  # whatever the user's code does, with `--debug` to see where
            hint = "Modules of the current folder and installed ones are found; --debug shows more."
            raise InvalidValueError(message(where, "a function that can be called", reason(error), hint)) from error
    if not isinstance(made, Network | nn.Sequential):
        invalid_type(where, "a function that returns a Network or an nn.Sequential", made)
    return made


def reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


@contextmanager
def _current_folder_importable() -> Iterator[None]:
    before = list(sys.path)
    sys.path.append(str(Path.cwd()))  # last: nothing in it can take the place of an installed package
    try:
        yield
    finally:
        sys.path[:] = before
