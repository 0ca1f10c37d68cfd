"""Draws inverted images, and the search for a weight."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torchlift.core.errors import invalid_value
from torchlift.report.plot.image_rows import _LETTER, _LINE
from torchlift.report.plot.curves import draw_curves
from torchlift.report.plot.style import plain
from torchlift.report.records import Curves, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

_FEW = 3
"""Rows of at most so many images become columns."""

_BROAD = 11.0
"""Inches of a figure of many columns."""


def pictures(rows: Mapping[str, Tensor]) -> Figure:
    """Images in named rows, all with the same greys: (B, H, W), (B, 1, H, W) or, for colours, (B, 3, H, W) in [0, 1].

    Rows of few images stand beside each other, as columns under their names.

    Arguments:
        rows: as many images under every name.
    """
    from matplotlib.figure import Figure

    counts = {name: len(images) for name, images in rows.items()}
    if not counts or len(set(counts.values())) > 1:
        invalid_value("plot.pictures", "rows of equally many images", counts or "none")
    for name, images in rows.items():
        if images.ndim != 3 and not (images.ndim == 4 and images.shape[1] in (1, 3)):
            invalid_value(f"plot.pictures {name}", "images of one or three channels", tuple(images.shape))
    columns = max(next(iter(counts.values())), 1)
    if columns <= _FEW and columns < len(rows):
        return _columns(rows, columns)
    figure = Figure(figsize=(1.1 * columns + 1.4, 1.15 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        _show(line, images)
    return figure


def _columns(columns: Mapping[str, Tensor], lines: int) -> Figure:
    """Names from left to right, images from top to bottom."""
    from matplotlib.figure import Figure

    wide = min(2.2, _BROAD / len(columns))
    height, width = next(iter(columns.values())).shape[-2:]
    names = [textwrap.wrap(name, max(int(wide / _LETTER), 8)) for name in columns]
    above = 0.1 + _LINE * max(map(len, names))
    figure = Figure(figsize=(wide * len(columns), above + wide * height / width * lines), layout="constrained")
    axes = figure.subplots(lines, len(columns), squeeze=False)
    for name, line, images in zip(names, axes.T, columns.values(), strict=True):
        line[0].set_title(plain("\n".join(name)), fontsize=9)
        _show(line, images)
    return figure


def weights(rows: Sequence[Mapping[str, float]], chosen: float | None = None) -> Figure:
    """What a rule for the weight saw: the rows of `WeightTrace.rows()`, with the chosen weight marked."""
    if not rows:
        invalid_value("plot.weights", "at least one trial", "none")
    criterion = next(name for name in rows[0] if name != "weight")
    pairs = sorted((row["weight"], row[criterion]) for row in rows)
    values = [value for _, value in pairs]
    series = [Series(criterion, [weight for weight, _ in pairs], values)]
    if chosen is not None:
        series.append(Series(f"chosen: {chosen:.3g}", [chosen] * 2, [min(values), max(values)], dashed=True))
    return draw_curves(Curves("weights", "Search for the weight", "weight", criterion, series, x_log=True))


def _show(axes: Iterable[Axes], images: Tensor) -> None:
    """One image (H, W), (1, H, W) or (3, H, W) in each."""
    pixels = images.detach().cpu().double().clamp(0, 1)
    pixels = pixels.movedim(1, -1).squeeze(-1) if pixels.ndim == 4 else pixels
    for axis, image in zip(axes, pixels.numpy(), strict=True):
        axis.imshow(image, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set(xticks=[], yticks=[])
