"""`torchlift bench inversion` in its tiny mode, and its answers to bad input."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from torchlift.cli.app import run
from torchlift.lab.commands.bench_inversion import _lines, gains


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHLIFT_DATA", str(tmp_path / "nowhere"))


def test_gains_have_a_panel_per_level() -> None:
    def row(level: float, noise: float, gain: float) -> dict[str, object]:
        cells = [{"name": "Adam", "gain": [gain, 0.1]}, {"name": "sweep", "gain": [2 * gain, 0.5]}]
        return {"level": level, "noise": noise, "contestants": cells}

    panels = gains([row(0.1, 0.3, 1.0), row(0.1, 0.1, 2.0), row(0.2, 0.1, 3.0)])
    assert [panel.title for panel in panels] == ["trained to 0.1", "trained to 0.2"]
    adam, sweep = panels[0].series
    assert (adam.label, sweep.label) == ("Adam", "sweep")
    assert (sweep.x, sweep.y, sweep.low, sweep.high) == ([0.1, 0.3], [4.0, 2.0], [3.5, 1.5], [4.5, 2.5])


def test_the_tiny_mode_measures_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["bench", "inversion", "autoencoder", "coverage", "scale", "--tiny", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    for heading in ("Gain over the decoder", "Coverage of 90 %", "One call", "processor seconds"):
        assert heading in text
    record = json.loads((out / "bench-inversion.json").read_text(encoding="utf-8"))
    (row,) = record["autoencoder"]
    names = [cell["name"] for cell in row["contestants"]]
    baselines = ["Adam, rate 0.05", "Adam, rate 0.02", "nested PDHG", "L-BFGS"]
    assert names == [*baselines, "sweep", "default", "default, SURE"]
    assert [cell["name"] for cell in row["contestants"] if cell["baseline"]] == baselines
    for cell in row["contestants"]:
        gain = cell["psnr"][0] - row["decoder"][0]
        assert cell["gain"][0] == pytest.approx(gain, abs=1e-4)
    # all from the decoder with the same weight and anchor, but SURE, which chooses its own
    shared = {(cell["weight"], cell["anchor"]) for cell in row["contestants"] if "SURE" not in cell["name"]}
    assert len(shared) == 1 and min(*shared.pop()) > 0
    assert [each["images"] for each in record["growth"]] == [1, 4, 8]
    (cover,) = record["coverage"]
    assert (cover["held out"], cover["images"]) == (2, 3) and cover["chosen"].startswith("SURE")
    assert 0 <= cover["calibrated"][0] <= 1 and cover["factor"] >= 0
    figures = {file.name for file in (out / "figures").iterdir()}
    assert {"bench-inversion.png", "bench-inversion.svg", "loss-0.2.png"} <= figures
    with np.load(out / "loss-0.2.npz") as pictures:
        assert set(pictures) == {"input", "decoder", "default", "default,_SURE"}


def test_training_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "inversion", "--tiny", "--train-only", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["training"][0]["level"] == 0.2 and "autoencoder" not in record
    assert list((tmp_path / "cache").rglob("tensors.safetensors"))


def test_ours_are_compared_with_the_best_baseline() -> None:
    cells = [
        {"name": "Adam", "gain": [2.0, 0.1], "baseline": True},
        {"name": "L-BFGS", "gain": [2.5, 0.1], "baseline": True},
        {"name": "default", "gain": [2.4, 0.1], "baseline": False},
    ]
    row = {"level": 0.1, "noise": 0.3, "decoder": [20.0, 0.1], "clamped decoder": [0.5, 0.1], "contestants": cells}
    decoder, clamped, *others = _lines(row)
    assert (decoder["psnr"][0], clamped["gain"][0]) == (20.0, 0.5)
    assert [line["ahead"] for line in others] == [None, None, pytest.approx(-0.1)]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["autoencodr"], "Did you mean 'autoencoder'?"),
        (["--data", "cifar"], "'mnist' or 'digits', got 'cifar'"),
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
