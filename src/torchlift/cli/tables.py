"""The two tables that commands print: numbers under headings, and named facts."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table


def columns(words: Sequence[str], right: Sequence[str] = (), *more: str, title: str | None = None) -> Table:
    """A table for rows of text.

    Arguments:
        words: headings of columns of words, the first of which is never broken.
        right: headings of columns of numbers, right-aligned.
        more: headings of further columns of words.
        title: above it.
    """
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for index, heading in enumerate(words):
        table.add_column(heading, no_wrap=index == 0, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=not words, overflow="fold")
    for heading in more:
        table.add_column(heading, overflow="fold")
    return table


def facts() -> Table:
    """A table for rows (name, text), without headings."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table
