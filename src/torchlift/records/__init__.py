"""What work leaves behind for people: claims, tables, curves and pictures, on disk and ready to be shown."""

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
    "environment",
    "load_record",
    "save_record",
]
