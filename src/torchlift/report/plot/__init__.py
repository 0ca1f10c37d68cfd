"""Figures; every function returns a matplotlib figure. Needs the extra `torchlift[plot]`."""

from torchlift.core.signatures import check_calls
from torchlift.report.plot.blocks import blocks
from torchlift.report.plot.figures import figure
from torchlift.report.plot.image_rows import pictures, weights
from torchlift.report.plot.training import training

__all__ = ["blocks", "figure", "pictures", "training", "weights"]

check_calls(__name__)
