"""`torchlift bench inversion` in its tiny mode, and its answers to bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from torchlift.cli.app import run
from torchlift.lab.commands.bench_inversion import _verdict


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHLIFT_DATA", str(tmp_path / "nowhere"))


def test_the_tiny_mode_measures_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["bench", "inversion", "autoencoder", "scale", "--tiny", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    for heading in ("Gain over the decoder", "One call", "processor seconds"):
        assert heading in text
    record = json.loads((out / "bench-inversion.json").read_text(encoding="utf-8"))
    (row,) = record["autoencoder"]
    names = [cell["name"] for cell in row["contestants"]]
    assert names == ["Adam", "nested PDHG", "sweep", "Adam from decoder", "sweep from decoder"]
    for cell in row["contestants"]:
        gain = cell["psnr"][0] - row["decoder"][0]
        assert cell["gain"][0] == pytest.approx(gain, abs=1e-4)
        assert (cell["anchor"] > 0) == cell["name"].endswith("decoder")
    assert [each["images"] for each in record["growth"]] == [1, 4, 8]
    assert {"bench-inversion.png", "bench-inversion.svg", "loss-0.2.png"} <= {file.name for file in out.iterdir()}
    with np.load(out / "loss-0.2.npz") as pictures:
        assert set(pictures) == {"input", "decoder", "sweep", "sweep_from_decoder"}


def test_training_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "inversion", "--tiny", "--train-only", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["training"][0]["level"] == 0.2 and "autoencoder" not in record
    assert list((tmp_path / "cache").rglob("tensors.safetensors"))


def test_targets_are_judged_by_gain_and_time() -> None:
    row = {"level": 8.3e-3, "noise": 0.1}
    cell = {"name": "sweep", "gain": [2.0, 0.1], "time ratio": 0.3}
    assert _verdict(row, cell) == "+1.9: yes"
    assert _verdict(row, {**cell, "time ratio": 0.5}).endswith("no")
    assert _verdict(row, {**cell, "gain": [1.8, 0.1]}).endswith("no")
    assert _verdict({**row, "noise": 0.3}, cell) == _verdict(row, {**cell, "name": "Adam"}) == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["autoencodr"], "Did you mean 'autoencoder'?"),
        (["--data", "cifar"], "one of mnist, digits, got 'cifar'"),
        (["--levels", "-1"], "autoencoder level"),
        (["--noise", "0", "--tiny", "--images", "x"], "--images"),
        (["--images", "0"], "images: expected a whole number >= 1, got 0"),
        (["--noise", "0"], "noise: expected"),
        (["--threads", "0"], "threads"),
        (["autoencoder"], "set TORCHLIFT_DATA to their folder"),
    ],
)
def test_bad_input_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    assert run(["bench", "inversion", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith("torchlift: ") and reason in captured.err
