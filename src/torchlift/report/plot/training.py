"""Draws how networks learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from torchlift.core.checks import check_choice
from torchlift.core.errors import invalid_type, invalid_value

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]

_COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3")
_KINDS = ("train", "validation")
_AXES = ("step", "seconds", "epoch")

MEASURES = {
    "accuracy": ("accuracy (%)", max),
    "psnr": ("PSNR (dB)", max),
    "ssim": ("SSIM", max),
    "mse": ("mean squared error", min),
    "nmse": ("NMSE (dB)", min),
}
"""Label, and which value is best; of other metrics no best one is marked."""


def training(
    *histories: Rows, labels: Sequence[str] | None = None, metric: str | None = None, against: str = "step"
) -> Figure:
    """Loss on training (lines) and validation data (dots), and a validation metric with its best value marked.

    Phases are shaded in turn for one history; several histories have a dotted
    line where a phase of theirs begins.

    Arguments:
        histories: of one run each: what `tl.train` returns as `.history`, or the same rows as a list of dicts.
        labels: names of the runs.
        metric: in the right-hand panel; by default the first one of the validation rows. Without any
            there is one panel.
        against: "step", "seconds" or "epoch".
    """
    from matplotlib.figure import Figure

    _check(histories, labels, metric, against)
    metric = metric or next(iter(_metrics(histories)), None)
    figure = Figure(figsize=(10 if metric else 5.5, 3.8), layout="constrained")
    axes = figure.subplots(1, 2 if metric else 1, squeeze=False, sharex=True)[0]
    several = len(histories) > 1
    names = labels or [f"run {number}" if several else "" for number in range(1, len(histories) + 1)]
    for index, (rows, name) in enumerate(zip(histories, names, strict=True)):
        colour = _COLOURS[index % len(_COLOURS)]
        _draw_loss(axes[0], rows, against, colour, name)
        if metric:
            _draw_metric(axes[1], rows, against, metric, colour)
        for axis in axes:
            if several:
                _draw_starts(axis, rows, against, colour)
            else:
                _shade_phases(axis, rows, against)
    titles = ["loss", MEASURES.get(metric, (metric,))[0]] if metric else ["loss"]
    for axis, title in zip(axes, titles, strict=True):
        axis.set_xlabel(against)
        axis.set_ylabel(title)
        axis.grid(visible=True, color="0.9")
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    _scale(axes[0], [y for rows in histories for kind in _KINDS for y in _points(rows, kind, "loss", against)[1]])
    if (several or labels) and any(line.get_linestyle() == "--" for line in axes[0].lines):
        axes[0].plot([], [], "o--", color="0.5", ms=3, lw=0.8, label="validation")
    if several or labels or len(axes[0].lines) > 1:
        axes[0].legend(frameon=False, fontsize=8)
    return figure


def _draw_loss(axis: Axes, rows: Rows, against: str, colour: str, name: str) -> None:
    axis.plot(*_points(rows, "train", "loss", against), color=colour, lw=1.2, label=name or "training")
    validated = _points(rows, "validation", "loss", against)
    if validated[0]:
        label = "_several" if name else "validation"  # the underscore keeps it out of the legend
        axis.plot(*validated, "o--", color=colour, ms=3, lw=0.8, alpha=0.7, label=label)


def _scale(axis: Axes, losses: list[float]) -> None:
    """Logarithmic, with plain numbers at the ticks, unless a loss is zero or negative."""
    from matplotlib.ticker import LogFormatter

    if all(y > 0 for y in losses):
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(LogFormatter())
        axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))


def _draw_metric(axis: Axes, rows: Rows, against: str, metric: str, colour: str) -> None:
    x, y = _points(rows, "validation", metric, against)
    axis.margins(y=0.1)  # for the label of the best
    axis.plot(x, y, "o-", color=colour, ms=3, lw=1.2)
    finite = [pair for pair in zip(y, x, strict=True) if math.isfinite(pair[0])]
    if metric in MEASURES and finite:
        value, where = MEASURES[metric][1](finite, key=lambda pair: pair[0])
        axis.plot([where], [value], "*", color=colour, ms=11, mec="white", mew=0.6, zorder=3)
        # to the left: the best is often the last, and the frame near
        axis.annotate(
            f"{value:.4g}", (where, value), (-7, 4), textcoords="offset points", ha="right", fontsize=8, color=colour
        )


def _shade_phases(axis: Axes, rows: Rows, against: str) -> None:
    """Every second phase on grey, each with its name on top, if there is more than one."""
    starts = _starts(rows, against)
    if len(starts) < 2:
        return
    ends = [*(x for _, x in starts[1:]), max(row[against] for row in rows if row[against] is not None)]
    for index, ((name, left), right) in enumerate(zip(starts, ends, strict=True)):
        if index % 2:
            axis.axvspan(left, right, color="0.94", lw=0, zorder=0)
        top = axis.get_xaxis_transform()
        axis.text((left + right) / 2, 1.01, name, transform=top, ha="center", va="bottom", fontsize=8, color="0.4")


def _draw_starts(axis: Axes, rows: Rows, against: str, colour: str) -> None:
    """A dotted line where a phase follows another."""
    for _, x in _starts(rows, against)[1:]:
        axis.axvline(x, color=colour, ls=":", lw=1.2, zorder=1)


def _starts(rows: Rows, against: str) -> list[tuple[str, float]]:
    """(name, where it begins) of each phase; a row stands for what was before it, so that is the end of the last."""
    placed = [row for row in rows if row[against] is not None]
    groups = [(name, list(group)) for name, group in groupby(placed, key=lambda row: row["phase"])]
    begins = [0.0, *(group[-1][against] for _, group in groups[:-1])]
    return [(name, x) for (name, _), x in zip(groups, begins, strict=False)]


def _points(rows: Rows, kind: str, name: str, against: str) -> tuple[list[float], list[float]]:
    """Where, and how large: the rows of a kind with a value, in a field or among the metrics."""
    chosen = [row for row in rows if row["kind"] == kind]
    pairs = [(row[against], row["metrics"].get(name) if row.get(name) is None else row[name]) for row in chosen]
    points = [(x, y) for x, y in pairs if x is not None and y is not None]
    return [x for x, _ in points], [y for _, y in points]


def _metrics(histories: Sequence[Rows]) -> list[str]:
    """All metrics but the loss, in their order."""
    rows = (row for rows in histories for row in rows if row["kind"] == "validation")
    return list(dict.fromkeys(name for row in rows for name in row["metrics"] if name != "loss"))


def _check(histories: Sequence[Rows], labels: Sequence[str] | None, metric: str | None, against: str) -> None:
    if not histories:
        invalid_value("plot.training", "at least one history", "none")
    for rows in histories:
        if not isinstance(rows, Sequence) or not all(isinstance(row, Mapping) for row in rows):
            hint = "Pass several as plot.training(*histories)."
            invalid_type("plot.training", "histories, each a sequence of rows", rows, hint)
    if labels is not None and len(labels) != len(histories):
        invalid_value("plot.training labels", f"{len(histories)}, one per history", len(labels))
    if metric is not None and metric not in _metrics(histories):
        metrics = ", ".join(_metrics(histories)) or "none: no validation row has metrics"
        invalid_value("plot.training metric", f"one of {metrics}", repr(metric))
    check_choice("plot.training against", against, _AXES)
