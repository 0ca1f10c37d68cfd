"""Draws how solvers descend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3")


def descent(runs: Sequence[dict[str, Any]]) -> Figure:
    """Objective against steps and seconds, and PSNR against seconds, for the records of `torchlift bench solvers`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.8), layout="constrained")
    axes = figure.subplots(1, 3)
    for run, colour in zip(runs, _COLOURS, strict=False):
        axes[0].loglog([step + 1 for step in run["steps"]], run["values"], color=colour, label=run["name"])
        axes[1].semilogy(run["seconds"], run["values"], color=colour)
        axes[2].plot(run["seconds"], run["psnr"], color=colour)
    for axis, (across, up) in zip(
        axes, (("step", "objective"), ("seconds", "objective"), ("seconds", "PSNR (dB)")), strict=True
    ):
        axis.set_xlabel(across)
        axis.set_ylabel(up)
        axis.grid(visible=True, color="0.9")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(frameon=False, fontsize=8)
    return figure
