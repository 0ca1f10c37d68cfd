"""The tables that commands print: numbers under headings, tables of records, and named facts."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from torchlift.report import records
from torchlift.report.records.text import numeric_columns, table_texts

_GAP = 2
"""Blanks after a column."""


def columns(words: Sequence[str], right: Sequence[str] = (), *more: str, title: str | None = None) -> Table:
    """A table for rows of text; on a terminal that it does not fit, a paragraph for each row.

    Arguments:
        words: headings of columns of words, the first of which is never broken.
        right: headings of columns of numbers, right-aligned.
        more: headings of further columns of words.
        title: above it.
    """
    table = _Columns(title=title, title_justify="left", box=None, padding=(0, _GAP, 0, 0))
    table.labels = max(len(words), 1)
    for index, heading in enumerate(words):
        table.add_column(heading, no_wrap=index == 0, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=not words, overflow="fold")
    for heading in more:
        table.add_column(heading, overflow="fold")
    return table


def shown(record: records.Table) -> Table:
    """A table of a record: columns of numbers to the right, in their formats."""
    numeric = numeric_columns(record)
    table = _Columns(title=record.title or None, title_justify="left", box=None, padding=(0, _GAP, 0, 0))
    table.labels = max(numeric.index(True) if True in numeric else len(numeric), 1)
    for index, (heading, right) in enumerate(zip(record.columns, numeric, strict=True)):
        table.add_column(heading, justify="right" if right else "left", no_wrap=index == 0, overflow="fold")
    for row in table_texts(record):
        table.add_row(*row)
    return table


def facts() -> Table:
    """A table for rows (name, text), without headings."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


class _Columns(Table):
    """A table that would rather give up its columns than break words and numbers in two."""

    labels: int
    """Columns at the left that say what a row is about."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self._needs() <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if self.title:
            yield Text(str(self.title), style="table.title")
        names = [str(column.header) for column in self.columns]
        about = [""] * self.labels
        for row in zip(*(map(str, column.cells) for column in self.columns), strict=True):
            about = [cell or before for cell, before in zip(row, about, strict=False)]  # blank: as in the row above
            yield Text(_filled(names, about, options.max_width, ""), style="bold")
            yield Text(_filled(names[self.labels :], row[self.labels :], options.max_width, "  "))

    def _needs(self) -> int:
        """The width in which no number and no word is broken."""
        width = 0
        for index, column in enumerate(self.columns):
            cells = [str(cell) for cell in column.cells]
            if column.justify != "right" and index > 0:
                cells = [word for cell in cells for word in cell.split()]
            width += max(map(cell_len, [*str(column.header).split(), *cells]), default=0) + _GAP
        return width


def _filled(names: Sequence[str], cells: Sequence[str], width: int, indent: str) -> str:
    """A paragraph of names and cells, none of which is broken where it has room on a line of its own."""
    blank = "\N{NO-BREAK SPACE}"
    text = ", ".join(f"{name} {cell}".replace(" ", blank) for name, cell in zip(names, cells, strict=False) if cell)
    lines = textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    return "\n".join(lines).replace(blank, " ")
