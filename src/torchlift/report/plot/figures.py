"""Draws the figures of a record, fit for a paper."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torchlift.core.errors import invalid_type
from torchlift.core.files import unlinked
from torchlift.report import records
from torchlift.report.plot.blocks import draw_blocks, draw_heat_map
from torchlift.report.plot.curves import draw_curves
from torchlift.report.plot.image_rows import draw_pictures
from torchlift.report.records import Blocks, Curves, HeatMap, Pictures
from torchlift.report.records.files import check_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS = 200
_WITHOUT_DATE = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata: the same figure gives the same file."""


def figure(shown: records.Figure, *beside: Curves) -> Figure:
    """A figure of a record, drawn by matplotlib.

    Arguments:
        shown: `Curves`, `Pictures`, `HeatMap` or `Blocks` of `torchlift.report.records`.
        beside: more curves, where the first are some, each in a panel of its own.
    """
    if isinstance(shown, Curves):
        return draw_curves(shown, *beside)
    if isinstance(shown, Pictures):
        return draw_pictures(shown)
    if isinstance(shown, HeatMap):
        return draw_heat_map(shown)
    if isinstance(shown, Blocks):
        return draw_blocks(shown)
    invalid_type("plot.figure", "curves, pictures, a heat map or blocks", shown)


def save_figure(shown: records.Figure, folder: Path) -> list[Path]:
    """Save a figure of a record as PNG, SVG and PDF files named after it."""
    from matplotlib import rc_context

    check_name(shown.name)
    drawn, files = figure(shown), []
    drawn.draw_without_rendering()
    with rc_context({"figure.autolayout": False, "figure.constrained_layout.use": False}):
        # Once is enough for all three; "none" would leave an engine for whose sake every file is drawn twice.
        drawn.set_layout_engine(None)
    # Fonts as outlines of type 42, which publishers ask for; identifiers that do not change from run to run.
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": shown.name}):
        for ending, metadata in _WITHOUT_DATE.items():
            files.append(unlinked(folder / f"{shown.name}.{ending}"))
            drawn.savefig(files[-1], dpi=_DOTS, metadata=metadata)
    return files
