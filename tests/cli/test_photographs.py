"""`torchlift train` on folders of photographs and on large images."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from torchlift.cli import main
from torchlift.io import load_model
from torchlift.operators import Separable

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "photographs"
    place.mkdir()
    ramp = np.linspace(0, 255, 24 * 20).reshape(24, 20).astype(np.uint8)
    for number in range(5):
        Image.fromarray(np.roll(ramp, 3 * number)).save(place / f"{number}.png")
    return place


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    status = main(["train", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_example_trains_on_a_folder_and_goes_on(capsys: Capture, repository: Path, folder: Path, tmp_path: Path):
    example = repository / "examples" / "photographs.toml"
    small = ("--data.path", folder, "--data.patch-size", 12, "--data.patches", 20, "--network.iterations", 2,
             "--network.features", 6, "--training.threads", 1, "--json")  # fmt: skip
    status, out, err = run(capsys, example, *small, "--training.steps", 3, "--out", tmp_path / "run")
    assert (status, err) == (0, "")
    record = json.loads(out)
    assert record["steps"] == 3 and record["network"]["kind"] == "ScCP"
    assert record["validation"]["best"]["metrics"]["psnr"] > 0
    network = load_model(tmp_path / "run" / "model")
    assert network.for_images((1, 24, 20))(torch.zeros(1, 1, 24, 20)).shape == (1, 1, 24, 20)
    status, out, _ = run(capsys, "--resume", tmp_path / "run", "--training.steps", 5, "--json")
    assert status == 0 and json.loads(out)["steps"] == 5


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (("--data.set", "photographs"), "a folder of image files"),
        (("--data.set", "photographs", "--data.path", "PLACE", "--data.patch-size", 21), "at least 21 x 21 pixels"),
        (("--data.set", "photographs", "--data.path", "PLACE", "--data.validation", 5), "fewer than the 5 images"),
        (("--data.set", "photographs", "--data.path", "PLACE", "--data.task", "classification"), "for photographs"),
        (("--data.set", "digits", "--data.patch-size", 8), "set = 'photographs'"),
        (("--network.kind", "DDFB", "--data.task", "deblurring"), "task = 'denoising'"),
    ],
)
def test_mistakes_get_one_line(capsys: Capture, folder: Path, flags: tuple, text: str):
    status, _, err = run(capsys, *(folder if flag == "PLACE" else flag for flag in flags))
    assert status != 0 and text in err


def test_large_colour_images_have_separable_dictionaries(capsys: Capture, tmp_path: Path):
    np.savez(tmp_path / "colour.npz", targets=np.random.default_rng(0).random((6, 3, 24, 20), np.float32))
    given = ("--data.set", "files", "--data.path", tmp_path / "colour.npz", "--network.iterations", 2, "--json")
    for kind, name in (("PrimalDual", "analysis"), ("LISTA", "dictionary")):
        out = tmp_path / kind
        status, text, _ = run(capsys, *given, "--network.kind", kind, "--training.steps", 2, "--out", out)
        assert status == 0 and json.loads(text)["network"]["parameters"] < 5000  # a matrix would have 1440² entries
        operator = load_model(out / "model").get_submodule(name).stack.template
        assert isinstance(operator if kind == "PrimalDual" else operator.T, Separable)
    status, text, _ = run(
        capsys, *given, "--network.kind", "PrimalDual", "--network.dictionary", "convolution", "--dry-run"
    )
    assert status == 0 and json.loads(text)["network"]["shapes"]["analysis.stack.weight"] == [2, 147, 3, 7, 7]
