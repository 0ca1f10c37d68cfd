"""Small pieces of HTML for notebooks: tables, a curve, a strip of images. Everything is escaped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

import torch
from torch import Tensor

from torchlift.core.png import png_uri

#: Points of a curve and images of a strip at most.
POINTS, IMAGES = 120, 10
#: Pixels of a strip at most, so that a notebook stays small.
LARGEST = 1 << 18
_WIDTH, _HEIGHT, _MARGIN = 220, 48, 3
#: Curves that fall by more than this are drawn on a logarithmic scale.
_LOGARITHMIC = 20.0


def facts(caption: str, rows: Mapping[str, object]) -> str:
    """A table of names and values."""
    lines = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in rows.items())
    return f"<table><caption>{escape(caption)}</caption>{lines}</table>"


def curve(name: str, values: Sequence[float]) -> str:
    """A small SVG of values in their order, with the first and the last in words; nothing for fewer than two.

    Values that are not finite are gaps in time, not in the line: they are left out.
    """
    finite = [(k, float(value)) for k, value in enumerate(values) if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    first, last = finite[0][1], finite[-1][1]
    step = (len(finite) - 1) / (min(len(finite), POINTS) - 1)
    kept = [finite[round(k * step)] for k in range(min(len(finite), POINTS))]
    low, high = min(value for _, value in kept), max(value for _, value in kept)
    logarithmic = low > 0 and high > _LOGARITHMIC * low
    scaled = [math.log(value) if logarithmic else value for _, value in kept]
    bottom, spread = min(scaled), (max(scaled) - min(scaled)) or 1.0
    reach = kept[-1][0] - kept[0][0]
    points = " ".join(
        f"{_MARGIN + (_WIDTH - 2 * _MARGIN) * (k - kept[0][0]) / reach:.1f},"
        f"{_HEIGHT - _MARGIN - (_HEIGHT - 2 * _MARGIN) * (value - bottom) / spread:.1f}"
        for (k, _), value in zip(kept, scaled, strict=True)
    )
    words = f"{name}: {first:.4g} → {last:.4g}{', logarithmic' if logarithmic else ''}"
    line = f'<polyline points="{points}" fill="none" stroke="#1b6ca8" stroke-width="1.5"/>'
    return (
        f'<figure style="display:inline-block;margin:4px 12px 4px 0"><svg role="img" aria-label="{escape(words)}" '
        f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">{line}</svg>'
        f"<figcaption>{escape(words)}</figcaption></figure>"
    )


def strip(name: str, images: Tensor) -> str:
    """The first images (B, H, W) or (B, 1, H, W) side by side, 0 black and 1 white; nothing for other shapes."""
    shown = images.detach()[:IMAGES]
    shown = shown[:, 0] if shown.ndim == 4 and shown.shape[1] == 1 else shown
    if shown.ndim != 3 or not shown.numel() or shown.numel() > LARGEST:
        return ""
    levels = (torch.nan_to_num(shown.cpu().double()) * 255).round().clamp(0, 255).to(torch.uint8)
    framed = torch.nn.functional.pad(levels, (0, 1), value=128).transpose(0, 1).flatten(1)[:, :-1]
    words = f"{name}: {len(shown)} of {len(images)}" if len(images) > len(shown) else name
    style = "image-rendering:pixelated;max-width:100%"
    size = f'width="{2 * framed.shape[1]}" height="{2 * framed.shape[0]}"'
    return f'<img alt="{escape(words)}" {size} style="{style}" src="{png_uri(framed)}">'
