"""Small images as PNG inside the page."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchlift.core.png import Palette, png_uri

GREY = tuple((level, level, level) for level in range(256))


def _between(anchors: Sequence[str], count: int) -> tuple[tuple[int, int, int], ...]:
    """Colours, linear between the given ones."""
    colours = torch.tensor([[int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in anchors], dtype=torch.float64)
    place = torch.linspace(0, len(anchors) - 1, count, dtype=torch.float64)
    left = place.floor().clamp(max=len(anchors) - 2).long()
    mixed = torch.lerp(colours[left], colours[left + 1], (place - left)[:, None])
    return tuple((int(r), int(g), int(b)) for r, g, b in mixed.round().tolist())


ERROR = _between(("#ffffff", "#fdd9b5", "#f4895f", "#c8344a", "#701f57", "#1f0c30"), 64)
"""Colours of absolute errors: white is none."""

HEAT = _between(("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"), 256)
"""Colours of heat maps: equal steps look equal, also to those who see few colours."""


def picture(image: Tensor, largest: float = 1.0, palette: Palette = GREY) -> str:
    """A data URI of an image (H, W), or (3, H, W) in colours: 0 is the first level, `largest` the last; NaN is 0."""
    last = len(palette) - 1
    image = image.movedim(0, -1) if image.ndim == 3 else image
    levels = (torch.nan_to_num(image.detach().double()) / (largest or 1.0) * last).round().clamp(0, last)
    return png_uri(levels.to(torch.uint8), None if palette is GREY else palette)


def bar(palette: Palette) -> str:
    """The colours from first to last, as a data URI one pixel high."""
    return png_uri(torch.arange(len(palette))[None], palette)
