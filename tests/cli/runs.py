"""What several tests of the command run."""

from __future__ import annotations

TINY = """
[data]
images = 40
validation = 10

[network]
widths = [12]
activation = "soft-threshold"
threshold = 0.02

[training]
steps = 4
evaluate_every = 2
"""
"""A configuration of four steps on forty images."""
