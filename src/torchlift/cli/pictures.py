"""Images beside the ones that they should be."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from torchlift.core.checks import Shape
from torchlift.data import psnr
from torchlift.report.records import Pictures


def compared(
    name: str, title: str, rows: Mapping[str, Tensor], truth: str, shape: Shape, *, note: str = ""
) -> Pictures:
    """Rows of images, each with its PSNR to the one of the row `truth` below it.

    Arguments:
        name, title: of the figure.
        rows: batches by label, in any shape.
        truth: a label.
        shape: of an image: (height, width), or (3, height, width).
        note: below the figure.
    """
    images = {label: batch.reshape(-1, *shape) for label, batch in rows.items()}
    quality = {label: psnr(batch, images[truth]) for label, batch in images.items() if label != truth}
    captions = {label: [f"{value:.1f} dB" for value in values.tolist()] for label, values in quality.items()}
    return Pictures(name, title, images, captions, truth, note=note)
