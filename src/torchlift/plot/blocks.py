"""Draws the block structure of a network."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from torchlift.core.errors import invalid_type

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"I": "#9ecae1", "W": "#4292c6", "V": "#41ab5d", "K": "#dd8452", "M": "#807dba"}


def blocks(network: Any) -> Figure:
    """W, M, V and K as grids whose cells are drawn at the (compressed) size of their blocks.

    Args:
        network: any torchlift network.
    """
    from matplotlib.figure import Figure

    if not hasattr(network, "operators"):
        invalid_type("plot.blocks", "a torchlift network", network)
    form = network.operators()
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    for axis, name in zip(axes.flat, ("W", "M", "V", "K"), strict=True):
        _draw(axis, name, getattr(form, name))
    figure.suptitle(f"{type(network).__name__}: N(y) = K u + d,  M u = V z,  z = σ(W u + b)")
    return figure


def _draw(axis: Axes, name: str, operator: Any) -> None:
    from matplotlib.patches import Rectangle

    tops = _edges(operator.row_shapes)
    lefts = _edges(operator.column_shapes)
    for (i, j), block in operator.blocks.items():
        symbol = block.symbol()
        height, width = tops[i + 1] - tops[i], lefts[j + 1] - lefts[j]
        colour = _COLOURS["I"] if symbol.endswith("I") else _COLOURS[name]
        axis.add_patch(Rectangle((lefts[j], tops[i]), width, height, facecolor=colour, edgecolor="white"))
        if len(operator.blocks) <= 40:
            label = symbol if len(symbol) <= 14 else symbol[:12] + "…"
            size = 8 if len(operator.column_shapes) <= 6 else 6
            centre = (lefts[j] + width / 2, tops[i] + height / 2)
            axis.text(*centre, label, ha="center", va="center", fontsize=size, clip_on=True)
    _grid(axis, tops, lefts)
    axis.set_title(f"{name}:  {_total(operator.row_shapes)} × {_total(operator.column_shapes)}", fontsize=10)
    step = max(1, len(operator.column_shapes) // 12)
    axis.set_xticks(_middles(lefts)[::step], _names(operator.column_name, operator.column_shapes)[::step])
    step = max(1, len(operator.row_shapes) // 12)
    axis.set_yticks(_middles(tops)[::step], _names(operator.row_name, operator.row_shapes)[::step])
    axis.xaxis.tick_top()
    axis.tick_params(length=0, labelsize=8)


def _grid(axis: Axes, tops: list[float], lefts: list[float]) -> None:
    axis.set_xlim(0, lefts[-1])
    axis.set_ylim(tops[-1], 0)
    axis.hlines(tops, 0, lefts[-1], colors="0.85", linewidths=0.5)
    axis.vlines(lefts, 0, tops[-1], colors="0.85", linewidths=0.5)


def _edges(shapes: tuple[tuple[int, ...], ...]) -> list[float]:
    """Cell borders; fourth roots keep small blocks visible beside large ones."""
    edges = [0.0]
    for shape in shapes:
        edges.append(edges[-1] + math.prod(shape) ** 0.25)
    return edges


def _middles(edges: list[float]) -> list[float]:
    return [(a + b) / 2 for a, b in pairwise(edges)]


def _names(name: str, shapes: tuple[tuple[int, ...], ...]) -> list[str]:
    """u_12 as mathematics."""
    labels = (name.format(index, index + 1) for index in range(len(shapes)))
    return [f"${a}_{{{b}}}$" if b else a for a, _, b in (label.partition("_") for label in labels)]


def _total(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(math.prod(shape) for shape in shapes)
