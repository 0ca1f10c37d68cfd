"""The bundled photographs: sizes, range, licence."""

from __future__ import annotations

import pytest
import torch

from torchlift.core.errors import InvalidValueError
from torchlift.data import load_photographs
from torchlift.data.digits import BUNDLED
from torchlift.data.images import FILE, NAMES


def test_shapes_range_and_dtype() -> None:
    images = load_photographs(dtype=torch.float64)
    assert images.shape == (3, 3, 256, 256) and images.dtype == torch.float64
    assert images.min() == 0 and images.max() == 1
    assert torch.equal((images * 255).round() / 255, images)
    # colour, and no two alike
    assert all(float((image[0] - image[2]).abs().mean()) > 0.05 for image in images)
    with pytest.raises(InvalidValueError, match="floating-point"):
        load_photographs(dtype=torch.uint8)


def test_they_are_small_and_licensed() -> None:
    assert (BUNDLED / f"{FILE}.gz").stat().st_size < 1_000_000
    note = (BUNDLED / "LICENCE-DATA.md").read_text(encoding="utf-8")
    assert all(f"| {name} |" in note for name in NAMES) and "CC0 1.0" in note
