"""What work leaves behind for people: claims, tables, curves and pictures, on disk and ready to be shown."""

from torchlift.records.blocks import network_blocks
from torchlift.records.environment import environment
from torchlift.records.exhibits import (
    Blocks,
    Cell,
    Curves,
    Exhibit,
    Grid,
    HeatMap,
    Pictures,
    Record,
    Series,
    Table,
    Verdict,
)
from torchlift.records.files import load_record, save_record
from torchlift.records.text import cell_text, latex, markdown, record_markdown

__all__ = [
    "Blocks",
    "Cell",
    "Curves",
    "Exhibit",
    "Grid",
    "HeatMap",
    "Pictures",
    "Record",
    "Series",
    "Table",
    "Verdict",
    "cell_text",
    "environment",
    "latex",
    "load_record",
    "markdown",
    "network_blocks",
    "record_markdown",
    "save_record",
]
