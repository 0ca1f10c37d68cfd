"""Draws rows of images on one grey scale, with maps of their errors on one colour scale."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchlift.report.plot.style import SMALL, TEXT, TITLE, plain
from torchlift.report.records import Pictures

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
