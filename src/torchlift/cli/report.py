"""`torchlift report`: records and runs as one HTML page."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console

from torchlift import report
from torchlift.cli.command import Command, check_folder
from torchlift.cli.command import Record as Json
from torchlift.cli.report_runs import inversion_record, training_record
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.core.files import read_bytes, write_file
from torchlift.report.records import Record, load_record
from torchlift.report.records.files import FOLDER, PAPER_ORDER

FILE = "report.html"
_OURS = b'<meta name="generator" content="torchlift">'
KINDS: dict[str, Callable[[Path], Record]] = {
    FOLDER: load_record,
    "history.jsonl": training_record,
    "invert.json": inversion_record,
}
"""What a folder of finished work holds, and how it is read."""

_PLACES = {name: place for place, name in enumerate(PAPER_ORDER)}
"""The order of the paper, for items of the reproduction."""


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Show reproductions, trainings and inversions on one HTML page that needs no network."""

    name: ClassVar[str] = "report"

    folders: Annotated[
        tyro.conf.Positional[tuple[Path, ...]],
        tyro.conf.arg(
            metavar="[DIR …]",
            help="What demo, reproduce, train --out or invert --out wrote, or folders with several of these; the "
            "current folder by default.",
        ),
    ] = ()
    html: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="[FILE]")] = ()
    """Where to write the page; report.html in the first folder by default."""
    open: bool = False
    """Open the page in a browser."""

    def check(self) -> None:
        """Only a page that torchlift made is replaced by a new one."""
        file = self._file()
        if file.exists() and not file.is_symlink() and _OURS not in read_bytes(f"--html {file}", file, 1 << 30)[:1000]:
            hint = "Choose another name, or move it away."
            raise DataError(message(f"--html {file}", "a new file, or a page of torchlift", "another file", hint))
        if self.html:
            check_folder("--html", file.parent)

    def collect(self) -> Json:
        folders = self.folders or (Path(),)
        file = self._file()
        runs, left_out = find_runs(folders)
        page = report.html([run.record for run in runs], distinct(runs))
        write_file(file, page.encode("utf-8", errors="replace"))  # names of folders may hold what is no Unicode
        if self.open:
            webbrowser.open(file.resolve().as_uri())
        return {
            "file": str(file),
            "bytes": file.stat().st_size,
            "runs": [{"folder": str(run.folder), "name": run.record.name, "title": run.record.title} for run in runs],
            "left out": list(map(str, left_out)),
        }

    def _file(self) -> Path:
        if len(self.html) > 1:
            hint = "Name the folders first: torchlift report DIR … --html FILE."
            invalid_value("--html", "at most one file", " ".join(map(str, self.html)), hint)
        file = self.html[0] if self.html else (self.folders or (Path(),))[0] / FILE
        if file.is_dir():
            hint = f"Name the folders first: torchlift report {file} --html."
            invalid_value("--html", "a file", f"the folder {file}", hint)
        return file

    def show(self, record: Json, console: Console) -> None:
        for run in record["runs"]:
            console.print(f"{run['title']}  ({run['folder']})", soft_wrap=True)
        for folder in record["left out"]:
            console.print(f"left out, nothing finished in it: {folder}", soft_wrap=True)
        console.print(f"{record['file']}  ({record['bytes'] / 1e6:.1f} MB)", soft_wrap=True)


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
