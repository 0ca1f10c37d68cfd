"""Draws rows of images, with maps of their errors where there is a truth; and the search for a weight."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchlift.core.errors import invalid_value
from torchlift.report.plot.curves import SMALL, TEXT, TITLE, draw_curves, plain
from torchlift.report.records import Curves, Pictures, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor


_BESIDE = 6
"""Images in a row up to which the error maps stand beside them; with more they stand below."""
_LETTERS = 18
"""Letters in one line of a label."""

# All lengths are in inches.
_IMAGE, _WIDEST = 0.85, 8.5
_GAP, _BETWEEN, _CAPTION, _MARGIN, _BAR = 0.04, 0.09, 0.16, 0.1, 0.65
_LETTER, _LINE = 0.078, 0.17


@dataclass(frozen=True)
class _Layout:
    """Where everything goes: x from the left, y from the top."""

    label: float
    wide: float
    high: float
    right: float
    """The distance of an image and its error map on its right; 0 if that is below."""
    below: float
    """The distance of an image and its error map below it; 0 if that is beside."""
    columns: int

    def left(self, index: int) -> float:
        return self.label + index * (self.wide + _GAP)


def draw_pictures(shown: Pictures) -> Figure:
    """Each row of images, and its distance from the truth, if there is one."""
    from matplotlib.figure import Figure

    errors = shown.errors()
    layout = _layout(shown, bool(errors))
    total = layout.left(layout.columns) + (_BETWEEN if layout.right else 0.0) + (_BAR if errors else _MARGIN)
    title = textwrap.wrap(shown.title, max(24, int(total / 0.085)))
    top = 2 * _MARGIN + _LINE * len(title)
    heights = [_height(shown, label, layout, label in errors) for label in shown.rows]
    tall = top + sum(heights) + _MARGIN
    figure = Figure(figsize=(total, tall))
    axis = figure.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, total), ylim=(tall, 0))
    axis.set_axis_off()
    axis.text(_MARGIN, _MARGIN, plain("\n".join(title)), fontsize=TITLE, va="top")
    worst = shown.largest_error() or 1.0
    y, maps = top, None
    for (label, images), height in zip(shown.rows.items(), heights, strict=True):
        name = plain(textwrap.fill(label, _LETTERS))
        axis.text(layout.label - 0.08, y + layout.high / 2, name, ha="right", va="center", fontsize=TEXT)
        _draw(axis, layout, (0.0, y), images.detach().cpu().double().clamp(0, 1), "gray", 1.0)
        _caption(axis, layout, y, shown.captions.get(label, ()))
        if label in errors:
            maps = _draw(axis, layout, (layout.right, y + layout.below), errors[label], "inferno", worst)
        y += height
    if maps is not None:
        _bar(figure, maps, total)
    return figure


def _layout(shown: Pictures, compared: bool) -> _Layout:
    count, *_, height, width = next(iter(shown.rows.values())).shape
    beside = compared and count <= _BESIDE
    columns = 2 * count if beside else count
    wide = min(_IMAGE, _WIDEST / max(columns, 1))
    high = wide * height / width
    lines = [line for label in shown.rows for line in textwrap.wrap(label, _LETTERS)]
    return _Layout(
        label=2 * _MARGIN + _LETTER * max(map(len, lines), default=0),
        wide=wide,
        high=high,
        right=count * (wide + _GAP) + _BETWEEN if beside else 0.0,
        below=0.0 if beside or not compared else high + (_CAPTION if shown.captions else _GAP),
        columns=columns,
    )


def _height(shown: Pictures, label: str, layout: _Layout, compared: bool) -> float:
    """What a row takes, with its captions, its error maps and the space after them."""
    if compared and layout.below:
        return layout.below + layout.high + _BETWEEN
    return layout.high + (_CAPTION if label in shown.captions else 0.0) + _BETWEEN


def _draw(axis: Axes, layout: _Layout, place: tuple[float, float], images: Tensor, colours: str, largest: float) -> Any:
    """Images side by side; returns the last one, for a colour bar."""
    from matplotlib.patches import Rectangle

    drawn, (right, y) = None, place
    for index, image in enumerate(torch.unbind(images if images.ndim == 3 else images.movedim(1, -1))):
        x = right + layout.left(index)
        extent = (x, x + layout.wide, y + layout.high, y)
        drawn = axis.imshow(
            image.numpy(), extent=extent, cmap=colours, vmin=0, vmax=largest, interpolation="nearest", aspect="auto"
        )
        axis.add_patch(Rectangle((x, y), layout.wide, layout.high, fill=False, edgecolor="0.75", linewidth=0.4))
    return drawn


def _caption(axis: Axes, layout: _Layout, y: float, captions: Sequence[str]) -> None:
    for index, caption in enumerate(captions):
        place = (layout.left(index) + layout.wide / 2, y + layout.high + 0.02)
        axis.text(*place, plain(caption), ha="center", va="top", fontsize=SMALL - 1)


def _bar(figure: Figure, maps: Any, total: float) -> None:
    """The scale of the errors at the right border, from the bottom up."""
    tall = figure.get_figheight()
    length = min(2.2, tall - 1.0)
    axis = figure.add_axes(((total - _BAR + 0.1) / total, 2 * _MARGIN / tall, 0.1 / total, length / tall))
    figure.colorbar(maps, cax=axis)
    axis.tick_params(labelsize=SMALL - 1, length=2)
    axis.set_title("|error|", fontsize=SMALL, loc="left", pad=4)


_FEW = 3
"""Rows of at most so many images become columns."""

_BROAD = 11.0
"""Inches of a figure of many columns."""


def pictures(rows: Mapping[str, Tensor] | Tensor | Any) -> Figure:
    """Images in named rows, all with the same greys: (B, H, W), (B, 1, H, W) or, for colours, (B, 3, H, W) in [0, 1].

    Rows of few images stand beside each other, as columns under their names.

    Arguments:
        rows: as many images under every name; or one batch of images alone, or what `invert` returns.
    """
    from matplotlib.figure import Figure

    if not isinstance(rows, Mapping):
        rows = {"": getattr(rows, "x", rows)}
    if not all(isinstance(images, torch.Tensor) for images in rows.values()):
        kinds = ", ".join(sorted({type(images).__name__ for images in rows.values()}))
        invalid_value("plot.pictures", "tensors of images, by name or alone", kinds)
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
