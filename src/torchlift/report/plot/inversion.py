"""Draws inverted images, and the search for a weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchlift.core.errors import invalid_value
from torchlift.report.plot.curves import draw_curves
from torchlift.report.records import Curves, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor


def pictures(rows: Mapping[str, Tensor]) -> Figure:
    """Images in named rows, all with the same greys: (B, H, W), (B, 1, H, W) or, for colours, (B, 3, H, W) in [0, 1].

    Arguments:
        rows: as many images under every name.
    """
    from matplotlib.figure import Figure

    counts = {name: len(images) for name, images in rows.items()}
    if not counts or len(set(counts.values())) > 1:
        invalid_value("plot.pictures", "rows of equally many images", counts or "none")
    for name, images in rows.items():
        if images.ndim != 3 and not (images.ndim == 4 and images.shape[1] in (1, 3)):
            invalid_value(f"plot.pictures {name}", "images of one or three channels", tuple(images.shape))
    columns = max(next(iter(counts.values())), 1)
    figure = Figure(figsize=(1.1 * columns + 1.4, 1.15 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=9)
        for axis, image in zip(line, images.detach().cpu(), strict=True):
            axis.imshow(_pixels(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set(xticks=[], yticks=[])
    return figure


def weights(rows: Sequence[Mapping[str, float]], chosen: float | None = None) -> Figure:
    """What a rule for the weight saw: the rows of `WeightTrace.rows()`, with the chosen weight marked."""
    if not rows:
        invalid_value("plot.weights", "at least one trial", "none")
    criterion = next(name for name in rows[0] if name != "weight")
    pairs = sorted((row["weight"], row[criterion]) for row in rows)
    values = [value for _, value in pairs]
    series = [Series(criterion, [weight for weight, _ in pairs], values)]
    if chosen is not None:
        series.append(Series(f"chosen: {chosen:.3g}", [chosen] * 2, [min(values), max(values)], dashed=True))
    return draw_curves(Curves("weights", "Search for the weight", "weight", criterion, series, x_log=True))


def _pixels(image: Tensor) -> Any:
    """(H, W) or (H, W, 3) in [0, 1]."""
    image = image.double().clamp(0, 1)
    return (image if image.ndim == 2 else image[0] if len(image) == 1 else image.movedim(0, -1)).numpy()
