"""A case for a world: what `torchlift bench distributed --race` starts in processes of its own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torchlift.lab.benchmarks.distributed.race import _run


def cases(name: str, settings: str) -> dict[str, Callable[[], str]]:
    return {"race": partial(_run, name, settings)}
