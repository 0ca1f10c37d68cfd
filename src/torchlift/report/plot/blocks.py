"""Draws the block structure of a network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torchlift.core.errors import invalid_type
from torchlift.report.plot.style import SMALL, TITLE, plain
from torchlift.report.records import Blocks, Grid, network_blocks
from torchlift.report.records.figures import borders

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_IDENTITY, _OTHER = "#9ecae1", "#bdbdbd"
_COLOURS = {"W": "#4292c6", "V": "#41ab5d", "K": "#dd8452", "M": "#807dba"}
_WIDE, _HIGH = 4.9, 3.4
"""Inches of a panel."""
_POINTS = 72 / 0.65
"""Per inch, over the width of a letter relative to its height."""
_SMALLEST = 3.5
"""Letters, in points; smaller ones are left out."""
_INDEXED = re.compile(r"([A-Za-z]+)_(\d+)")


def blocks(network: Any) -> Figure:
    """W, M, V and K as grids whose cells are drawn at the (compressed) size of their blocks.

    Arguments:
        network: any torchlift network.
    """
    if not hasattr(network, "operators"):
        invalid_type("plot.blocks", "a torchlift network", network)
    return draw_blocks(network_blocks(network))


def draw_blocks(shown: Blocks) -> Figure:
    """One panel per grid, two in a line."""
    from matplotlib.figure import Figure

    lines = (len(shown.grids) + 1) // 2
    figure = Figure(figsize=(11, 4 * lines), layout="constrained")
    axes = figure.subplots(lines, 2, squeeze=False).flatten()
    for axis, grid in zip(axes, shown.grids, strict=False):
        _draw(axis, grid)
    for axis in axes[len(shown.grids) :]:
        axis.set_axis_off()
    figure.suptitle(plain(shown.title), fontsize=TITLE + 1)
    return figure


def _draw(axis: Axes, grid: Grid) -> None:
    from matplotlib.patches import Rectangle

    tops, lefts = borders(grid.rows), borders(grid.columns)
    scale = max(lefts[-1] / _WIDE, tops[-1] / _HIGH)
    for i, j, symbol in grid.cells:
        height, width = tops[i + 1] - tops[i], lefts[j + 1] - lefts[j]
        colour = _IDENTITY if symbol.endswith("I") else _COLOURS.get(grid.name, _OTHER)
        axis.add_patch(Rectangle((lefts[j], tops[i]), width, height, facecolor=colour, edgecolor="white"))
        label = symbol if len(symbol) <= 14 else symbol[:12] + "…"
        size = min(SMALL, _POINTS * width / (scale * len(label)), _POINTS * height / (2 * scale))
        if size >= _SMALLEST:
            centre = (lefts[j] + width / 2, tops[i] + height / 2)
            axis.text(*centre, plain(label), ha="center", va="center", fontsize=size, clip_on=True)
    axis.set_xlim(0, lefts[-1])
    axis.set_ylim(tops[-1], 0)
    axis.set_aspect("equal")
    axis.hlines(tops, 0, lefts[-1], colors="0.85", linewidths=0.5)
    axis.vlines(lefts, 0, tops[-1], colors="0.85", linewidths=0.5)
    axis.set_title(plain(f"{grid.name}:  {_total(grid.rows)} × {_total(grid.columns)}"), fontsize=TITLE)
    axis.xaxis.tick_top()
    axis.set_xticks(*_ticks(grid.columns, lefts))
    axis.set_yticks(*_ticks(grid.rows, tops))
    axis.tick_params(length=0, labelsize=SMALL)


def _ticks(margin: Sequence[tuple[str, int]], edges: list[float]) -> tuple[list[float], list[str]]:
    """Where, and what is written there: a dozen names at most."""
    step = max(1, len(margin) // 12)
    middles = [(a + b) / 2 for a, b in pairwise(edges)]
    return middles[::step], [_label(name) for name, _ in margin[::step]]


def _label(name: str) -> str:
    """u_12 as mathematics."""
    match = _INDEXED.fullmatch(name)
    return f"${match[1]}_{{{match[2]}}}$" if match else plain(name)


def _total(margin: Sequence[tuple[str, int]]) -> int:
    return sum(size for _, size in margin)
