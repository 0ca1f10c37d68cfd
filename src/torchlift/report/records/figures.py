"""What a report is made of: claims, tables, curves, pictures, heat maps, block structures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar, Literal

from torch import Tensor

from torchlift.core.checks import check_choice
from torchlift.core.errors import invalid_type, invalid_value
from torchlift.operators import BlockOperator

Cell = str | float | int | bool | None
"""What a table holds; None is shown as a dash."""
Column = tuple[str | Callable[[Mapping[str, Any]], Cell], str]
"""A name in a record, or what makes a cell of one; and the format of its numbers."""

Outcome = Literal["held", "did not hold", "not decidable"]
OUTCOMES: tuple[Outcome, ...] = ("held", "did not hold", "not decidable")

# Numbers of at most two digits: a width of a thousand million would fill the memory.
_FORMAT = re.compile(r"[+ -]?0?\d{0,2},?(\.\d{1,2})?[eEfFgG%]?")


@dataclass(frozen=True)
class Claim:
    """A claim and what became of it.

    Arguments:
        statement: the claim in our words.
        measured: the numbers that decide.
        outcome: "held", "did not hold", or "not decidable" at the scale of the run.
        source: who claims it: "paper" or "torchlift".
    """

    statement: str
    measured: str
    outcome: Outcome
    source: Literal["paper", "torchlift"] = "paper"

    def __post_init__(self) -> None:
        check_choice("Claim outcome", self.outcome, OUTCOMES)

    @staticmethod
    def of(statement: str, measured: str, held: bool | None, source: Literal["paper", "torchlift"] = "paper") -> Claim:
        """A claim that held (True), did not (False), or that the run cannot decide (None)."""
        outcome: Outcome = "not decidable" if held is None else "held" if held else "did not hold"
        return Claim(statement, measured, outcome, source)


@dataclass(frozen=True)
class Figure:
    """Something to look at.

    Arguments:
        name: of its files: lower-case words joined by hyphens, unique within a record.
        title: above it.
        note: below it; what the reader should see, and what is left out.
    """

    kind: ClassVar[str]

    name: str
    title: str
    note: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Table(Figure):
    """Rows of numbers and words.

    Arguments:
        columns: headings, with units.
        rows: as many cells each.
        formats: one format specification per column for its numbers, such as ".2f"; "" for as they are.
    """

    kind = "table"

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    formats: Sequence[str] = ()

    @classmethod
    def of(
        cls, name: str, title: str, columns: Mapping[str, str], rows: Sequence[Sequence[Cell]], note: str = ""
    ) -> Table:
        """A table with columns {heading: format of its numbers}."""
        return cls(name, title, list(columns), rows, list(columns.values()), note=note)

    @classmethod
    def of_records(
        cls, name: str, title: str, columns: Mapping[str, Column], rows: Iterable[Mapping[str, Any]]
    ) -> Table:
        """A table of records with columns {heading: `Column`}."""
        cells = [[row[what] if isinstance(what, str) else what(row) for what, _ in columns.values()] for row in rows]
        return cls.of(name, title, {heading: form for heading, (_, form) in columns.items()}, cells)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                invalid_value(f"Table {self.name}", f"rows of {len(self.columns)} cells", len(row))
        if self.formats and len(self.formats) != len(self.columns):
            invalid_value(f"Table {self.name} formats", f"{len(self.columns)}, one per column", len(self.formats))
        for form in self.formats:
            if not isinstance(form, str) or not _FORMAT.fullmatch(form):
                invalid_value(f"Table {self.name} formats", "format specifications such as '.2f'", repr(form))


@dataclass(frozen=True)
class Series:
    """One curve.

    Arguments:
        label: in the legend.
        x, y: its points; None in y is a gap.
        low, high: borders of a band around it.
        dashed: draw it dashed.
        group: series of one group have the same colour.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    dashed: bool = False
    group: str = ""

    def __post_init__(self) -> None:
        for name in ("y", "low", "high"):
            size = len(getattr(self, name))
            if size != len(self.x) and (size or name == "y"):
                invalid_value(f"Series {self.label} {name}", f"{len(self.x)} numbers, one per x", size)


@dataclass(frozen=True)
class Curves(Figure):
    """Curves over one axis.

    Arguments:
        x_label, y_label: with units.
        series: the curves.
        x_log, y_log: logarithmic axes.
    """

    kind = "curves"

    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False


@dataclass(frozen=True)
class Pictures(Figure):
    """Rows of images with values in [0, 1], on one shared grey scale or in colours.

    Arguments:
        rows: label ↦ images (B, H, W), or (B, 3, H, W) in colours, equally many in each row.
        captions: label ↦ one short text under each image, such as its PSNR.
        truth: the row that the others are compared with: error maps are drawn for them, and two of
            them can be laid over each other in the report.
    """

    kind = "pictures"

    rows: Mapping[str, Tensor]
    captions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    truth: str | None = None

    def __post_init__(self) -> None:
        shapes = {label: tuple(images.shape) for label, images in self.rows.items()}
        fits = all(len(shape) == 3 or (len(shape) == 4 and shape[1] == 3) for shape in shapes.values())
        if len(set(shapes.values())) != 1 or not fits:
            expected = "rows of equally many images (B, H, W) or (B, 3, H, W) of one size"
            invalid_value(f"Pictures {self.name}", expected, shapes or "none")
        for label in (*self.captions, *([] if self.truth is None else [self.truth])):
            if label not in self.rows:
                invalid_value(f"Pictures {self.name}", f"rows among {', '.join(self.rows)}", repr(label))
        for label, texts in self.captions.items():
            if len(texts) > len(self.rows[label]):
                expected = f"at most {len(self.rows[label])} captions of {label}, one per image"
                invalid_value(f"Pictures {self.name}", expected, len(texts))

    def errors(self) -> dict[str, Tensor]:
        """|images − truth| of every other row, the mean over colours; none without a truth."""
        if self.truth is None:
            return {}
        truth = self.rows[self.truth].detach().cpu().double()
        others = {label: images.detach().cpu().double() for label, images in self.rows.items() if label != self.truth}
        errors = {label: (images - truth).abs() for label, images in others.items()}
        return {label: error.mean(1) if error.ndim == 4 else error for label, error in errors.items()}

    def largest_error(self) -> float:
        """The end of the scale of errors: at most 1, or images that are far off would hide what is wrong elsewhere."""
        largest = (float(error.nan_to_num(0, 0, 0).max()) for error in self.errors().values() if error.numel())
        return min(1.0, max(largest, default=0.0))


@dataclass(frozen=True)
class HeatMap(Figure):
    """A matrix of numbers as colours, such as the gap of each layer over training.

    Arguments:
        x_label, y_label, value_label: of the axes and the colours.
        x: one number per column.
        y: one name per row.
        values: (len(y), len(x)).
        log: colours by the logarithm.
    """

    kind = "heat map"

    x_label: str
    y_label: str
    value_label: str
    x: Sequence[float]
    y: Sequence[str]
    values: Tensor
    log: bool = False

    def __post_init__(self) -> None:
        if tuple(self.values.shape) != (len(self.y), len(self.x)):
            expected = f"values of shape {(len(self.y), len(self.x))}"
            invalid_value(f"HeatMap {self.name}", expected, tuple(self.values.shape))


@dataclass(frozen=True)
class Grid:
    """The non-zero blocks of one block operator: names and sizes of rows and columns, and (row, column, symbol)."""

    name: str
    rows: Sequence[tuple[str, int]]
    columns: Sequence[tuple[str, int]]
    cells: Sequence[tuple[int, int, str]]


def borders(parts: Sequence[tuple[str, int]]) -> list[float]:
    """Where the drawn rows or columns of a grid begin; fourth roots keep small blocks visible beside large ones."""
    return [0.0, *accumulate(max(size, 1) ** 0.25 for _, size in parts)]


@dataclass(frozen=True)
class Blocks(Figure):
    """The block structure of a network: W, M, V and K."""

    kind = "blocks"

    grids: Sequence[Grid]


KINDS: dict[str, type[Figure]] = {kind.kind: kind for kind in (Table, Curves, Pictures, HeatMap, Blocks)}


@dataclass(frozen=True)
class Record:
    """One finished piece of work, as a report shows it.

    Arguments:
        name: of the work: an experiment of the reproduction, or a run.
        title: above it.
        summary: a few sentences: what was done and what came out.
        command: repeats it.
        configuration: all settings, JSON values.
        environment: versions and hardware; see `environment`.
        seconds: it took.
        claims: what was claimed, and what became of it.
        figures: to look at.
    """

    name: str
    title: str
    summary: str
    command: str
    configuration: Mapping[str, Any]
    environment: Mapping[str, Any]
    seconds: float
    claims: Sequence[Claim] = ()
    figures: Sequence[Figure] = ()

    def __post_init__(self) -> None:
        names = [figure.name for figure in self.figures]
        if len(set(names)) < len(names):
            invalid_value(f"Record {self.name}", "figures with names of their own", ", ".join(names))


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
