"""`torchlift report`: records and runs as one HTML page."""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro
from rich.console import Console

from torchlift import report
from torchlift.cli.command import Command, Record, check_folder
from torchlift.cli.report_runs import distinct, find_runs
from torchlift.core.errors import DataError, invalid_value, message
from torchlift.core.files import read_bytes, write_file

FILE = "report.html"
_OURS = b'<meta name="generator" content="torchlift">'


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

    def collect(self) -> Record:
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

    def show(self, record: Record, console: Console) -> None:
        for run in record["runs"]:
            console.print(f"{run['title']}  ({run['folder']})", soft_wrap=True)
        for folder in record["left out"]:
            console.print(f"left out, nothing finished in it: {folder}", soft_wrap=True)
        console.print(f"{record['file']}  ({record['bytes'] / 1e6:.1f} MB)", soft_wrap=True)
