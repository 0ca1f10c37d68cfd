"""Figures; every function returns a matplotlib figure. Needs the extra `torchlift[plot]`."""

from torchlift.plot.blocks import blocks

__all__ = ["blocks"]
