"""Tables of the command on wide and narrow terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from torchlift.cli.tables import columns


def shown(width: int) -> list[str]:
    table = columns(["devices", "method"], ["training", "memory"], "mesh", title="Forecast")
    table.add_row("1", "late sweeps", "5.59 h", "1.517 TB", "data=1,layers=1")
    table.add_row("", "lifting", "234 d", "", "no mesh allows it")
    console = Console(file=io.StringIO(), width=width, highlight=False, markup=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_wide_terminal_shows_columns() -> None:
    assert shown(60)[:3] == [
        "Forecast",
        "devices  method       training    memory  mesh",
        "1        late sweeps    5.59 h  1.517 TB  data=1,layers=1",
    ]


def test_a_narrow_terminal_shows_a_paragraph_for_each_row() -> None:
    assert shown(40) == [
        "Forecast",
        "devices 1, method late sweeps",
        "  training 5.59 h, memory 1.517 TB,",
        "  mesh data=1,layers=1",
        "devices 1, method lifting",
        "  training 234 d, mesh no mesh allows it",
    ]


@pytest.mark.parametrize("width", range(15, 100, 7))
def test_no_line_is_longer_than_the_terminal(width: int) -> None:
    assert max(map(len, shown(width))) <= width
