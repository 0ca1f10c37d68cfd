"""What a description claims, before anything of that size is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torchlift.core.errors import invalid_value

MOST_ITERATIONS = 100_000
"""Of an unrolled network; shared weights would make any number of them free to claim."""

_CONVOLUTIONS = ("Conv2d", "ConvTranspose2d")


def check_claim(architecture: Any, stored: int) -> None:
    """Refuse an architecture with more parameters than are stored beside it: building it would take the memory.

    Arguments:
        architecture: JSON values, of which nothing is known yet.
        stored: how many numbers the file of tensors holds.
    """
    if (claimed := _claimed(architecture)) > stored:
        invalid_value("load_model", f"an architecture of at most the {stored} numbers that are stored", claimed)
    iterations = architecture.get("iterations") if isinstance(architecture, Mapping) else None
    if isinstance(iterations, int) and iterations > MOST_ITERATIONS:
        invalid_value("load_model iterations", f"at most {MOST_ITERATIONS}", iterations)


def _claimed(description: Any) -> int:
    """Numbers that the parameters of a description consist of; what is no size counts nothing, and fails later."""
    if isinstance(description, list):
        return sum(map(_claimed, description))
    if not isinstance(description, Mapping):
        return 0
    size = description.get
    if size("module") == "Linear":
        return _product(size("in_features"), size("out_features"))
    if size("module") in _CONVOLUTIONS:
        kernel = size("kernel_size")
        sides = kernel if isinstance(kernel, list) else [kernel, kernel]
        return _product(size("in_channels"), size("out_channels"), *sides) // max(1, _size(size("groups")))
    if size("network") == "Shallow":
        hidden = size("hidden")
        widths = sum(map(_size, hidden)) if isinstance(hidden, list) else _size(hidden)
        return _product(size("in_features"), widths) + _product(widths, size("out_features"))
    shape = size("shape")
    if size("network") in ("DDFB", "ScCP", "FirmDenoiser"):
        copies = 1 if size("tied") else size("iterations")
        channels = shape[0] if isinstance(shape, list) and shape else 0
        return _product(copies, size("features"), channels, size("size"), size("size"))
    if isinstance(shape, list) and "dtype" in description:
        return _product(*shape)
    inner = sum(map(_claimed, description.values()))
    untied = size("network") in ("LISTA", "PrimalDual") and not size("tied")
    return max(inner, _size(size("iterations"))) if untied else inner


def _product(*sizes: Any) -> int:
    return math.prod(map(_size, sizes))


def _size(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0
