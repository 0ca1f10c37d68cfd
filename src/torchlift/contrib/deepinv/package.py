"""Imports deepinv, with an error that says how to install it."""

from __future__ import annotations

from typing import Any

import torch

from torchlift.core.errors import MissingPackageError, message, optional_module


def part(name: str) -> Any:
    """The module deepinv.`name`."""
    where = "torchlift.contrib.deepinv"
    try:
        return optional_module(where, f"deepinv.{name}", "deepinv", "deepinv")
    except RuntimeError as error:
        if "torchvision" not in str(error):
            raise
        hint = f"Install the build of torchvision that belongs to torch {torch.__version__}, or both anew."
        expected = "a torchvision that works with this torch"
        raise MissingPackageError(message(where, expected, f"'{error}'", hint)) from error
