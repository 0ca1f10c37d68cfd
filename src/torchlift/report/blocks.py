"""The block structure of a network as a drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torchlift.report.markup import Html, join, tag
from torchlift.report.records import Grid
from torchlift.report.records.figures import borders

SIDE = 190.0
"""Length of the longer side of a grid, in units of the drawing; a letter of a cell is 5 to 6 wide."""
MARGIN = 30.0
TOP = 22.0
MOST_NAMES = 12

Place = Callable[[float], dict[str, object]]
"""Where a name stands, as attributes."""


def drawing(grid: Grid) -> Html:
    """The non-zero blocks at their (compressed) sizes, with their names."""
    widths, heights = borders(grid.columns), borders(grid.rows)
    unit = SIDE / max(widths[-1], heights[-1], 1e-9)
    lefts, tops = [MARGIN + unit * start for start in widths], [TOP + unit * start for start in heights]
    parts = [
        tag("rect", x=MARGIN, y=TOP, width=_f(lefts[-1] - MARGIN), height=_f(tops[-1] - TOP), class_="empty"),
        *(_rule(lefts[0], top, lefts[-1], top) for top in tops),
        *(_rule(left, tops[0], left, tops[-1]) for left in lefts),
        *(_cell(grid.name, cell, lefts, tops) for cell in grid.cells),
        *_names(grid.columns, lefts, lambda middle: {"x": _f(middle), "y": TOP - 7, "text_anchor": "middle"}),
        *_names(grid.rows, tops, lambda middle: {"x": MARGIN - 5, "y": _f(middle + 3.5), "text_anchor": "end"}),
    ]
    box = f"0 0 {_f(lefts[-1] + 2)} {_f(tops[-1] + 2)}"
    return tag("svg", *parts, viewBox=box, role="img", aria_label=description(grid), class_="blocks")


def description(grid: Grid) -> str:
    """The drawing in words, for those who do not see it."""
    cells = ", ".join(f"{symbol} in row {row + 1}, column {column + 1}" for row, column, symbol in grid.cells[:60])
    more = f" and {len(grid.cells) - 60} more" if len(grid.cells) > 60 else ""
    return f"{grid.name}: {len(grid.rows)} × {len(grid.columns)} blocks; not zero: {cells or 'none'}{more}"


def _cell(name: str, cell: tuple[int, int, str], lefts: Sequence[float], tops: Sequence[float]) -> Html:
    row, column, symbol = cell
    width, height = lefts[column + 1] - lefts[column], tops[row + 1] - tops[row]
    letters = int((width - 4) / 6)
    shown = symbol if len(symbol) <= letters else symbol[: max(letters - 1, 0)] + "…"
    kind = "identity" if symbol.endswith("I") else f"of-{name.lower()}" if name in ("W", "M", "V", "K") else "of-w"
    box = tag(
        "rect", x=_f(lefts[column] + 1), y=_f(tops[row] + 1), width=_f(max(width - 2, 0.5)),
        height=_f(max(height - 2, 0.5)), rx=2,
    )  # fmt: skip
    middle = {"x": _f(lefts[column] + width / 2), "y": _f(tops[row] + height / 2 + 3.5)}
    text = tag("text", _subscript(shown), text_anchor="middle", **middle) if letters >= 1 and height > 9 else None
    return tag("g", tag("title", symbol), box, text, class_=f"block {kind}")


def _names(parts: Sequence[tuple[str, int]], borders: Sequence[float], place: Place) -> list[Html]:
    step = math.ceil(len(parts) / MOST_NAMES)
    return [
        tag("text", _subscript(parts[index][0]), **place((borders[index] + borders[index + 1]) / 2), class_="name")
        for index in range(0, len(parts), step)
    ]


def _subscript(name: str) -> Html:
    """u_12 with a small 12 below."""
    letter, _, index = name.partition("_")
    lowered = tag("tspan", index.strip("{}"), dy=3, class_="index") if index else None
    return join([letter, lowered])


def _rule(x1: float, y1: float, x2: float, y2: float) -> Html:
    return tag("line", x1=_f(x1), y1=_f(y1), x2=_f(x2), y2=_f(y2), class_="rule")


def _f(number: float) -> str:
    return f"{number:.1f}"
