"""Each kind of figure as HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from torchlift.core.errors import invalid_type
from torchlift.core.png import png_uri
from torchlift.report.images import HEAT, bar, pictures
from torchlift.report.markup import Html, data, join, tag
from torchlift.report.records import Blocks, Curves, Figure, Grid, HeatMap, Pictures, Series, Table
from torchlift.report.records.figures import borders
from torchlift.report.records.text import numeric_columns, table_texts

MOST_POINTS = 1500
"""Points of a drawn curve; longer ones keep the smallest and largest value of each stretch."""
MOST_ROWS = 40
"""Rows of the tables beside curves and heat maps."""
LONG = 24
"""Letters from which on a cell is kept wide."""
MANY = 24
"""Rows of a heat map from which on only some are named."""

ABSENT = (136, 136, 136)


def show(figure: Figure, range_: tuple[float, float] | None = None) -> Html:
    """The figure without its title and note.

    Arguments:
        figure: of any kind.
        range_: values of the first and last colour of a heat map.
    """
    if isinstance(figure, HeatMap):
        return heat_map(figure, range_ or (0.0, 1.0))
    for kind, draw in _KINDS.items():
        if isinstance(figure, kind):
            return draw(figure)
    invalid_type("report figure", f"a {', '.join(kind.__name__ for kind in _KINDS)} or HeatMap", figure)


def table(figure: Table) -> Html:
    """Numbers to the right, words to the left; wide tables scroll by themselves."""
    return plain_table(figure.columns, table_texts(figure), numeric_columns(figure), figure.title)


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], caption: str) -> Html:
    def cells(name: str, texts: Sequence[str], **attributes: object) -> list[Html]:
        return [
            tag(name, text, class_="number" if numeric else "words" if len(text) > LONG else None, **attributes)
            for text, numeric in zip(texts, right, strict=True)
        ]

    head = tag("thead", tag("tr", *cells("th", columns, scope="col")))
    body = tag("tbody", *(tag("tr", *cells("td", row)) for row in rows))
    inner = tag("table", tag("caption", caption, class_="unseen"), head, body)
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=f"Table: {caption}")


def curves(figure: Curves) -> Html:
    """An empty place that the script draws into, the data for it, and the same as tables."""
    groups = dict.fromkeys(series.group or series.label for series in figure.series)
    colours = {group: index for index, group in enumerate(groups)}
    content = {
        "title": figure.title,
        "x": figure.x_label,
        "y": figure.y_label,
        "xLog": figure.x_log,
        "yLog": figure.y_log,
        "series": [_series(series, colours[series.group or series.label]) for series in figure.series],
    }
    without = tag("noscript", tag("p", "Without scripts the curves are not drawn; their values are in the table."))
    return tag("div", data(content), without, _curve_tables(figure), class_="curves")


def _series(series: Series, colour: int) -> dict[str, object]:
    kept = _kept(series)

    def pick(values: Sequence[float | None]) -> list[float | None]:
        return [_short(values[index]) for index in kept] if values else []

    return {
        "label": series.label,
        "colour": colour,
        "dashed": series.dashed,
        "x": pick(series.x),
        "y": pick(series.y),
        "low": pick(series.low),
        "high": pick(series.high),
    }


def _kept(series: Series) -> list[int]:
    """Which points are drawn: all, or the smallest and largest of each stretch, so that no spike is lost."""
    size = len(series.x)
    if size <= MOST_POINTS:
        return list(range(size))
    chosen = {0, size - 1}
    stretches = MOST_POINTS // 2
    for index in range(stretches):
        stretch = range(index * size // stretches, (index + 1) * size // stretches)
        finite = [k for k in stretch if _short(series.y[k]) is not None] or [stretch[0]]
        chosen |= {min(finite, key=lambda k: series.y[k] or 0.0), max(finite, key=lambda k: series.y[k] or 0.0)}
    return sorted(chosen)


def _short(value: float | None) -> float | None:
    """Seven digits are more than can be seen; gaps, NaN and infinities are None."""
    return float(f"{value:.7g}") if value is not None and math.isfinite(value) else None


def _curve_tables(figure: Curves) -> Html:
    """One table for all series over the same places."""
    grids: dict[tuple[float, ...], list[Series]] = {}
    for series in figure.series:
        grids.setdefault(tuple(series.x), []).append(series)
    tables = [
        _thinned(
            [figure.x_label, *(series.label for series in group)],
            len(x),
            lambda index, x=x, group=group: [x[index], *(series.y[index] for series in group)],
            figure.title,
        )
        for x, group in grids.items()
    ]
    return tag("details", tag("summary", f"{figure.y_label} as a table"), *tables)


def _thinned(columns: Sequence[str], count: int, row: Callable[[int], Sequence[float | None]], caption: str) -> Html:
    """A table of numbers, not too long: every so many rows, and the last."""
    step = max(1, math.ceil((count - 1) / (MOST_ROWS - 1)))
    shown = [*range(0, count - 1, step), *range(max(count - 1, 0), count)]
    note = tag("p", f"Every {step}th of {count} rows, and the last.", class_="note") if step > 1 else None
    texts = [[number(value) for value in row(index)] for index in shown]
    return join([note, plain_table(columns, texts, [True] * len(columns), caption)])


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.5g}"


def heat_map(figure: HeatMap, range_: tuple[float, float]) -> Html:
    """Colours as one picture, names of rows beside it, values on hovering and as a table."""
    if not figure.values.numel():
        return tag("p", "No values.", class_="note")
    low, high = range_
    values = figure.values.double()
    step = math.ceil(len(figure.y) / MANY)
    rows = tag(
        "ol",
        *(tag("li", name if index % step == 0 else "") for index, name in enumerate(figure.y)),
        class_="rows many" if step > 1 else "rows",
        aria_hidden="true",
    )
    words = f"{figure.value_label} by {figure.y_label} ({len(figure.y)} rows) and {figure.x_label}"
    hint = "Arrow keys read single values."
    image = tag("img", src=_colours(values, low, high, figure.log), alt="")
    cells = tag("div", image, class_="cells", tabindex=0, role="group", aria_label=f"Heat map: {words}. {hint}")
    places = dict.fromkeys(round(share * (len(figure.x) - 1)) for share in (0, 0.25, 0.5, 0.75, 1))
    axis = tag("div", *(tag("span", number(figure.x[place])) for place in places), class_="axis", aria_hidden="true")
    scale = tag(
        "div",
        tag("span", f"{low:.3g}"),
        tag("img", src=bar(HEAT), alt=f"from dark to light: {low:.3g} to {high:.3g}"),
        tag("span", f"{high:.3g}"),
        tag("span", figure.value_label + (", logarithmic" if figure.log else ""), class_="what"),
        class_="scale",
    )
    content = {
        "x": figure.x_label,
        "columns": [_short(float(number)) for number in figure.x],
        "rows": list(figure.y),
        "values": [[_short(number) for number in row] for row in values.tolist()],
    }

    def row(index: int) -> list[float | None]:
        return [figure.x[index], *(_short(number) for number in values[:, index].tolist())]

    table = _thinned([figure.x_label, *figure.y], len(figure.x), row, figure.title)
    return tag(
        "div",
        data(content),
        tag("div", rows, cells, axis, tag("div", figure.x_label, class_="x-label"), class_="map"),
        scale,
        tag("output", "", class_="reading"),
        tag("details", tag("summary", f"{figure.value_label} as a table"), table),
        class_="heat",
    )


def _colours(values: torch.Tensor, low: float, high: float, log: bool) -> str:
    """The matrix in colours 1 to 255; colour 0 is for what has no value."""
    if log:
        values, low, high = values.clamp(min=0).log(), math.log(low), math.log(high)
    share = (values - low) / ((high - low) or 1.0)
    finite = torch.isfinite(share)
    levels = torch.where(finite, 1 + (share.nan_to_num() * 254).round().clamp(0, 254), 0)
    return png_uri(levels.to(torch.uint8), (ABSENT, *HEAT[1:]))


def blocks(figure: Blocks) -> Html:
    """W, M, V and K beside each other."""
    figures = [
        tag("figure", drawing(grid), tag("figcaption", f"{grid.name}: {_total(grid.rows)} × {_total(grid.columns)}"))
        for grid in figure.grids
    ]
    return tag("div", *figures, class_="grids")


def _total(parts: Sequence[tuple[str, int]]) -> str:
    return f"{sum(size for _, size in parts):,}"


_KINDS: dict[type[Figure], Callable[..., Html]] = {Table: table, Curves: curves, Pictures: pictures, Blocks: blocks}


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
