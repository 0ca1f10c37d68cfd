"""Folders of finished work, found and read as records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from torchlift.cli.report_invert import inversion_record
from torchlift.cli.report_train import training_record
from torchlift.core.errors import DataError, message
from torchlift.report.records import Record, load_record
from torchlift.report.records.files import FOLDER, PAPER_ORDER

KINDS: dict[str, Callable[[Path], Record]] = {
    FOLDER: load_record,
    "history.jsonl": training_record,
    "invert.json": inversion_record,
}
"""What a folder of finished work holds, and how it is read."""

_PLACES = {name: place for place, name in enumerate(PAPER_ORDER)}
"""The order of the paper, for items of the reproduction."""


@dataclass(frozen=True)
class Run:
    """A folder and what was in it."""

    folder: Path
    record: Record


def find_runs(folders: Sequence[Path]) -> tuple[list[Run], list[Path]]:
    """All runs in these folders, or in the folders inside them, and those folders that hold none.

    Items of the reproduction come in the order of the paper, other folders by name.

    Raises:
        DataError: one of the folders holds nothing, or something that cannot be read.
    """
    runs: dict[Path, Run] = {}
    left_out: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise DataError(message(f"report {folder}", "a folder", "a file" if folder.exists() else "nothing there"))
        finished = _read(folder)
        if finished is not None:
            runs.setdefault(folder.resolve(), finished)
            continue
        inside = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
        inside.sort(key=lambda path: (_PLACES.get(path.name, len(_PLACES)), path.name))
        below = {path: _read(path) for path in inside}
        if not any(below.values()):
            files = "record (of torchlift reproduce), history.jsonl (of train) or invert.json"
            hint = "Name the folder that was given as --out."
            raise DataError(message(f"report {folder}", f"{files}, in it or one level below", "none of them", hint))
        for path, run in below.items():
            if run is None:
                left_out.append(path)
            else:
                runs.setdefault(path.resolve(), run)
    return list(runs.values()), left_out


def _read(folder: Path) -> Run | None:
    for name, read in KINDS.items():
        if (folder / name).exists():
            return Run(folder, read(folder))
    return None


def distinct(runs: Sequence[Run]) -> list[str]:
    """What to call each run beside others of its kind: the parts of its path in which they differ."""
    labels: list[str] = []
    for run in runs:
        paths = [other.folder.resolve().parts for other in runs if other.record.name == run.record.name]
        parts = run.folder.resolve().parts
        start = _agreeing(paths)
        end = _agreeing([path[start:][::-1] for path in paths])
        labels.append("/".join(parts[start : len(parts) - end]) or parts[-1])
    return labels


def _agreeing(paths: Sequence[Sequence[str]]) -> int:
    """How many parts all paths begin with."""
    return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))
