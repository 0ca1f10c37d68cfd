"""What every subcommand shares: collect a record, then print it or save it."""

from __future__ import annotations

import json as json_format
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro
from rich.console import Console

from torchlift.core.errors import DataError, message
from torchlift.core.files import read_json, unlinked

Record = dict[str, Any]
"""What a subcommand found out, made of values that JSON knows."""

FORMAT = 1
"""Of the JSON objects that subcommands write; see docs/files.md."""


@dataclass(frozen=True, kw_only=True)
class Command(ABC):
    """A subcommand; its fields are its options."""

    name: ClassVar[str]

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

    def run(self) -> Record:
        """Do the work and give it out in the form that was asked for."""
        record = {"format": FORMAT, **self.collect()}
        self.write(record)
        if self.out is not None:
            self.save(record)
        if self.json:
            print(_text(record))
        else:
            self.show(printable(record), Console(highlight=False, markup=False))
        return record

    def write(self, record: Record) -> None:
        """Save the JSON object, where a folder was given; long work does so on its way too."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            file = unlinked(self.out / f"{self.name.replace(' ', '-')}.json")
            file.write_text(_text(record) + "\n", encoding="utf-8")


def read_object(file: Path) -> Record:
    """A JSON object that a subcommand wrote.

    Raises:
        DataError: there is none, it is damaged, or of another format.
    """
    found = read_json(file, "It is damaged: repeat the run.")
    if found.get("format") != FORMAT:
        hint = "It was written by another version of torchlift: repeat the run."
        raise DataError(message(str(file), f"format {FORMAT}", found.get("format", "none"), hint))
    return found


def not_ours(file: Path, name: str, error: Exception) -> DataError:
    """The error for an object that no subcommand of this name wrote."""
    hint = "It is damaged or of another version: repeat the run."
    got = f"{type(error).__name__}: {str(error)[:200]}"
    return DataError(message(str(file), f"what torchlift {name} writes", got, hint))


def printable(value: Any) -> Any:
    """The same with all text made safe for a terminal: what comes from files must not move its cursor, or worse."""
    if isinstance(value, str):
        return "".join(letter if letter.isprintable() or letter == "\n" else "\ufffd" for letter in value)
    if isinstance(value, dict):
        return {printable(name): printable(each) for name, each in value.items()}
    return [printable(each) for each in value] if isinstance(value, list) else value


def _text(record: Record) -> str:
    return json_format.dumps(record, indent=2, allow_nan=False)
