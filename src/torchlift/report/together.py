"""Several runs of the same work side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from torchlift.report.records import Curves, Figure, HeatMap, Pictures, Record

Labelled = tuple[str, Figure]
"""A figure and the run that it belongs to; "" where it belongs to all of them."""


@dataclass(frozen=True)
class Section:
    """All runs of one piece of work.

    Arguments:
        runs: label ↦ record; all records have the same name.
    """

    runs: Mapping[str, Record]

    @property
    def first(self) -> Record:
        return next(iter(self.runs.values()))

    @property
    def title(self) -> str:
        """The title that all runs share, or the name of the work."""
        titles = {record.title for record in self.runs.values()}
        return self.first.title if len(titles) == 1 else self.first.name.replace("-", " ").capitalize()

    @property
    def several(self) -> bool:
        return len(self.runs) > 1

    def figures(self) -> list[list[Labelled]]:
        """What to show, in order; figures of one name and kind stand together, merged where that can be."""
        groups: dict[tuple[str, str], list[Labelled]] = {}
        for label, record in self.runs.items():
            for figure in record.figures:
                groups.setdefault((figure.kind, figure.name), []).append((label, figure))
        return [_together(group) if self.several else [("", group[0][1])] for group in groups.values()]


def sections(records: Sequence[Record], labels: Sequence[str]) -> list[Section]:
    """Records of one name in one section, in the order of their first."""
    sections: dict[str, dict[str, Record]] = {}
    for label, record in zip(labels, records, strict=True):
        runs = sections.setdefault(record.name, {})
        number = 2
        unique = label
        while unique in runs:
            unique, number = f"{label} ({number})", number + 1
        runs[unique] = record
    return [Section(runs) for runs in sections.values()]


def _together(runs: list[Labelled]) -> list[Labelled]:
    figures = [figure for _, figure in runs]
    if len(runs) > 1 and all(same(figure, figures[0]) for figure in figures):
        return [("", figures[0])]
    if all(isinstance(figure, Curves) for figure in figures):
        return [("", _curves(runs))]
    if len(runs) > 1 and _same_size(figures):
        return [("", _pictures(runs))]
    return runs


def _curves(runs: list[Labelled]) -> Curves:
    """All series over each other, each with the name of its run."""
    first = runs[0][1]
    assert isinstance(first, Curves)
    series = [
        replace(series, label=f"{label}: {series.label}", group=f"{label}: {series.group or series.label}")
        for label, figure in runs
        if isinstance(figure, Curves)
        for series in figure.series
    ]
    return replace(first, series=series)


def _same_size(figures: Sequence[Figure]) -> bool:
    """Whether these are pictures that can be laid over each other, row by row, with the same truth."""
    pictures = [figure for figure in figures if isinstance(figure, Pictures)]
    if len(pictures) < len(figures) or len({figure.truth for figure in pictures}) > 1:
        return False
    if len({next(iter(figure.rows.values())).shape for figure in pictures}) > 1:
        return False
    truths = [figure.rows[figure.truth] for figure in pictures if figure.truth is not None]
    return all(torch.equal(truth, truths[0]) for truth in truths)


def _pictures(runs: list[Labelled]) -> Pictures:
    """Rows that are the same in all runs once, the others with the name of their run."""
    pictures = [(label, figure) for label, figure in runs if isinstance(figure, Pictures)]
    first = pictures[0][1]
    rows: dict[str, Tensor] = {}
    captions: dict[str, Sequence[str]] = {}
    for name in dict.fromkeys(name for _, figure in pictures for name in figure.rows):
        with_row = [(label, figure) for label, figure in pictures if name in figure.rows]
        shared = len(with_row) == len(pictures) and all(
            torch.equal(figure.rows[name], first.rows[name]) and figure.captions.get(name) == first.captions.get(name)
            for _, figure in with_row
        )
        for label, figure in with_row[:1] if shared or name == first.truth else with_row:
            title = name if shared or name == first.truth else f"{label}: {name}"
            rows[title] = figure.rows[name]
            captions[title] = figure.captions.get(name, ())
    return replace(first, rows=rows, captions={title: texts for title, texts in captions.items() if texts})


def common_range(figures: Sequence[Figure]) -> tuple[float, float] | None:
    """The smallest and largest finite value of all heat maps; of positive ones where colours are logarithmic."""
    values = [figure.values.double().flatten() for figure in figures if isinstance(figure, HeatMap)]
    logarithmic = any(isinstance(figure, HeatMap) and figure.log for figure in figures)
    if not values:
        return None
    every = torch.cat(values)
    every = every[torch.isfinite(every) & ((every > 0) if logarithmic else True)]
    return (float(every.min()), float(every.max())) if len(every) else (1.0, 1.0)


def same(a: Any, b: Any) -> bool:
    """Whether two figures, or parts of them, show the same."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, Figure):
        return type(a) is type(b) and all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
