"""Which cells of a table of settings to test: all pairs of values meet, not all combinations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any


def all_pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Combinations in which every two values of different axes occur together at least once.

    A fault is nearly always one of a value or of two that meet. The whole table of axes of lengths a ≥ b ≥ c has a b c
    cells, this choice hardly more than a b. Greedy: each cell is the first of those with most pairs that are new.
    """
    values: Sequence[Sequence[Any]] = [tuple(axis) for axis in axes]
    cells = list(product(*(range(len(axis)) for axis in values)))
    pairs_of = {cell: set(combinations(enumerate(cell), 2)) for cell in cells}
    missing, chosen = set().union(*pairs_of.values()), []
    while missing:
        cell = max(cells, key=lambda cell: len(pairs_of[cell] & missing))
        missing -= pairs_of[cell]
        chosen.append(cell)
    return [tuple(axis[i] for axis, i in zip(values, cell, strict=True)) for cell in sorted(chosen)]
