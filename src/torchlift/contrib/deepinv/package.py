"""Imports deepinv, with an error that says how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from torchlift.functions.priors.wavelet import MissingPackageError


def part(name: str) -> Any:
    """The module deepinv.`name`."""
    try:
        return import_module(f"deepinv.{name}")
    except ImportError as error:
        hint = 'Try `pip install "torchlift[deepinv]"`.'
        raise MissingPackageError(
            f"torchlift.contrib.deepinv: expected the package deepinv, got {error}. {hint}"
        ) from None
    except RuntimeError as error:
        if "torchvision" not in str(error):
            raise
        hint = f"Install the build of torchvision that belongs to torch {torch.__version__}, or both anew."
        text = f"torchlift.contrib.deepinv: expected a torchvision that works with this torch, got '{error}'. {hint}"
        raise MissingPackageError(text) from error
