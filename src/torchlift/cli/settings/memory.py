"""A check that comes before anything large is made."""

from __future__ import annotations

from torchlift.core.errors import invalid_value
from torchlift.training.available import available_memory
from torchlift.training.memory import format_bytes

BYTES = {"float32": 4, "float64": 8}


def check_fits(where: str, numbers: int, dtype: str) -> None:
    """Refuse so many numbers if there is no room for them twice: values and gradients. `train` looks closer."""
    needed, there = 2 * numbers * BYTES[dtype], available_memory()
    if needed > there:
        got = f"{numbers:.3g} numbers, {format_bytes(needed)} with their gradients"
        invalid_value(where, f"something that fits into {format_bytes(there)} of memory", got)
