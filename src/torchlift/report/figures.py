"""Each kind of figure as HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from torchlift.core.errors import invalid_type
from torchlift.core.png import png_uri
from torchlift.report.blocks import drawing
from torchlift.report.images import HEAT, bar, pictures
from torchlift.report.markup import Html, data, join, tag
from torchlift.report.records import Blocks, Curves, Figure, HeatMap, Pictures, Series, Table
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
