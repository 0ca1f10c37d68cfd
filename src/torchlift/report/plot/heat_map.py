"""Draws matrices of numbers as colours."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torchlift.report.plot.style import NARROW, SMALL, TEXT, along, heading, number, plain, tidy
from torchlift.report.records import HeatMap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
