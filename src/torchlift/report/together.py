"""Several runs of the same work side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from torchlift.report.records import Curves, Exhibit, HeatMap, Pictures, Record

Labelled = tuple[str, Exhibit]
"""An exhibit and the run that it belongs to; "" where it belongs to all of them."""


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

    def exhibits(self) -> list[list[Labelled]]:
        """What to show, in order; exhibits of one name and kind stand together, merged where that can be."""
        found: dict[tuple[str, str], list[Labelled]] = {}
        for label, record in self.runs.items():
            for exhibit in record.exhibits:
                found.setdefault((exhibit.kind, exhibit.name), []).append((label, exhibit))
        return [_together(each) if self.several else [("", each[0][1])] for each in found.values()]


def sections(records: Sequence[Record], labels: Sequence[str]) -> list[Section]:
    """Records of one name in one section, in the order of their first."""
    found: dict[str, dict[str, Record]] = {}
    for label, record in zip(labels, records, strict=True):
        runs = found.setdefault(record.name, {})
        number = 2
        unique = label
        while unique in runs:
            unique, number = f"{label} ({number})", number + 1
        runs[unique] = record
    return [Section(runs) for runs in found.values()]


def _together(runs: list[Labelled]) -> list[Labelled]:
    exhibits = [exhibit for _, exhibit in runs]
    if len(runs) > 1 and all(same(exhibit, exhibits[0]) for exhibit in exhibits):
        return [("", exhibits[0])]
    if all(isinstance(exhibit, Curves) for exhibit in exhibits):
        return [("", _curves(runs))]
    if len(runs) > 1 and _same_size(exhibits):
        return [("", _pictures(runs))]
    return runs


def _curves(runs: list[Labelled]) -> Curves:
    """All series over each other, each with the name of its run."""
    first = runs[0][1]
    assert isinstance(first, Curves)
    series = [
        replace(each, label=f"{label}: {each.label}", group=f"{label}: {each.group or each.label}")
        for label, exhibit in runs
        if isinstance(exhibit, Curves)
        for each in exhibit.series
    ]
    return replace(first, series=series)


def _same_size(exhibits: Sequence[Exhibit]) -> bool:
    """Whether these are pictures that can be laid over each other, row by row, with the same truth."""
    found = [exhibit for exhibit in exhibits if isinstance(exhibit, Pictures)]
    if len(found) < len(exhibits) or len({exhibit.truth for exhibit in found}) > 1:
        return False
    if len({next(iter(exhibit.rows.values())).shape for exhibit in found}) > 1:
        return False
    truths = [exhibit.rows[exhibit.truth] for exhibit in found if exhibit.truth is not None]
    return all(torch.equal(truth, truths[0]) for truth in truths)


def _pictures(runs: list[Labelled]) -> Pictures:
    """Rows that are the same in all runs once, the others with the name of their run."""
    found = [(label, exhibit) for label, exhibit in runs if isinstance(exhibit, Pictures)]
    first = found[0][1]
    rows: dict[str, Tensor] = {}
    captions: dict[str, Sequence[str]] = {}
    for name in dict.fromkeys(name for _, exhibit in found for name in exhibit.rows):
        having = [(label, exhibit) for label, exhibit in found if name in exhibit.rows]
        shared = len(having) == len(found) and all(
            torch.equal(exhibit.rows[name], first.rows[name]) and exhibit.captions.get(name) == first.captions.get(name)
            for _, exhibit in having
        )
        for label, exhibit in having[:1] if shared or name == first.truth else having:
            title = name if shared or name == first.truth else f"{label}: {name}"
            rows[title] = exhibit.rows[name]
            captions[title] = exhibit.captions.get(name, ())
    return replace(first, rows=rows, captions={title: texts for title, texts in captions.items() if texts})


def common_range(exhibits: Sequence[Exhibit]) -> tuple[float, float] | None:
    """The smallest and largest finite value of all heat maps; of positive ones where colours are logarithmic."""
    values = [exhibit.values.double().flatten() for exhibit in exhibits if isinstance(exhibit, HeatMap)]
    logarithmic = any(isinstance(exhibit, HeatMap) and exhibit.log for exhibit in exhibits)
    if not values:
        return None
    every = torch.cat(values)
    every = every[torch.isfinite(every) & ((every > 0) if logarithmic else True)]
    return (float(every.min()), float(every.max())) if len(every) else (1.0, 1.0)


def same(a: Any, b: Any) -> bool:
    """Whether two exhibits, or parts of them, show the same."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return isinstance(a, Tensor) and isinstance(b, Tensor) and torch.equal(a, b)
    if isinstance(a, Exhibit):
        return type(a) is type(b) and all(same(getattr(a, each.name), getattr(b, each.name)) for each in fields(a))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return list(a) == list(b) and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b
