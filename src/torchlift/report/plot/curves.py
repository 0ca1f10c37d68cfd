"""Draws curves over one axis, in one panel or several; and what all drawings share: colours, plain text and axes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from torchlift.report.records import Curves, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


#: Okabe and Ito's colours without yellow, which is too light for lines.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")

TEXT, SMALL, TITLE = 9, 8, 10
"""Sizes of letters, in points."""

NARROW = 4
"""Logarithmic scales over a smaller ratio have evenly spaced ticks: there would be one power of ten at most."""

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def plain(text: str) -> str:
    """Text in which matplotlib finds no mathematics."""
    return text.replace("$", r"\$")


def number(value: float, _position: object = None) -> str:
    """A short number for an axis: 0.05, 1000, 10⁵, 2·10⁻⁶."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    power = "10" + str(int(exponent)).translate(_RAISED)
    return power if digits == "1" else f"{digits}·{power}"


def along(text: str, inches: float) -> str:
    """The name of an axis, broken into lines of this length."""
    return plain(textwrap.fill(text, max(12, int(inches / 0.08))))


def tidy(axis: Axes, x_label: str, y_label: str, size: tuple[float, float]) -> None:
    """Names and plain borders, on a figure of so many inches."""
    axis.set_xlabel(along(x_label, size[0] - 1), fontsize=TEXT)
    axis.set_ylabel(along(y_label, size[1] - 1), fontsize=TEXT)
    axis.tick_params(labelsize=SMALL)
    axis.spines[["top", "right"]].set_visible(False)


def heading(axis: Axes, title: str, width: int) -> None:
    """The title, broken into lines of at most `width` letters."""
    axis.set_title(plain(textwrap.fill(title, width)), fontsize=TITLE, loc="left")


def logarithmic(axis: Axes, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis, if the values allow it, with plain numbers at its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    positive = sorted({value for value in values if value > 0})
    if not positive:
        return
    axis.set(**{f"{which}scale": "log"})
    side = axis.xaxis if which == "x" else axis.yaxis
    few = len(positive) <= 10 and all(b / a >= 1.5 for a, b in pairwise(positive))
    if which == "x" and few:
        side.set_ticks(positive)  # the places that were measured, such as 1, 2, 4, …, 128 layers
        side.set_minor_locator(NullLocator())
    elif positive[-1] / positive[0] < NARROW:
        side.set_major_locator(MaxNLocator(5))
        side.set_minor_locator(NullLocator())
    elif positive[-1] / positive[0] < 100:
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    side.set_major_formatter(FuncFormatter(number))
    side.set_minor_formatter(NullFormatter())


_FEW_POINTS = 16
"""Curves of at most as many points have a dot at each."""
_INSIDE = 4
"""Names that fit into the axes; more stand beside them."""
_PANELS = 3
"""Panels in one line of a figure."""
_LETTERS = 34
"""Letters in one line of a name."""
_LINES = {False: ("-", "-."), True: ("--", ":")}
_DOTS = "os^Dv"


def draw_curves(*panels: Curves) -> Figure:
    """One panel for each, at most three in a line."""
    from matplotlib.figure import Figure

    sizes = [_size(curves) for curves in panels]
    columns = min(len(panels), _PANELS)
    lines = -(-len(panels) // columns)
    wide, high = (max(size[k] for size in sizes) for k in (0, 1))
    figure = Figure(figsize=(wide * columns, high * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, curves in zip(axes, panels, strict=False):
        _draw_panel(axis, curves, high)
    for axis in axes[len(panels) :]:
        axis.set_axis_off()
    return figure


def _size(curves: Curves) -> tuple[float, float]:
    """Inches; where there are many names, they have a place of their own."""
    names = _names(curves)
    if len(names) <= _INSIDE:
        return 6.0, 3.9
    longest = max(len(line) for lines in names for line in lines)
    return 6.6 + 0.065 * longest, max(3.9, 0.8 + 0.16 * sum(map(len, names)))


def _names(curves: Curves) -> list[list[str]]:
    return [textwrap.wrap(series.label, _LETTERS) or [""] for series in curves.series]


def _draw_panel(axis: Axes, curves: Curves, high: float) -> None:
    from matplotlib.ticker import MaxNLocator

    names, looks = _names(curves), _looks(curves.series)
    for series, lines, (colour, line, dot) in zip(curves.series, names, looks, strict=True):
        _draw(axis, series, plain("\n".join(lines)), colour, line, dot)
    tidy(axis, curves.x_label, curves.y_label, (6.0, high))
    heading(axis, curves.title, 70)
    axis.grid(visible=True, color="0.9", linewidth=0.6)
    axis.set_axisbelow(True)
    across = [x for series in curves.series for x in series.x]
    if curves.x_log:
        logarithmic(axis, "x", across)
    elif all(float(x).is_integer() for x in across):
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if curves.y_log:
        logarithmic(axis, "y", [y for series in curves.series for y in series.y if y is not None])
    if len(names) > _INSIDE:
        axis.legend(frameon=False, fontsize=SMALL, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    elif curves.series:
        axis.legend(frameon=True, framealpha=0.8, edgecolor="none", fontsize=SMALL)


def _draw(axis: Axes, series: Series, label: str, colour: str, line: str, dot: str) -> None:
    y = [_known(value) for value in series.y]
    few = len(series.x) <= _FEW_POINTS
    axis.plot(series.x, y, line, marker=dot if few else "", ms=3.5, lw=1.4, color=colour, label=label)
    if series.low and series.high:
        low, high = ([_known(value) for value in border] for border in (series.low, series.high))
        axis.fill_between(series.x, low, high, color=colour, alpha=0.15, linewidth=0)


def _looks(series: Sequence[Series]) -> list[tuple[str, str, str]]:
    """(colour, line, dot) of each: a colour per group, and another line for each of its members."""
    groups: dict[str, int] = {}
    used: dict[tuple[int, bool], int] = {}
    looks: list[tuple[str, str, str]] = []
    for index, curve in enumerate(series):
        group = groups.setdefault(curve.group or f"\0{index}", len(groups))
        place = used[group, curve.dashed] = used.get((group, curve.dashed), -1) + 1
        lines = _LINES[curve.dashed]
        dot = _DOTS[(group // len(COLOURS) + place) % len(_DOTS)]
        looks.append((COLOURS[group % len(COLOURS)], lines[(group // len(COLOURS) + place) % len(lines)], dot))
    return looks


def _known(value: float | None) -> float:
    """Gaps and infinities are not drawn."""
    return math.nan if value is None or not math.isfinite(value) else value
