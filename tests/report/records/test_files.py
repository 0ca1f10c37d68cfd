"""Records on disk come back as they were, or are refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from contracts.experiments import content, figures
from torchlift.core.errors import DataError, InvalidValueError
from torchlift.io import save_tensors
from torchlift.report.records import (
    Claim,
    Curves,
    Pictures,
    Record,
    Series,
    Table,
    environment,
    load_record,
    save_record,
)
from torchlift.report.records.files import FOLDER, KIND

RECORD = Record(
    "name",
    "Title <b>",
    "Summary.",
    "torchlift x",
    {"λ": [0.2, None], "nested": {"a": True}},
    environment(),
    1.5,
    [Claim.of("It holds.", "3", True), Claim.of("It does not.", "4", False), Claim.of("Who knows?", "5", None)],
    figures(torch.rand(2, 4, 5)),
)


def test_a_record_comes_back(tmp_path: Path) -> None:
    assert save_record(tmp_path, RECORD) == tmp_path / FOLDER
    found = load_record(tmp_path)
    assert content(found) == content(RECORD)
    assert [type(figure) for figure in found.figures] == [type(figure) for figure in RECORD.figures]
    curves = found.figures[1]
    assert isinstance(curves, Curves) and isinstance(curves.series[0], Series)
    pictures = found.figures[2]
    assert isinstance(pictures, Pictures) and pictures.rows["half"].dtype == torch.float32


def test_a_newer_record_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    save_record(tmp_path, RECORD)
    save_record(tmp_path, replace(RECORD, figures=[], seconds=3.0))
    assert (load_record(tmp_path).seconds, load_record(tmp_path).figures) == (3.0, ())


def test_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    table = Table("table", "Table", ["a", "b"], [[math.nan, -math.inf]])
    save_record(tmp_path, replace(RECORD, figures=[table]))
    (found,) = load_record(tmp_path).figures
    assert isinstance(found, Table)
    assert math.isnan(found.rows[0][0]) and found.rows[0][1] == -math.inf  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["", "Two Words", "../up", "a--b", "über"])
def test_names_that_are_no_names_of_files_are_refused(tmp_path: Path, name: str) -> None:
    for record in (replace(RECORD, name=name), replace(RECORD, figures=[Table(name, "Table", ["a"], [])])):
        with pytest.raises(InvalidValueError, match="names of lower-case words joined by hyphens, got"):
            save_record(tmp_path, record)
    assert list(tmp_path.iterdir()) == []


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_record(tmp_path)


@pytest.mark.parametrize("file", ["tensors.safetensors", "record.json"])
def test_changes_are_noticed(tmp_path: Path, file: str) -> None:
    save_record(tmp_path, RECORD)
    path = tmp_path / FOLDER / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged or was changed"):
        load_record(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"claims": [{"statement": "a", "measured": "b", "outcome": "perhaps"}]},
        {"claims": 3},
        {"figures": [{"kind": "hologram"}]},
        {"figures": [{"kind": "heat map", "values": "absent"}]},
        {"surplus": 1},
    ],
)
def test_records_of_another_version_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    plain = {name: value for name, value in vars(RECORD).items() if name not in ("claims", "figures")}
    save_tensors(tmp_path / FOLDER, {}, {**plain, "claims": [], "figures": [], **change}, kind=KIND)
    with pytest.raises(DataError, match=r"expected a record of this version, got .*repeat the run"):
        load_record(tmp_path)
