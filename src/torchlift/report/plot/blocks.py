"""Draws the block structure of a network, and matrices of numbers as colours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torchlift.core.errors import invalid_type
from torchlift.report.plot.curves import NARROW, SMALL, TEXT, TITLE, along, heading, number, plain, tidy
from torchlift.report.records import Blocks, Grid, HeatMap, network_blocks
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


_SMALL = (10, 14)
"""Matrices of at most so many columns and rows have their numbers in the cells."""
_LABELS = 24


def draw_heat_map(shown: HeatMap) -> Figure:
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

    rows, columns = len(shown.y), len(shown.x)
    numbered = columns <= _SMALL[0] and rows <= _SMALL[1]
    height = min(7.0, max(2.4, 1.3 + 0.3 * rows))
    width = max(4.6, 2.6 + 0.62 * columns) if numbered else 6.8
    figure = Figure(figsize=(width, height), layout="constrained")
    axis = figure.subplots()
    by_place = numbered or any(a >= b for a, b in pairwise(shown.x))
    edges = [index - 0.5 for index in range(columns + 1)] if by_place else _edges(shown.x)
    values = shown.values.detach().cpu().double().numpy()
    mesh = axis.pcolormesh(
        edges, [index - 0.5 for index in range(rows + 1)], values, norm=_norm(values, shown.log), cmap="viridis"
    )
    mesh.set_rasterized(True)
    axis.set_facecolor("0.8")  # where there is no number
    axis.invert_yaxis()
    if by_place:
        step = 1 + (columns - 1) // _SMALL[0]
        axis.set_xticks(range(0, columns, step), [number(x) for x in shown.x[::step]])
    step = 1 + (rows - 1) // _LABELS
    axis.set_yticks(range(0, rows, step), [plain(name) for name in shown.y[::step]])
    tidy(axis, shown.x_label, shown.y_label, (width, height))
    axis.tick_params(length=2)
    heading(axis, shown.title, int(11 * (width - 1)))
    if numbered:
        _write(axis, mesh, values)
    bar = figure.colorbar(mesh, ax=axis, pad=0.02, format=FuncFormatter(number))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    low, high = mesh.get_clim()
    if isinstance(mesh.norm, LogNorm) and high < NARROW * low:
        bar.ax.yaxis.set_major_locator(MaxNLocator(5))
        bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.set_label(along(shown.value_label, height - 0.8), fontsize=TEXT)
    bar.ax.tick_params(labelsize=SMALL)
    bar.outline.set_visible(False)
    return figure


def _edges(x: Sequence[float]) -> list[float]:
    """Half-way between neighbours."""
    if len(x) == 1:
        return [x[0] - 0.5, x[0] + 0.5]
    middles = [(a + b) / 2 for a, b in pairwise(x)]
    return [2 * x[0] - middles[0], *middles, 2 * x[-1] - middles[-1]]


def _norm(values: Any, log: bool) -> Any:
    """The scale of colours, from the least to the largest number that can be shown."""
    import numpy as np
    from matplotlib.colors import LogNorm, Normalize

    shown = values[np.isfinite(values) & ((values > 0) | (not log))]
    if not shown.size:
        return Normalize(0, 1)
    low, high = float(shown.min()), float(shown.max())
    return LogNorm(low, high) if log and low < high else Normalize(low, high if low < high else low + 1)


def _write(axis: Axes, mesh: Any, values: Any) -> None:
    """The numbers, dark on light cells and light on dark ones."""
    import numpy as np

    for (row, column), value in np.ndenumerate(values):
        if not np.isfinite(value):
            continue
        red, green, blue, _ = mesh.cmap(mesh.norm(value))
        colour = "black" if 0.3 * red + 0.59 * green + 0.11 * blue > 0.5 else "white"
        axis.text(column, row, number(float(f"{value:.3g}")), ha="center", va="center", fontsize=SMALL, color=colour)
