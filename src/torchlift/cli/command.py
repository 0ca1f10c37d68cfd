"""What every subcommand shares: options, a record that is collected, and then printed or saved."""

from __future__ import annotations

import errno
import json as json_format
import os
import tempfile
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

import tyro
from rich.console import Console
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from torchlift.cli.text import printable
from torchlift.core.errors import DataError, message, system_words
from torchlift.core.files import read_json, unlinked, write_file

_NAMES: dict[type, str] = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}

OPTIONAL = ConstructorRegistry()
"""For tyro.cli."""


@OPTIONAL.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A value, or None for what is chosen elsewhere; the word None undoes what a file says."""
    parts = [part for part in get_args(info.type) if part is not types.NoneType]
    if get_origin(info.type) not in (Union, types.UnionType) or len(parts) != 1 or parts[0] not in _NAMES:
        return None
    kind: Callable[[str], Any] = parts[0]
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=_NAMES[parts[0]],
        instance_from_str=lambda words: None if words[0] == "None" else kind(words[0]),
        is_instance=lambda value: value is None or isinstance(value, parts[0]),
        str_from_instance=lambda value: [str(value)],
    )


Record = dict[str, Any]
"""The result of a subcommand, made of values that JSON knows."""

FIGURES = "figures"
"""The folder of drawings in the folder of every run; see docs/files.md for the rest of it."""

FORMAT = 1
"""Of the JSON objects that subcommands write; see docs/files.md."""


@dataclass(frozen=True, kw_only=True)
class Command(ABC):
    """A subcommand; its fields are its options."""

    name: ClassVar[str]
    replaces: ClassVar[bool] = False
    """Whether an earlier result in the folder is replaced, as the help of --out then says."""

    json: bool = False
    """Print one JSON object for machines instead of text."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None
    """Also save the JSON object in this folder."""
    debug: bool = False
    """On an error, show where it came from."""

    @abstractmethod
    def collect(self) -> Record:
        """Do the work."""

    @abstractmethod
    def show(self, record: Record, console: Console) -> None:
        """Print the record for people."""

    def defaults(self) -> Command | None:
        """The same command with other defaults, read from what its options name; None where there are none."""
        return None

    def save(self, record: Record) -> None:  # noqa: B027 (most commands have nothing more to save)
        """Save more than the JSON object, such as figures; `out` exists."""

    def save_figure(self, name: str, draw: Callable[[Any], Any], endings: tuple[str, ...] = ("png",)) -> list[str]:
        """Save what `draw(torchlift.report.plot)` returns in figures/, where matplotlib is installed.

        Returns:
            the names of the files.
        """
        if self.out is None or find_spec("matplotlib") is None:
            return []
        from torchlift.report import plot

        folder = unlinked(self.out / FIGURES)
        folder.mkdir(exist_ok=True)
        figure = draw(plot)
        for ending in endings:
            figure.savefig(unlinked(folder / f"{name}.{ending}"), dpi=150)
        return [f"{FIGURES}/{name}.{ending}" for ending in endings]

    def run(self) -> Record:
        """Do the work and give it out in the form that was asked for. Where it cannot be saved, it is printed."""
        self.check()
        created = self.check_out()
        try:
            record = {"format": FORMAT, **self.collect()}
        except BaseException:
            if created and self.out is not None:
                with suppress(OSError):  # something was kept in it
                    self.out.rmdir()
            raise
        try:
            self.write(record)
            if self.out is not None:
                self.save(record)
        except OSError:
            print(_text(record))
            raise
        if self.json:
            print(_text(record))
        else:
            self.show(printable(record), Console(highlight=False, markup=False))
        return record

    def check(self) -> None:  # noqa: B027 (most options are checked by what takes them)
        """Refuse options that make no sense, before anything is created or done."""

    def check_out(self) -> bool:
        """Create the folder, and see that it can be written to and that no earlier result would be lost.

        Returns:
            whether the folder is new.
        """
        if self.out is None:
            return False
        where, new = f"--out {self.out}", not self.out.exists()
        check_folder("--out", self.out)
        file = self._json_file(self.out)
        if not self.replaces and file.exists() and not file.is_symlink():  # a link is no result of ours
            hint = "Choose another folder, or move it away."
            raise DataError(message(where, "a folder without an earlier result", file.name, hint))
        return new

    def write(self, record: Record) -> None:
        """Save the JSON object, where a folder was given; long work does so on its way too."""
        if self.out is not None:
            write_file(self._json_file(self.out), _text(record) + "\n")

    def _json_file(self, folder: Path) -> Path:
        return folder / f"{self.name.replace(' ', '-')}.json"


def check_folder(option: str, folder: Path) -> None:
    """Create the folder that an option names, and write something into it: before hours of work, not after them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:  # the latter for a name with a NUL
        files = [part for part in (folder, *folder.parents) if os.path.isfile(part)]  # noqa: PTH113 (no error at a NUL)
        reason = f"the file {files[0]}" if files else "a place where nothing can be made"
        if not files and isinstance(error, OSError) and error.errno != errno.ENOENT:
            reason = system_words(error)
        hint = "Choose another folder."
        raise DataError(message(f"{option} {folder}", "a folder that can be written to", reason, hint)) from error


def read_object(file: Path) -> Record:
    """A JSON object that a subcommand wrote.

    Raises:
        DataError: there is none, it is damaged, or of another format.
    """
    record = read_json(file, "It is damaged: repeat the run.")
    if record.get("format") != FORMAT:
        hint = "It was written by another version of torchlift: repeat the run."
        raise DataError(message(str(file), f"format {FORMAT}", record.get("format", "none"), hint))
    return record


def not_ours(file: Path, name: str, error: Exception) -> DataError:
    """The error for an object that no subcommand of this name wrote."""
    hint = "It is damaged or of another version: repeat the run."
    got = f"{type(error).__name__}: {str(error)[:200]}"
    return DataError(message(str(file), f"what torchlift {name} writes", got, hint))


def _text(record: Record) -> str:
    return json_format.dumps(record, indent=2, allow_nan=False)
