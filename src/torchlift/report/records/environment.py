"""Versions and hardware, for records."""

from __future__ import annotations

import importlib.metadata
import platform
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torchlift", "torch", "numpy", "safetensors", "rich", "tyro")


def environment() -> dict[str, Any]:
    """What a run depended on: versions, processor, devices, threads."""
    return {
        "versions": versions(),
        "system": platform.platform(),
        "processor": processor(),
        "devices": devices(),
        "threads": torch.get_num_threads(),
    }


def versions() -> dict[str, str]:
    """The versions of torchlift, Python and the packages we stand on."""
    versions = {name: package_version(name) or "absent" for name in PACKAGES}
    return {"torchlift": versions.pop("torchlift"), "python": platform.python_version(), **versions}


def processor() -> str:
    """The processor's own name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "unknown"


def devices() -> list[str]:
    """What torch can compute on."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{index} ({torch.cuda.get_device_name(index)})" for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def package_version(name: str) -> str | None:
    """The installed version of a package, None if it is absent."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
