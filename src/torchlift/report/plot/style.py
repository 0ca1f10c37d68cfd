"""What all drawings share: colours that colour-blind people tell apart, plain text and axes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Okabe and Ito's colours without yellow, which is too light for lines.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")

TEXT, SMALL, TITLE = 9, 8, 10
"""Sizes of letters, in points."""

NARROW = 4
"""Logarithmic scales over a smaller ratio have evenly spaced ticks: there would be one power of ten at most."""

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def plain(text: str) -> str:
    """Text in which matplotlib finds no mathematics."""
    return text.replace("$", r"\$")


def number(value: float, _position: object = None) -> str:
    """A short number for an axis: 0.05, 1000, 10⁵, 2·10⁻⁶."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    digits, _, exponent = f"{value:.2e}".partition("e")
    digits = digits.rstrip("0").rstrip(".")
    power = "10" + str(int(exponent)).translate(_RAISED)
    return power if digits == "1" else f"{digits}·{power}"


def along(text: str, inches: float) -> str:
    """The name of an axis, broken into lines of this length."""
    return plain(textwrap.fill(text, max(12, int(inches / 0.08))))


def tidy(axis: Axes, x_label: str, y_label: str, size: tuple[float, float]) -> None:
    """Names and plain borders, on a figure of so many inches."""
    axis.set_xlabel(along(x_label, size[0] - 1), fontsize=TEXT)
    axis.set_ylabel(along(y_label, size[1] - 1), fontsize=TEXT)
    axis.tick_params(labelsize=SMALL)
    axis.spines[["top", "right"]].set_visible(False)


def heading(axis: Axes, title: str, width: int) -> None:
    """The title, broken into lines of at most `width` letters."""
    axis.set_title(plain(textwrap.fill(title, width)), fontsize=TITLE, loc="left")


def logarithmic(axis: Axes, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis, if the values allow it, with plain numbers at its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

    positive = sorted({value for value in values if value > 0})
    if not positive:
        return
    axis.set(**{f"{which}scale": "log"})
    side = axis.xaxis if which == "x" else axis.yaxis
    few = len(positive) <= 10 and all(b / a >= 1.5 for a, b in pairwise(positive))
    if which == "x" and few:
        side.set_ticks(positive)  # the places that were measured, such as 1, 2, 4, …, 128 layers
        side.set_minor_locator(NullLocator())
    elif positive[-1] / positive[0] < NARROW:
        side.set_major_locator(MaxNLocator(5))
        side.set_minor_locator(NullLocator())
    elif positive[-1] / positive[0] < 100:
        side.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    side.set_major_formatter(FuncFormatter(number))
    side.set_minor_formatter(NullFormatter())
