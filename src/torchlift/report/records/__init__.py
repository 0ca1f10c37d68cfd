"""What work leaves behind for people: claims, tables, curves and pictures, on disk and ready to be shown."""

from torchlift.core.signatures import check_calls
from torchlift.report.records.environment import environment
from torchlift.report.records.figures import (
    Blocks,
    Cell,
    Claim,
    Curves,
    Figure,
    Grid,
    HeatMap,
    Pictures,
    Record,
    Series,
    Table,
    network_blocks,
)
from torchlift.report.records.files import load_record, save_record
from torchlift.report.records.text import cell_text, latex, markdown, record_markdown

__all__ = [
    "Blocks",
    "Cell",
    "Claim",
    "Curves",
    "Figure",
    "Grid",
    "HeatMap",
    "Pictures",
    "Record",
    "Series",
    "Table",
    "cell_text",
    "environment",
    "latex",
    "load_record",
    "markdown",
    "network_blocks",
    "record_markdown",
    "save_record",
]

check_calls(__name__)
