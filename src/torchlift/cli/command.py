"""What every subcommand shares: collect a record, then print it or save it."""

from __future__ import annotations

import json as json_format
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import tyro
from rich.console import Console

Record = dict[str, Any]
"""What a subcommand found out, made of values that JSON knows."""


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
        record = self.collect()
        self.write(record)
        if self.out is not None:
            self.save(record)
        if self.json:
            print(_text(record))
        else:
            self.show(record, Console(highlight=False, markup=False))
        return record

    def write(self, record: Record) -> None:
        """Save the JSON object, where a folder was given; long work does so on its way too."""
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            file = self.out / f"{self.name.replace(' ', '-')}.json"
            file.write_text(_text(record) + "\n", encoding="utf-8")


def _text(record: Record) -> str:
    return json_format.dumps(record, indent=2, allow_nan=False)
