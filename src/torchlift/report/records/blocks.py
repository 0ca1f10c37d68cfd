"""The block structure of a network as a figure."""

from __future__ import annotations

import math
from typing import Any

from torchlift.core.errors import invalid_type
from torchlift.operators import BlockOperator
from torchlift.report.records.figures import Blocks, Grid

OPERATORS = ("W", "M", "V", "K")


def network_blocks(network: Any, name: str = "blocks", *, note: str = "") -> Blocks:
    """Where W, M, V and K of N(y) = K u + d, M u = V z, z = σ(W u + b) have blocks.

    Arguments:
        network: any torchlift network.
        name: of the figure.
        note: below it.
    """
    if not hasattr(network, "operators"):
        invalid_type("network_blocks", "a torchlift network", network)
    form = network.operators()
    title = f"{type(network).__name__}: N(y) = K u + d,  M u = V z,  z = σ(W u + b)"
    return Blocks(name, title, [_grid(operator, getattr(form, operator)) for operator in OPERATORS], note=note)


def _grid(name: str, operator: BlockOperator) -> Grid:
    return Grid(
        name,
        _margin(operator.row_name, operator.row_shapes),
        _margin(operator.column_name, operator.column_shapes),
        [(i, j, block.symbol()) for (i, j), block in operator.blocks.items()],
    )


def _margin(name: str, shapes: tuple[tuple[int, ...], ...]) -> list[tuple[str, int]]:
    """The label and the size of each block along one side."""
    return [(name.format(index, index + 1), math.prod(shape)) for index, shape in enumerate(shapes)]
