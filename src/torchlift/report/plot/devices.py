"""Draws what steps are predicted to take on many devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torchlift.report.plot.style import COLOURS, SMALL

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def devices(title: str, counts: Sequence[int], methods: Mapping[str, Sequence[tuple[float, float] | None]]) -> Figure:
    """Step times and efficiencies against devices, as `torchlift plan` predicts them.

    Arguments:
        title: above both.
        counts: numbers of devices.
        methods: name ↦ (seconds, efficiency) for each of them, or None.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    figure.suptitle(title, fontsize=10)
    for index, (axis, label) in enumerate(zip(figure.subplots(1, 2), ("seconds per step", "efficiency"), strict=True)):
        for (method, forecasts), colour in zip(methods.items(), COLOURS, strict=False):
            points = [
                (count, forecast[index])
                for count, forecast in zip(counts, forecasts, strict=True)
                if forecast is not None
            ]
            axis.plot(*zip(*points, strict=True), "o-", ms=3, lw=1.4, color=colour, label=method) if points else None
        axis.set_xscale("log", base=2)
        axis.set_xticks(counts, [str(count) for count in counts], fontsize=SMALL)
        axis.set_xlabel("devices")
        axis.set_ylabel(label)
        axis.grid(visible=True, color="0.9", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_yscale("log") if index == 0 else axis.set_ylim(0, 1.05)
    figure.axes[0].legend(frameon=False, fontsize=SMALL)
    return figure
