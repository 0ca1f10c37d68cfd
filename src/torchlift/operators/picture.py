"""Pictures of block operators, in text and HTML, so that a person sees the architecture."""

from __future__ import annotations

import html as escape_html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchlift.core.checks import Shape
    from torchlift.operators.blocks import BlockOperator

#: Grids with more rows or columns than this show their first and last ones only.
MOST = 12
ZERO, GAP = "·", "⋯"


def size(shape: Shape) -> str:
    return "×".join(map(str, shape))


def _kept(count: int) -> list[int | None]:
    """Indices to show; None stands for the ones left out."""
    if count <= MOST:
        return list(range(count))
    half = MOST // 2
    return [*range(half), None, *range(count - half, count)]


def _cells(operator: BlockOperator) -> tuple[list[str], list[list[str]]]:
    """Column headings, and per row its heading followed by its cells."""
    columns, rows = _kept(len(operator.column_shapes)), _kept(len(operator.row_shapes))
    heading = ["", *(GAP if j is None else _label(operator.column_name, operator.column_shapes, j) for j in columns)]
    body = []
    for i in rows:
        if i is None:
            body.append([GAP] * len(heading))
            continue
        symbols = {j: block.symbol() for (row, j), block in operator.blocks.items() if row == i}
        cells = [GAP if j is None else symbols.get(j, ZERO) for j in columns]
        body.append([_label(operator.row_name, operator.row_shapes, i), *cells])
    return heading, body


def _label(name: str, shapes: tuple[Shape, ...], index: int) -> str:
    return f"{name.format(index, index + 1)} ({size(shapes[index])})"


def text(operator: BlockOperator) -> str:
    """A monospaced grid with shapes on its margins."""
    if not operator.row_shapes:
        return "(no rows)"
    heading, body = _cells(operator)
    table = [heading, *body]
    widths = [max(len(line[k]) for line in table) for k in range(len(heading))]
    lines = ["  ".join(cell.center(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join(lines)


def html(operator: BlockOperator) -> str:
    """The same grid as an HTML table, with everything escaped."""
    heading, body = _cells(operator)
    cell = "padding:2px 8px;text-align:center;border:1px solid #8884"
    head = "".join(f'<th style="{cell}">{escape_html.escape(name)}</th>' for name in heading)
    lines = [f"<tr>{head}</tr>"]
    for name, *cells in body:
        filled = "".join(
            f'<td style="{cell}{"" if c in (ZERO, GAP) else ";background:#4a90d933"}">{escape_html.escape(c)}</td>'
            for c in cells
        )
        lines.append(f'<tr><th style="{cell}">{escape_html.escape(name)}</th>{filled}</tr>')
    rows, columns = _total(operator.row_shapes), _total(operator.column_shapes)
    caption = f"{rows} × {columns}, {len(operator.blocks)} blocks"
    return f'<table style="border-collapse:collapse"><caption>{caption}</caption>{"".join(lines)}</table>'


def _total(shapes: tuple[Shape, ...]) -> int:
    return sum(math.prod(shape) for shape in shapes)
