"""Histories: what is read is what was written, after a crash too."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchlift.core.errors import DataError, InvalidTypeError, InvalidValueError
from torchlift.training.history import FIELDS, History, read_history
from torchlift.training.metrics import METRICS, Metric

Row = dict[str, Any]


def _row(step: int, kind: str = "train", **fields: Any) -> Row:
    return {"kind": kind, "phase": "main", "epoch": step / 10, "step": step, "seconds": 0.5 * step, **fields}


def _filled(path: Path | None = None, count: int = 6) -> History:
    history = History(path)
    for step in range(1, count + 1):
        if step % 2:
            history.append(_row(step, loss=1 / step, objective=2 / step))
        else:
            history.append(_row(step, "validation", loss=1.5 / step, metrics={"loss": 1.5 / step, "psnr": 20.0 + step}))
    return history


numbers = st.none() | st.floats()
rows = st.fixed_dictionaries(
    {"kind": st.sampled_from(["train", "validation"]), "step": st.integers(0, 10**12)},
    optional={
        "phase": st.text() | st.just("NaN"),
        "epoch": numbers,
        "seconds": numbers,
        "loss": numbers,
        "objective": numbers,
        "gap": numbers,
        "learning_rate": numbers,
        "metrics": st.dictionaries(st.text(), numbers, max_size=3),
    },
)


@given(written=st.lists(rows, max_size=5))
def test_what_is_read_is_what_was_written(written: list[Row], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("run") / "history.jsonl"
    history = History(path)
    for row in written:
        history.append(row)
    assert repr(read_history(path).to_dicts()) == repr(history.to_dicts())  # repr, because NaN ≠ NaN
    for line in path.read_bytes().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # NaN and Infinity are no JSON


@given(cut=st.integers(0, 2000))
def test_any_cut_leaves_the_rows_before_it(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("run") / "history.jsonl"
    history = _filled(path)
    content = path.read_bytes()[:cut]
    path.write_bytes(content)
    found = read_history(path)
    whole = content.count(b"\n")
    assert found.to_dicts() in (history.to_dicts()[:whole], history.to_dicts()[: whole + 1])
    resumed = History.resume(path, whole)
    resumed.append(_row(99))
    assert read_history(path).to_dicts() == [*history.to_dicts()[:whole], resumed[-1]]


def test_missing_fields_are_none_and_numbers_are_plain() -> None:
    history = History()
    history.append({"kind": "train", "step": np.int64(3), "loss": np.float32(0.5), "epoch": 1})
    assert tuple(history[0]) == FIELDS
    assert history[0]["gap"] is None and history[0]["metrics"] == {} and history[0]["phase"] == ""
    assert type(history[0]["step"]) is int and type(history[0]["loss"]) is float and type(history[0]["epoch"]) is float


def test_rows_are_on_the_disk_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.jsonl"
    history = History(path)
    for count in (1, 2, 3):
        history.append(_row(count))
        assert len(read_history(path)) == count
    history.sync()
    assert len(copy.deepcopy(history)) == 3


def test_a_resumed_history_repeats_the_steps_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    before = _filled(path).to_dicts()
    resumed = History.resume(path, 4)
    assert resumed.to_dicts() == before[:4]
    resumed.append(_row(5, loss=7.0))
    assert read_history(path).to_dicts() == [*before[:4], resumed[-1]]
    assert [file.name for file in tmp_path.iterdir()] == ["history.jsonl"]
    assert len(History.resume(path, 0)) == 0
    assert path.read_bytes() == b""


def test_replacing_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "history.jsonl"
    _filled(path)
    before = path.read_bytes()

    def fails(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        History.resume(path, 2)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["history.jsonl"]


def test_existing_rows_are_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    _filled(path)
    with pytest.raises(DataError, match=r"a new file, got one with rows in it.*History.resume"):
        History(path)
    assert len(read_history(path)) == 6


def test_a_history_shorter_than_its_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    _filled(path)
    with pytest.raises(DataError, match="at least 7 rows, got 6"):
        History.resume(path, 7)
    assert len(read_history(path)) == 6


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (b"{torn", r"line 3: expected a row as JSON"),
        (b"", r"line 3"),
        (b"\xff\xfe", r"line 3"),
        (b"[1, 2]", r"line 3.*a mapping"),
        (b'{"kind": "train", "step": 1, "loss": NaN}', "line 3.*NaN is not JSON"),
        (b'{"kind": "train", "step": 1, "loss": "much"}', "line 3.*a number or None, got str"),
        (b'{"kind": "train", "step": 1, "loss": 1' + b"0" * 400 + b"}", "line 3"),
        (b'{"kind": "train"}', "line 3.*step"),
    ],
)
def test_damage_is_named_with_its_line(damage: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    _filled(path)
    lines = path.read_bytes().splitlines()
    lines[2] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(DataError, match=match):
        read_history(path)
    with pytest.raises(DataError, match=match):
        History.resume(path, 3)
    assert len(History.resume(path, 2)) == 2  # what comes after the checkpoint does not matter


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl: expected a readable file, got no such file"):
        read_history(tmp_path / "none.jsonl")


@pytest.mark.parametrize(
    ("row", "error", "match"),
    [
        (3, InvalidTypeError, "a mapping, got int"),
        (_row(1, "test"), InvalidValueError, "one of 'start', 'train', 'validation', got 'test'"),
        (_row(1, los=2.0), InvalidValueError, "got 'los'. Did you mean 'loss'"),
        (_row(1, zzz=2.0), InvalidValueError, "Other numbers go into 'metrics'"),
        (
            _row(1, loss=torch.tensor(1.0)),
            InvalidTypeError,
            r"loss: expected a number or None, got Tensor. Try float",
        ),
        (_row(1, metrics={"psnr": "20"}), InvalidTypeError, r"metrics\['psnr'\]: expected a number or None, got str"),
        (_row(1, metrics=[1.0]), InvalidTypeError, "a mapping from names to numbers, got list"),
        (_row(-1), InvalidValueError, "step: expected a whole number >= 0"),
        (_row(1, phase=3), InvalidTypeError, "phase: expected a string, got int"),
    ],
)
def test_bad_rows_are_refused_and_not_written(row: object, error: type[Exception], match: str, tmp_path: Path) -> None:
    history = _filled(tmp_path / "history.jsonl")
    with pytest.raises(error, match=match):
        history.append(row)  # type: ignore[arg-type]
    assert len(history) == len(read_history(tmp_path / "history.jsonl")) == 6


def test_columns() -> None:
    history = _filled()
    assert history.column("loss") == ([1, 3, 5], [1.0, 1 / 3, 0.2])
    assert history.column("loss", "validation") == ([2, 4, 6], [0.75, 0.375, 0.25])
    assert history.column("psnr") == ([2, 4, 6], [22.0, 24.0, 26.0])
    assert history["psnr"] == [22.0, 24.0, 26.0]
    assert history.column("psnr", "train") == ([], [])
    assert history.column("gap") == ([], [])
    assert [row["step"] for row in history[1:3]] == [2, 3]
    assert History().column("psnr") == ([], [])
    with pytest.raises(InvalidValueError, match=r"got 'pnsr'\. Did you mean 'psnr'"):
        history.column("pnsr")
    with pytest.raises(InvalidValueError, match="kind: expected one of 'start', 'train', 'validation', got 'test'"):
        history.column("loss", "test")


def test_the_best_row() -> None:
    history = _filled()
    assert history.best()["step"] == 6
    assert history.best("psnr")["step"] == 6
    assert history.best("psnr", larger_is_better=False)["step"] == 2
    assert history.best(METRICS["psnr"])["step"] == 6
    history.append(_row(8, "validation", loss=math.nan, metrics={"psnr": math.nan, "own": 1.0}))
    history.append(_row(10, "validation", loss=0.25, metrics={"psnr": math.inf, "own": 1.0}))
    assert history.best()["step"] == 6  # the earliest of equals; NaN is no value
    assert history.best("psnr")["step"] == 10
    assert history.best(Metric("own", lambda output, target: output, larger_is_better=True))["step"] == 8
    with pytest.raises(InvalidValueError, match=r"got 'own'\. Pass larger_is_better"):
        history.best("own")
    with pytest.raises(InvalidValueError, match="a validation row with a value of 'psnr', got none"):
        History().best("psnr")


def test_copies_do_not_touch_the_history() -> None:
    history = _filled()
    copies = history.to_dicts()
    copies[1]["metrics"]["psnr"] = 0.0
    copies[0]["loss"] = 0.0
    assert history["psnr"][0] == 22.0
    assert history["loss"][0] == 1.0


def test_the_table_shows_the_last_rows() -> None:
    history = _filled(count=20)
    history.append(_row(21, metrics={"<b>": 1.0}))
    text = history._repr_html_()
    assert "The last 8 of 21 rows" in text
    assert text.count("<tr>") == 9
    assert "<th>psnr</th>" in text and "<td>38</td>" in text and "&lt;b&gt;" in text
    assert "gap" not in text and "<th>metrics</th>" not in text
    assert repr(history) == "History(21 rows)"
