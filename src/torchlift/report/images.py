"""Rows of images in grey or colours, their errors on a scale of their own, and two rows over each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchlift.core.png import Palette, png_uri
from torchlift.report.markup import Html, join, tag
from torchlift.report.records import Pictures

GREY = tuple((level, level, level) for level in range(256))


def _between(anchors: Sequence[str], count: int) -> tuple[tuple[int, int, int], ...]:
    """Colours, linear between the given ones."""
    colours = torch.tensor([[int(colour[k : k + 2], 16) for k in (1, 3, 5)] for colour in anchors], dtype=torch.float64)
    place = torch.linspace(0, len(anchors) - 1, count, dtype=torch.float64)
    left = place.floor().clamp(max=len(anchors) - 2).long()
    mixed = torch.lerp(colours[left], colours[left + 1], (place - left)[:, None])
    return tuple((int(r), int(g), int(b)) for r, g, b in mixed.round().tolist())


ERROR = _between(("#ffffff", "#fdd9b5", "#f4895f", "#c8344a", "#701f57", "#1f0c30"), 64)
"""Colours of absolute errors: white is none."""

HEAT = _between(("#440154", "#46327e", "#365c8d", "#277f8e", "#1fa187", "#4ac16d", "#a0da39", "#fde725"), 256)
"""Colours of heat maps: equal steps look equal, also to those who see few colours."""


def picture(image: Tensor, largest: float = 1.0, palette: Palette = GREY) -> str:
    """A data URI of an image (H, W), or (3, H, W) in colours: 0 is the first level, `largest` the last; NaN is 0."""
    last = len(palette) - 1
    image = image.movedim(0, -1) if image.ndim == 3 else image
    levels = (torch.nan_to_num(image.detach().double()) / (largest or 1.0) * last).round().clamp(0, last)
    return png_uri(levels.to(torch.uint8), None if palette is GREY else palette)


def bar(palette: Palette) -> str:
    """The colours from first to last, as a data URI one pixel high."""
    return png_uri(torch.arange(len(palette))[None], palette)


MOST_BESIDE = 6
"""Images in a row up to which its error maps stand beside it on wide screens; else they stand below."""


LARGE = 100
"""Pixels in a row from which images get more room: photographs."""


def pictures(figure: Pictures) -> Html:
    """All rows, then the comparison of two of them."""
    first = next(iter(figure.rows.values()))
    if not first.numel():
        return tag("p", "No images.", class_="note")
    errors, largest = figure.errors(), figure.largest_error()
    rows: list[Html] = []
    for label, images in figure.rows.items():
        lists = [_list("images", [picture(image) for image in images], label, figure.captions.get(label, ()))]
        if label in errors:
            worst = errors[label].nan_to_num(largest, largest)  # of images with NaN nothing is right
            maps = [picture(error, largest, ERROR) for error in worst]
            lists.append(_list("errors", maps, f"absolute error of {label}"))
        rows.append(tag("div", tag("p", label), *lists, class_="strip"))
    scales = [_scale(GREY, "0", "1", "grey value")] if first.ndim == 3 else []
    if errors:
        scales.append(_scale(ERROR, "0", f"{largest:.2g}", f"absolute error against {figure.truth}"))
    single = len(first) == 1 and len(rows) > 1
    beside = bool(errors) and not single and len(first) <= MOST_BESIDE
    kinds = {"single": single, "beside-errors": beside, "large": first.shape[-1] >= LARGE}
    names = ["strips", *(name for name, applies in kinds.items() if applies)]
    grid = tag("div", *rows, class_=" ".join(names))
    return tag("div", grid, tag("div", *scales, class_="scales"), _comparison(figure), class_="pictures")


def _list(kind: str, sources: Sequence[str], words: str, captions: Sequence[str] = ()) -> Html:
    texts = [*captions, *[""] * (len(sources) - len(captions))]
    cells = [
        (tag("img", src=source, alt=f"{words}, image {number} of {len(sources)}"), tag("span", text) if text else None)
        for number, (source, text) in enumerate(zip(sources, texts, strict=True), start=1)
    ]
    return tag("ol", *(tag("li", *cell) for cell in cells), class_=kind)


def _scale(palette: Sequence[tuple[int, int, int]], low: str, high: str, words: str) -> Html:
    image = tag("img", src=bar(palette), alt=f"{words} from {low} to {high}")
    return tag("div", tag("span", low), image, tag("span", high), tag("span", words, class_="what"), class_="scale")


def _comparison(figure: Pictures) -> Html | None:
    """Two rows over each other: a slider uncovers one of them. The script fills in the images."""
    labels = list(figure.rows)
    if len(labels) < 2:
        return None
    others = [label for label in labels if label != figure.truth]
    left, right = others[-2:] if len(others) > 1 else labels[:2]
    count = len(figure.rows[labels[0]])

    def choice(words: str, options: Sequence[str], chosen: str, kind: str) -> Html:
        listed = [
            tag("option", option, value=index, selected=option == chosen or None)
            for index, option in enumerate(options)
        ]
        return tag("label", tag("span", words), tag("select", *listed, class_=kind))

    controls = join(
        [
            choice("Left", labels, left, "left"),
            choice("Right", labels, right, "right"),
            choice("Image", [str(number) for number in range(1, count + 1)], "1", "which") if count > 1 else None,
            tag("label", tag("span", "Border"), tag("input", type="range", min=0, max=100, value=50, class_="border")),
            tag("button", "Flicker", type="button", aria_pressed="false", class_="flicker"),
        ]
    )
    stage = tag(
        "div", tag("img", class_="under", alt=""), tag("img", class_="over", alt=""), tag("div", class_="line"),
        class_="stage",
    )  # fmt: skip
    return tag(
        "div",
        tag("p", "Compare two rows", class_="heading"),
        tag("div", stage, tag("div", controls, class_="controls"), class_="bench"),
        class_="compare",
    )
