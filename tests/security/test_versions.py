"""Files of another version of torchlift: read where docs/files.md says so, refused in words elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import torchlift as tl
from fuzz.cases import CASES
from fuzz.mutations import sealed
from torchlift import __version__
from torchlift.cli.settings.files import read_configuration
from torchlift.core.errors import DataError, InvalidValueError
from torchlift.io import Checkpoints
from torchlift.networks import MLP
from torchlift.training import read_history

FOLDERS = ["pair", "shards", "checkpoints", "model, mlp", "record"]
MISSING = "a number that is left out"


def content_of(file: Path) -> dict[str, Any]:
    return json.loads(file.read_bytes())["content"]


def renumbered(content: dict[str, Any], number: object) -> dict[str, Any]:
    return {name: number if name == "format" else value for name, value in content.items()
            if name != "format" or number != MISSING}  # fmt: skip


def test_the_numbers_are_those_of_the_documentation(tmp_path: Path, repository: Path) -> None:
    page = (repository / "docs" / "files.md").read_text(encoding="utf-8")
    for case, number in (("pair", 1), ("shards", 2)):
        folder = tmp_path / case
        folder.mkdir()
        assert content_of(CASES[case].make(folder))["format"] == number
    for name in ("record.json", "shard-", "history.jsonl", "settings.json", "config.toml", "train.json", "invert.json"):
        assert name in page


@pytest.mark.parametrize("case", FOLDERS)
@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (0, "expected format 1 or 2, got 0"),
        (3, "expected format 1 or 2, got 3. A newer torchlift"),
        (MISSING, "expected format 1 or 2, got none"),
        ("1", "expected format 1 or 2, got 1"),
    ],
)
def test_folders_of_another_format(tmp_path: Path, case: str, number: object, reason: str) -> None:
    file = CASES[case].make(tmp_path)
    if case == "checkpoints":
        for other in file.parent.parent.glob("step-*/record.json"):
            other.write_bytes(sealed(json.dumps(renumbered(content_of(other), number)).encode()))
    file.write_bytes(sealed(json.dumps(renumbered(content_of(file), number)).encode()))
    with pytest.raises(DataError, match=reason):
        CASES[case].read(tmp_path)


def test_a_newer_checkpoint_is_skipped_for_one_that_can_be_read(tmp_path: Path) -> None:
    file = CASES["checkpoints"].make(tmp_path)
    file.write_bytes(sealed(json.dumps(renumbered(content_of(file), 3)).encode()))
    found = Checkpoints(tmp_path / "run").load()
    assert found.step == 1
    assert "expected format 1 or 2, got 3" in found.skipped[0]


@pytest.mark.parametrize("case", ["training", "inversion"])
@pytest.mark.parametrize("number", [0, 2, MISSING])
def test_objects_of_another_format(tmp_path: Path, case: str, number: object) -> None:
    file = CASES[case].make(tmp_path)
    content = renumbered(json.loads(file.read_text(encoding="utf-8")), number)
    file.write_text(json.dumps(content), encoding="utf-8")
    got = "none" if number == MISSING else number
    with pytest.raises(DataError, match=rf"\.json: expected format 1, got {got}\. .*another version.*repeat the run"):
        CASES[case].read(tmp_path)


def test_every_command_writes_the_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from torchlift.cli.app import run

    CASES["record"].make(tmp_path)
    assert run(["report", str(tmp_path), "--out", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == 1
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["format"] == 1


@pytest.mark.parametrize("version", ["0.0.9", "99.0.0", None])
def test_a_reproduction_goes_on_with_the_same_version_only(tmp_path: Path, version: str | None) -> None:
    file = CASES["settings"].make(tmp_path)
    content = json.loads(file.read_text(encoding="utf-8"))
    content["settings"]["torchlift"] = version
    if version is None:
        del content["settings"]["torchlift"]
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError, match=f"expected a run with version {__version__}, got {version}"):
        CASES["settings"].read(tmp_path)


def test_rows_of_an_older_history_are_read_and_of_a_newer_one_refused(tmp_path: Path) -> None:
    file = tmp_path / "history.jsonl"
    file.write_text('{"kind": "train", "step": 1}\n', encoding="utf-8")
    (row,) = read_history(file)
    assert row["gap"] is None and row["metrics"] == {}
    file.write_text('{"kind": "train", "step": 1, "temperature": 3}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"line 1: .*the fields kind, phase.*'temperature'"):
        read_history(file)


def test_configurations_have_no_number_but_known_names(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[training]\nsteps = 3\n", encoding="utf-8")
    assert read_configuration(file).training.steps == 3
    for text, reason in (
        ("[training]\ntemperature = 3\n", "'temperature'"),
        ("format = 2\n", "one of 'data', 'network'"),
    ):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidValueError, match=reason):
            read_configuration(file)


def train(folder: Path, resume: bool) -> tl.training.Training:
    generator = torch.Generator().manual_seed(0)
    network = MLP([3, 4, 2], generator=generator)
    data = torch.randn(20, 3, generator=generator), torch.randn(20, 2, generator=generator)
    options = tl.TrainOptions(checkpoint_every=0)
    return tl.train(network, data, steps=4, folder=folder, resume=resume, options=options, progress=False)


def without(name: str) -> Any:
    return lambda record: {key: value for key, value in record.items() if key != name}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without("state"), "not exactly the fields of this version: state"),
        (lambda record: {**record, "state": without("stale")(record["state"])}, "this version: stale"),
        (lambda record: {**record, "state": {**record["state"], "mood": 1}}, "this version: mood"),
        (lambda record: {**record, "state": {**record["state"], "steps": "4"}}, "steps is '4'"),
        (lambda record: {**record, "state": {**record["state"], "rows": 10**30}}, "rows is '1000"),
        (lambda record: {**record, "state": {**record["state"], "phase": -1}}, "phase is '-1'"),
        (lambda record: {**record, "numbers": [1]}, r"numbers is '\[1\]'"),
    ],
)
def test_trainings_of_another_version_are_refused(tmp_path: Path, change: Any, reason: str) -> None:
    train(tmp_path, resume=False)
    for file in (tmp_path / "checkpoints").glob("step-*/record.json"):
        content = content_of(file)
        content["record"]["record"] = change(content["record"]["record"])
        file.write_bytes(sealed(json.dumps(content).encode()))
    with pytest.raises(DataError, match=reason) as caught:
        train(tmp_path, resume=True)
    assert "go on with that version, or begin anew" in str(caught.value)
