"""Draws inverted images, the search for a weight, and gains over a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torchlift.core.errors import invalid_value

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
    from matplotlib.figure import Figure

    if not rows:
        invalid_value("plot.weights", "at least one trial", "none")
    criterion = next(name for name in rows[0] if name != "weight")
    ordered = sorted(rows, key=lambda row: row["weight"])
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.plot([r["weight"] for r in ordered], [r[criterion] for r in ordered], "o-", color="#1b6ca8", ms=4)
    axis.set(xscale="log", xlabel="weight", ylabel=criterion)
    if chosen is not None:
        axis.axvline(chosen, color="#c8553d", linestyle="--", label=f"chosen: {chosen:.3g}")
        axis.legend(frameon=False, fontsize=8)
    axis.grid(visible=True, color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def gains(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Gains over the decoder against the noise for the records of `torchlift bench inversion`: one panel per level."""
    from matplotlib.figure import Figure

    levels = list(dict.fromkeys(record["level"] for record in records))
    if not levels:
        invalid_value("plot.gains", "at least one record", "none")
    figure = Figure(figsize=(3.4 * len(levels) + 0.8, 3.4), layout="constrained")
    axes = figure.subplots(1, len(levels), squeeze=False)[0]
    for axis, level in zip(axes, levels, strict=True):
        rows = sorted((r for r in records if r["level"] == level), key=lambda row: row["noise"])
        noise = [row["noise"] for row in rows]
        for k, name in enumerate(cell["name"] for cell in rows[0]["contestants"]):
            pairs = [next(c["gain"] for c in row["contestants"] if c["name"] == name) for row in rows]
            means, errors = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
            style = "o-" if name.startswith("sweep") else "s--"
            axis.errorbar(noise, means, yerr=errors, fmt=style, ms=4, color=f"C{k}", label=name, capsize=2)
        axis.axhline(0, color="0.4", linewidth=0.8)
        axis.set(xscale="log", xlabel="noise of the code", title=f"trained to {level:g}")
        axis.grid(visible=True, color="0.9")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("PSNR over the decoder (dB)")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def _pixels(image: Tensor) -> Any:
    """(H, W) or (H, W, 3) in [0, 1]."""
    image = image.double().clamp(0, 1)
    return (image if image.ndim == 2 else image[0] if len(image) == 1 else image.movedim(0, -1)).numpy()
