"""Figures; every function returns a matplotlib figure. Needs the extra `torchlift[plot]`."""

from torchlift.plot.blocks import blocks
from torchlift.plot.descent import descent
from torchlift.plot.devices import devices
from torchlift.plot.exhibits import exhibit
from torchlift.plot.inversion import gains, pictures, weights
from torchlift.plot.speed import layers
from torchlift.plot.training import training

__all__ = ["blocks", "descent", "devices", "exhibit", "gains", "layers", "pictures", "training", "weights"]
