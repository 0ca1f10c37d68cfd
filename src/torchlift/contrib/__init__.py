"""Adapters to other libraries, loaded when first asked for; each needs the extra of its name."""

from importlib import import_module
from typing import Any

ADAPTERS = ("deepinv", "sklearn")


def __getattr__(name: str) -> Any:
    if name in ADAPTERS:
        return import_module(f"torchlift.contrib.{name}")
    raise AttributeError(f"module 'torchlift.contrib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *ADAPTERS})
