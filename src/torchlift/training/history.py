"""What happened during a run: rows of plain numbers, in memory and as JSON lines on disk.

| field                         | meaning                                                      |
|-------------------------------|--------------------------------------------------------------|
| `kind`                        | "train" (the steps since the last row), "validation", or     |
|                               | "start" (held-out losses of the starts that were compared)   |
| `phase`                       | name of the phase                                            |
| `epoch`, `step`, `seconds`    | when                                                         |
| `loss`, `objective`, `gap`    | numbers, or None where there is none                         |
| `metrics`                     | name → number                                                |
| `learning_rate`               | a number, or None                                            |

JSON has no NaN and no infinity: on disk they are {"$float": "nan"} and so on,
which `read_history` turns back into numbers (see `core/files.py`).
"""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, overload

from torchlift.core.checks import check_choice, check_instance, check_size
from torchlift.core.errors import DataError, TorchliftError, did_you_mean, invalid_type, invalid_value, message
from torchlift.core.files import decode, encode, read_bytes, unlinked, write_file
from torchlift.core.html import curve
from torchlift.training.metrics import METRICS, Metric

Row = dict[str, Any]

KINDS = ("start", "train", "validation")
NUMBERS = ("epoch", "seconds", "loss", "objective", "gap", "learning_rate")
FIELDS = ("kind", "phase", "epoch", "step", "seconds", "loss", "objective", "gap", "metrics", "learning_rate")

LARGEST = 1 << 30
"""Bytes of the largest file that is read: rows for years."""

_SMALLER = ("loss", "objective", "gap")
_SHOWN = 8


class History(Sequence[Row]):
    """The rows of a run, oldest first.

    Arguments:
        path: a file to create, with one JSON object per line; None keeps rows
            in memory only. `History.resume` goes on with an existing file,
            `read_history` only looks at it.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._rows: list[Row] = []
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unlinked(self.path)
        if self.path.exists() and self.path.stat().st_size:
            hint = "Go on with History.resume(path, rows), or choose another folder."
            raise DataError(message(f"History {self.path}", "a new file", "one with rows in it", hint))
        self.path.touch()

    @classmethod
    def resume(cls, path: str | Path, rows: int) -> History:
        """Go on after the first `rows` rows of a file.

        Later rows belong to steps that will be repeated. They are dropped by
        replacing the file, so that a crash leaves either the old or the new one.
        """
        check_size("History.resume rows", rows, minimum=0)
        lines = _lines(Path(path))
        if len(lines) < rows:
            hint = "The file does not belong to this checkpoint, or was cut."
            raise DataError(message(f"History {path}", f"at least {rows} rows", len(lines), hint))
        history = _parsed(path, lines[:rows])  # what follows was never synchronised and may be damaged
        history.path = Path(path)
        write_file(history.path, b"".join(line + b"\n" for line in lines[:rows]), history.path.stat().st_mode & 0o777)
        return history

    def append(self, row: Mapping[str, Any]) -> None:
        """Add a row, and write it as one line at once. Fields that are left out are None."""
        checked = _checked(row)
        if self.path is not None:
            # Opened for each line: rows are seconds apart, and no handle has to be closed or survive a copy.
            with self.path.open("ab", buffering=0) as file:
                file.write(encode(checked) + b"\n")
        self._rows.append(checked)

    def sync(self) -> None:
        """Wait until all rows are on the disk; a checkpoint may then count on them."""
        if self.path is not None:
            with self.path.open("ab") as file:
                os.fsync(file.fileno())

    def column(self, name: str, kind: str | None = None) -> tuple[list[int], list[float]]:
        """(steps, values) of a field or metric, where it has a value.

        Arguments:
            name: such as "objective" or "psnr".
            kind: "train" or "validation"; None means training for fields, and
                validation for metrics.
        """
        kind = ("train" if name in NUMBERS else "validation") if kind is None else kind
        check_choice("History.column kind", kind, KINDS)
        self._check_name(name)
        rows = (row for row in self._rows if row["kind"] == kind)
        pairs = [(row["step"], value) for row in rows if (value := _value(row, name)) is not None]
        return [step for step, _ in pairs], [value for _, value in pairs]

    def best(self, metric: str | Metric = "loss", *, larger_is_better: bool | None = None) -> Row:
        """The validation row in which a metric is best; NaN counts as no value. The earliest of equals.

        Arguments:
            metric: a `Metric`, or its name.
            larger_is_better: needed where the name is not one of ours.
        """
        name, larger = _direction(metric, larger_is_better)
        self._check_name(name)
        rows = [row for row in self._rows if row["kind"] == "validation"]
        scored = [(value, row) for row in rows if (value := _value(row, name)) is not None and not math.isnan(value)]
        if not scored:
            invalid_value("History.best", f"a validation row with a value of {name!r}", "none")
        return (max if larger else min)(scored, key=lambda pair: pair[0])[1]

    def to_dicts(self) -> list[Row]:
        """Copies of all rows."""
        return [{**row, "metrics": dict(row["metrics"])} for row in self._rows]

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    @overload
    def __getitem__(self, index: str) -> list[float]: ...
    def __getitem__(self, index: int | slice | str) -> Row | list[Row] | list[float]:
        """A row, some rows, or the values of a column."""
        return self.column(index)[1] if isinstance(index, str) else self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        where = "" if self.path is None else f" in {self.path}"
        return f"History({len(self)} rows{where})"

    def _repr_html_(self) -> str:
        """Curves, and the last rows as a table, without the columns that are empty in all of them."""
        rows = [{**row, **row["metrics"]} for row in self._rows[-_SHOWN:]]
        names = dict.fromkeys(name for row in rows for name in row if name != "metrics" and row[name] is not None)
        head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in names)
        cells = ("".join(f"<td>{html.escape(_text(row.get(name)))}</td>" for name in names) for row in rows)
        body = "".join(f"<tr>{line}</tr>" for line in cells)
        note = f"<p>The last {len(rows)} of {len(self)} rows</p>" if len(self) > len(rows) else ""
        return f"{self._curves()}{note}<table><tr>{head}</tr>{body}</table>"

    def _curves(self) -> str:
        """The loss, and the validation metrics beside it."""
        metrics = dict.fromkeys(name for row in self._rows for name in row["metrics"] if row["kind"] == "validation")
        validated = ((f"validation {name}", self.column(name, "validation")[1]) for name in metrics)
        return "".join(curve(name, values) for name, values in (("loss", self.column("loss", "train")[1]), *validated))

    def _check_name(self, name: str) -> None:
        """Refuse what no row has, if there are rows."""
        names = [*NUMBERS, *dict.fromkeys(metric for row in self._rows for metric in row["metrics"])]
        if name not in names and any(row["kind"] == "validation" for row in self._rows):
            invalid_value("History column", f"one of {', '.join(names)}", repr(name), did_you_mean(name, names))


def read_history(path: str | Path) -> History:
    """The rows of a file, in memory. A last line that was cut while being written is left out.

    Raises:
        DataError: the file is absent, or some other line is damaged; it says which.
    """
    return _parsed(path, _lines(Path(path)))


def _parsed(path: str | Path, lines: list[bytes]) -> History:
    history = History()
    for number, line in enumerate(lines, start=1):
        try:
            history.append(decode(line))
        except (ValueError, OverflowError, RecursionError, TorchliftError) as error:
            got = f"{line[:60]!r} ({str(error)[:200]})"
            raise DataError(message(f"{path} line {number}", "a row as JSON", got)) from error
    return history


def _lines(path: Path) -> list[bytes]:
    """All lines, but for a last one that was cut; no beginning of a JSON object is JSON."""
    *lines, last = read_bytes(f"History {path}", path, LARGEST).split(b"\n")
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return lines
    return [*lines, last]


def _checked(row: object) -> Row:
    """A copy with all fields, of plain Python numbers."""
    row = check_instance("History row", row, Mapping, "a mapping")
    for name in row:
        if name not in FIELDS:
            hint = did_you_mean(name, FIELDS, "Other numbers go into 'metrics'.")
            invalid_value("History row", f"the fields {', '.join(FIELDS)}", repr(name), hint)
    check_choice("History row kind", row.get("kind"), KINDS)
    phase, metrics = row.get("phase", ""), row.get("metrics", {})
    phase = check_instance("History row phase", phase, str, "a string")
    metrics = check_instance("History row metrics", metrics, Mapping, "a mapping from names to numbers")
    values: Row = {name: _number(name, row.get(name)) for name in NUMBERS}
    step = check_size("History row step", row.get("step"), minimum=0)
    if step >= 1 << 63:
        invalid_value("History row step", "a whole number below 2**63", f"one of {step.bit_length()} bits")
    values |= {"kind": row["kind"], "phase": phase, "step": step}
    values["metrics"] = {str(name): _number(f"metrics[{name!r}]", value) for name, value in metrics.items()}
    return {name: values[name] for name in FIELDS}


def _number(name: str, value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        invalid_type(f"History row {name}", "a number or None", value, "Try float(...).")
    return float(value)


def _value(row: Row, name: str) -> float | None:
    """A field of the row, else one of its metrics."""
    value = row[name] if name in NUMBERS else None
    return row["metrics"].get(name) if value is None else value


def _direction(metric: str | Metric, larger_is_better: bool | None) -> tuple[str, bool]:
    """The name of a metric, and whether large values of it are good."""
    registered = metric if isinstance(metric, Metric) else METRICS.get(metric)
    name = metric.name if isinstance(metric, Metric) else metric
    if larger_is_better is not None:
        return name, larger_is_better
    if registered is None and name not in _SMALLER:
        hint = "Pass larger_is_better=True or False."
        invalid_value("History.best", f"one of {', '.join((*_SMALLER, *METRICS))}", repr(name), hint)
    return name, registered is not None and registered.larger_is_better


def _text(value: object) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
