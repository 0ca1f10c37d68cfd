"""Benchmarks of hours keep what they measure in a folder of JSON files, go on from there, and show it as Markdown."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torchlift.core.files import read_json, write_file


def kept(file: Path, what: str) -> dict[str, Any]:
    """What a file holds; nothing where there is none.

    Arguments:
        file: written by `keep`.
        what: is to be repeated if it is damaged.
    """
    return read_json(file, f"It is damaged: remove it and repeat the {what}.") if file.exists() else {}


def all_kept(folder: Path, what: str) -> list[dict[str, Any]]:
    """All records of a folder."""
    return [kept(file, what) for file in sorted(folder.glob("*.json"))]


def keep(file: Path, record: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    write_file(file, json.dumps(record, indent=1) + "\n")


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells of Markdown under headings."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (headings, ["---"] * len(headings), *rows))
