"""A folder of checkpoints: which ones are kept, which ones are believed, which one is loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from torchlift.core.errors import DataError, InvalidTypeError, InvalidValueError
from torchlift.io import Checkpoints, save_tensors


def save(checkpoints: Checkpoints, *steps: int, best: bool = False) -> None:
    for step in steps:
        checkpoints.save(step, {"x": torch.full((4,), float(step))}, {"value": step}, best=best)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)


def test_save_and_load(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "deep" / "run")
    path = checkpoints.save(120, {"x": torch.ones(2, 2)}, {"losses": [1.0, float("inf")], "pair": (1, 2)})
    assert path == tmp_path / "deep" / "run" / "step-00000120"
    loaded = checkpoints.load()
    assert (loaded.step, loaded.path, loaded.skipped) == (120, path, ())
    assert loaded.record == {"losses": [1.0, float("inf")], "pair": [1, 2]}
    assert torch.equal(loaded.tensors["x"], torch.ones(2, 2))


def test_the_last_ones_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    save(checkpoints, 1)
    save(checkpoints, 2, best=True)
    save(checkpoints, 3, 4, 5)
    assert names(tmp_path) == ["best-00000002", "step-00000004", "step-00000005"]
    assert checkpoints.steps() == [4, 5]
    assert checkpoints.load("best").record == {"value": 2}
    assert checkpoints.load(2).path.name == "best-00000002"
    assert checkpoints.load(4).record == {"value": 4}
    checkpoints.load()
    save(checkpoints, 6, best=True)
    assert names(tmp_path) == ["best-00000006", "step-00000005", "step-00000006"]


def test_a_best_needs_no_second_copy_on_the_disk(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, best=True)
    file = "tensors.safetensors"
    assert (tmp_path / "step-00000001" / file).samefile(tmp_path / "best-00000001" / file)


def test_a_best_is_copied_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1, best=True)
    flip(tmp_path / "step-00000001" / "tensors.safetensors")
    assert checkpoints.load("best").record == {"value": 1}
    loaded = checkpoints.load(1)
    assert loaded.path.name == "best-00000001" and "SHA-256" in loaded.skipped[0]


def foreign_kind(path: Path) -> None:
    save_tensors(path, {}, {"step": 3, "record": {}}, kind="inversion")


def renamed(path: Path) -> None:
    os.truncate(path / "record.json", 0)
    (path.parent / "step-00000002" / "record.json").replace(path / "record.json")
    (path.parent / "step-00000002" / "tensors.safetensors").replace(path / "tensors.safetensors")
    (path.parent / "step-00000002").rmdir()


def linked(path: Path) -> None:
    outside = path.parent.parent / "outside"
    path.rename(outside)
    path.symlink_to(outside)


def emptied(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def no_folder(path: Path) -> None:
    emptied(path)
    path.rmdir()
    path.write_text("hello")


DAMAGES: dict[str, tuple[Any, str]] = {
    "tensors": (lambda path: flip(path / "tensors.safetensors"), "SHA-256 that its record states"),
    "record": (lambda path: flip(path / "record.json"), "SHA-256 that it states"),
    "truncated": (lambda path: os.truncate(path / "tensors.safetensors", 50), "bytes, got 50"),
    "foreign kind": (foreign_kind, "expected kind 'training', got 'inversion'"),
    "renamed": (renamed, "expected the step that its name states, got 2"),
    "linked": (linked, "expected a folder, got a symbolic link"),
    "emptied": (emptied, "no such file"),
    "no folder": (no_folder, "a path that leads through a file"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_damaged_one_is_skipped(tmp_path: Path, case: str) -> None:
    damage, reason = DAMAGES[case]
    folder = tmp_path / "run"
    save(Checkpoints(folder, keep=3), 1, 2, 3)
    damage(folder / "step-00000003")
    loaded = Checkpoints(folder).load()
    assert loaded.step == (1 if case == "renamed" else 2)
    assert torch.equal(loaded.tensors["x"], torch.full((4,), float(loaded.step)))
    [sentence] = loaded.skipped
    assert sentence.startswith(str(folder / "step-00000003")) and reason in sentence
    assert (3 in Checkpoints(folder).steps()) == (case == "tensors")  # all but the tensors are looked at
    with pytest.raises(DataError, match=r"run: expected an intact checkpoint \(3\), got .*step-00000003"):
        Checkpoints(folder).load(3)


def test_when_none_is_good_each_is_listed(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2)
    flip(tmp_path / "step-00000001" / "record.json")
    flip(tmp_path / "step-00000002" / "tensors.safetensors")
    with pytest.raises(DataError, match=r"step-00000002/tensors.* another.* \| .*step-00000001/record.json"):
        Checkpoints(tmp_path).load()


@pytest.mark.parametrize(("which", "text"), [("latest", "checkpoint, got"), ("best", "(best), got"), (7, "(7), got")])
def test_when_there_is_none(tmp_path: Path, which: Any, text: str) -> None:
    with pytest.raises(DataError) as caught:
        Checkpoints(tmp_path).load(which)
    assert f"{text} none." in str(caught.value)


def test_a_resumed_run_replaces_what_was_refused(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1, 2)
    flip(tmp_path / "step-00000002" / "tensors.safetensors")
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.load().step == 1
    save(checkpoints, 2)
    assert checkpoints.load().step == 2
    assert checkpoints.load().skipped == ()


def test_going_back_leaves_no_later_steps(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path, keep=5), 1, 2, 3)
    save(Checkpoints(tmp_path, keep=5), 4, best=True)
    checkpoints = Checkpoints(tmp_path, keep=5)
    checkpoints.load(2)
    save(checkpoints, 3)
    assert checkpoints.steps() == [1, 2, 3]
    assert checkpoints.load().step == 3
    assert checkpoints.load("best").step == 4


def test_a_new_run_never_overwrites_an_old_one(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1000)
    for step in (10, 1000):
        with pytest.raises(InvalidValueError, match=f">= 1001, .*{tmp_path.name}, got {step}. Load a checkpoint"):
            save(Checkpoints(tmp_path), step)
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1001, 1001)
    with pytest.raises(InvalidValueError, match=">= 1001"):
        save(checkpoints, 1000)
    assert checkpoints.steps() == [1000, 1001]


def test_a_foreign_one_is_not_removed(tmp_path: Path) -> None:
    save_tensors(tmp_path / "step-00000009", {}, {"step": 9, "record": {}}, kind="other")
    save(Checkpoints(tmp_path, keep=1), 10, 11)
    assert names(tmp_path) == ["step-00000009", "step-00000011"]


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    others = ["notes.txt", "step-1", "step-000000012", ".step-00000005", "step-٠٠٠٠٠٠٠٥", "step-00000005.old"]
    for name in others:
        (tmp_path / name).mkdir()
    checkpoints = Checkpoints(tmp_path, keep=1)
    save(checkpoints, 1, 2)
    assert names(tmp_path) == sorted([*others, "step-00000002"])
    assert checkpoints.load().step == 2 and checkpoints.load().skipped == ()


def test_long_runs(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 0, 99_999_999, 100_000_000)
    assert checkpoints.steps() == [99_999_999, 100_000_000]
    assert checkpoints.load().step == 100_000_000


def test_the_record_is_plain_json(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1)
    content = json.loads((tmp_path / "step-00000001" / "record.json").read_text())["content"]
    assert (content["format"], content["kind"]) == (1, "training")
    assert content["record"] == {"step": 1, "record": {"value": 1}}


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="keep: expected a whole number >= 1, got 0"):
        Checkpoints(tmp_path, keep=0)
    with pytest.raises(InvalidTypeError, match="kind: expected a string, got int"):
        Checkpoints(tmp_path, kind=1)  # pyright: ignore[reportArgumentType]
    checkpoints: Any = Checkpoints(tmp_path)
    with pytest.raises(InvalidValueError, match="step: expected a whole number >= 0, got -1"):
        checkpoints.save(-1, {}, {})
    with pytest.raises(InvalidTypeError, match="step: expected a whole number, got str"):
        checkpoints.save("../1", {}, {})
    with pytest.raises(InvalidValueError, match=r"which: expected 'latest', 'best' or a step, got '\.\./outside'"):
        checkpoints.load("../outside")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(
            DataError,
            match=r"file.*: expected to be able to write there, got (something that exists|a path that leads)",
        ):
            Checkpoints(folder)


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="nothing is forbidden to the superuser")
def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(DataError, match="a folder that can be written to, got no permission"):
            Checkpoints(tmp_path)
    finally:
        tmp_path.chmod(0o700)
