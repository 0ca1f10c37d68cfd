"""Draws how run times grow with the number of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = {
    "forward": ("#1b6ca8", "-", "vectorised"),
    "forward_loop": ("#1b6ca8", "--", "loop"),
    "gradients": ("#c8553d", "-", "vectorised"),
    "gradients_loop": ("#c8553d", "--", "loop"),
    "gradients_autograd": ("#c8553d", ":", "loop, autograd"),
}


def layers(records: Sequence[dict[str, Any]]) -> Figure:
    """Milliseconds against layers for the records of `torchlift bench layers`: one column per size."""
    from matplotlib.figure import Figure

    sizes = list(dict.fromkeys((record["width"], record["batch"]) for record in records))
    figure = Figure(figsize=(3.2 * len(sizes) + 0.8, 5.6), layout="constrained")
    axes = figure.subplots(2, len(sizes), sharex=True, squeeze=False)
    for column, (width, batch) in enumerate(sizes):
        rows = [record for record in records if (record["width"], record["batch"]) == (width, batch)]
        for name, (colour, style, label) in _LINES.items():
            axis = axes[0 if name.startswith("forward") else 1, column]
            depths = [row["layers"] for row in rows]
            axis.loglog(depths, [row[name] for row in rows], style, color=colour, marker="o", ms=3, label=label)
        axes[0, column].set_title(f"width {width}, batch {batch}", fontsize=10)
        axes[1, column].set_xlabel("layers")
    for axis, text in ((axes[0, 0], "all layers (ms)"), (axes[1, 0], "all gradients (ms)")):
        axis.set_ylabel(text)
        axis.legend(frameon=False, fontsize=8)
    for axis in axes.flat:
        axis.grid(visible=True, which="major", color="0.9")
        axis.spines[["top", "right"]].set_visible(False)
    return figure
