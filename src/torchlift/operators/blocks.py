"""Block operators and block vectors: how K, M, V, W, b and d are put together, and pictures of them."""

from __future__ import annotations

import html as escape_html
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchlift.core.checks import Shape, check_batch
from torchlift.core.errors import invalid_value
from torchlift.operators.base import Context, LinearOperator
from torchlift.operators.geometry import broadcasts

if TYPE_CHECKING:
    from torchlift.core.checks import Shape


#: Grids with more rows or columns than this show their first and last ones only.
MOST = 12
ZERO, GAP = "·", "⋯"


def size(shape: Shape) -> str:
    return "×".join(map(str, shape))


def _kept(count: int) -> list[int | None]:
    """Indices to show; None stands for the ones left out."""
    if count <= MOST:
        return list(range(count))
    half = MOST // 2
    return [*range(half), None, *range(count - half, count)]


def _cells(operator: BlockOperator) -> tuple[list[str], list[list[str]]]:
    """Column headings, and per row its heading followed by its cells."""
    columns, rows = _kept(len(operator.column_shapes)), _kept(len(operator.row_shapes))
    heading = ["", *(GAP if j is None else _label(operator.column_name, operator.column_shapes, j) for j in columns)]
    body = []
    for i in rows:
        if i is None:
            body.append([GAP] * len(heading))
            continue
        symbols = {j: block.symbol() for (row, j), block in operator.blocks.items() if row == i}
        cells = [GAP if j is None else symbols.get(j, ZERO) for j in columns]
        body.append([_label(operator.row_name, operator.row_shapes, i), *cells])
    return heading, body


def _label(name: str, shapes: tuple[Shape, ...], index: int) -> str:
    return f"{name.format(index, index + 1)} ({size(shapes[index])})"


def picture_text(operator: BlockOperator) -> str:
    """A monospaced grid with shapes on its margins."""
    if not operator.row_shapes:
        return "(no rows)"
    heading, body = _cells(operator)
    table = [heading, *body]
    widths = [max(len(line[k]) for line in table) for k in range(len(heading))]
    lines = ["  ".join(cell.center(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join(lines)


def picture_html(operator: BlockOperator) -> str:
    """The same grid as an HTML table, with everything escaped."""
    heading, body = _cells(operator)
    cell = "padding:2px 8px;text-align:center;border:1px solid #8884"
    head = "".join(f'<th style="{cell}">{escape_html.escape(name)}</th>' for name in heading)
    lines = [f"<tr>{head}</tr>"]
    for name, *cells in body:
        filled = "".join(
            f'<td style="{cell}{"" if c in (ZERO, GAP) else ";background:#4a90d933"}">{escape_html.escape(c)}</td>'
            for c in cells
        )
        lines.append(f'<tr><th style="{cell}">{escape_html.escape(name)}</th>{filled}</tr>')
    rows, columns = _total(operator.row_shapes), _total(operator.column_shapes)
    caption = f"{rows} × {columns}, {len(operator.blocks)} blocks"
    return f'<table style="border-collapse:collapse"><caption>{caption}</caption>{"".join(lines)}</table>'


def _total(shapes: tuple[Shape, ...]) -> int:
    return sum(math.prod(shape) for shape in shapes)


Blocks = Mapping[tuple[int, int], LinearOperator]


@dataclass(frozen=True, eq=False)
class BlockOperator:
    """A sparse grid of linear operators: (A x)_i = Σ_j A_ij x_j.

    It maps a sequence of batches, one per column, to one per row. Blocks that
    are not in the dictionary are zero and cost nothing.

    Arguments:
        blocks: {(row, column): operator}.
        row_shapes: shape of one sample of each output.
        column_shapes: shape of one sample of each input.
        row_name, column_name: labels for the picture; "u_{0}" counts from 0, "z_{1}" from 1.
        like: a tensor whose dtype and device `to_dense` follows.
    """

    blocks: Blocks
    row_shapes: tuple[Shape, ...]
    column_shapes: tuple[Shape, ...]
    row_name: str = "{0}"
    column_name: str = "{0}"
    like: Tensor | None = None
    #: The non-zero blocks (column, operator) of each row, in column order.
    rows: tuple[tuple[tuple[int, LinearOperator], ...], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for (i, j), block in self.blocks.items():
            if not (0 <= i < len(self.row_shapes) and 0 <= j < len(self.column_shapes)):
                grid = f"{len(self.row_shapes)} x {len(self.column_shapes)}"
                invalid_value(f"BlockOperator block {(i, j)}", f"a position inside the {grid} grid", (i, j))
            expected = (self.row_shapes[i], self.column_shapes[j])
            if (block.out_shape, block.in_shape) != expected:
                got = f"{block.out_shape} and {block.in_shape} ({type(block).__name__})"
                shapes = f"output and input shapes {expected[0]} and {expected[1]}"
                invalid_value(f"BlockOperator block {(i, j)}", shapes, got)
        rows: list[list[tuple[int, LinearOperator]]] = [[] for _ in self.row_shapes]
        for i, j in sorted(self.blocks):
            rows[i].append((j, self.blocks[i, j]))
        # Set once here rather than cached on demand, because torch.compile cannot trace a cached property.
        object.__setattr__(self, "rows", tuple(map(tuple, rows)))

    def row(self, i: int, x: Sequence[Tensor], context: Context = None) -> Tensor | None:
        """Σ_j A_ij x_j over the columns that `x` holds so far, or None if that sum is empty.

        Forward substitution calls this with the states computed up to now.
        """
        total = None
        for j, block in self.rows[i]:
            if j < len(x):
                term = block.forward(x[j], context)
                total = term if total is None else total + term
        return total

    def forward(self, x: Sequence[Tensor], context: Context = None) -> tuple[Tensor, ...]:
        """A x for x with one batch per column."""
        parts = []
        for i, shape in enumerate(self.row_shapes):
            part = self.row(i, x, context)
            parts.append(x[0].new_zeros(x[0].shape[0], *shape) if part is None else part)
        return tuple(parts)

    def adjoint(self, y: Sequence[Tensor], context: Context = None) -> tuple[Tensor, ...]:
        """Aᵀ y for y with one batch per row."""
        return self.T.forward(y, context)

    def __call__(self, x: Sequence[Tensor], context: Context = None) -> tuple[Tensor, ...]:
        """A x, after checking the number and the shapes of the blocks of x."""
        if len(x) != len(self.column_shapes):
            invalid_value("BlockOperator input", f"{len(self.column_shapes)} blocks", len(x))
        for j, (part, shape) in enumerate(zip(x, self.column_shapes, strict=True)):
            check_batch(f"BlockOperator input block {j}", part, shape)
        return self.forward(x, context)

    @property
    def T(self) -> BlockOperator:
        """The adjoint as a block operator."""
        blocks = {(j, i): block.T for (i, j), block in self.blocks.items()}
        return BlockOperator(blocks, self.column_shapes, self.row_shapes, self.column_name, self.row_name, self.like)

    def to_dense(self, context: Context = None) -> Tensor:
        """The whole matrix on flattened, concatenated samples."""
        parts = {place: block.to_dense(context) for place, block in self.blocks.items()}
        some = next(iter(parts.values()), torch.empty(0)) if self.like is None else self.like
        heights = [math.prod(shape) for shape in self.row_shapes]
        widths = [math.prod(shape) for shape in self.column_shapes]
        matrix = some.new_zeros(sum(heights), sum(widths))
        for (i, j), part in parts.items():
            top, left = sum(heights[:i]), sum(widths[:j])
            matrix[top : top + heights[i], left : left + widths[j]] = part
        return matrix

    def __str__(self) -> str:
        return picture_text(self)

    def __repr__(self) -> str:
        return f"BlockOperator({len(self.row_shapes)} x {len(self.column_shapes)}, {len(self.blocks)} blocks)"

    def _repr_html_(self) -> str:
        return picture_html(self)


@dataclass(frozen=True, eq=False)
class BlockVector:
    """One constant per row, such as the biases b: tensors that broadcast to `shapes`, or None for zero."""

    blocks: tuple[Tensor | None, ...]
    shapes: tuple[Shape, ...]
    like: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.blocks) != len(self.shapes):
            invalid_value("BlockVector", f"{len(self.shapes)} blocks", len(self.blocks))
        for j, (block, shape) in enumerate(zip(self.blocks, self.shapes, strict=True)):
            if block is not None and not broadcasts(tuple(block.shape), shape):
                invalid_value(f"BlockVector block {j}", f"a shape that broadcasts to {shape}", tuple(block.shape))

    def __repr__(self) -> str:
        shapes = ", ".join("0" if block is None else str(tuple(block.shape)) for block in self.blocks)
        return f"BlockVector({shapes})"

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, j: int) -> Tensor | None:
        return self.blocks[j]

    def __iter__(self) -> Iterator[Tensor | None]:
        return iter(self.blocks)

    def to_dense(self) -> Tensor:
        """All blocks flattened and concatenated, zeros included."""
        some = next((block for block in (self.like, *self.blocks) if block is not None), torch.empty(0))
        parts = [
            some.new_zeros(math.prod(shape)) if block is None else block.broadcast_to(shape).flatten()
            for block, shape in zip(self.blocks, self.shapes, strict=True)
        ]
        return torch.cat(parts) if parts else some
