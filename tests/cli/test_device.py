"""--device: where commands compute. What is moved is seen on `meta` everywhere, and on an accelerator where one is."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from torchlift.cli import main
from torchlift.cli.invert_files import read_batch
from torchlift.core.checks import check_device
from torchlift.core.errors import InvalidValueError
from torchlift.lab.benchmarks.layers import Evaluations
from torchlift.lab.problem import build, load_images
from torchlift.lab.reproduction import Options, Work
from torchlift.lab.reproduction.inverse_problems import Denoising

ACCELERATOR = torch.accelerator.current_accelerator(check_available=True)
DEVICES = ["cpu", *([] if ACCELERATOR is None else [ACCELERATOR.type])]

TRAIN = ["train", "--data.images", "20", "--data.validation", "5", "--network.widths", "9", "--training.steps", "2"]


def test_known_devices_pass_and_others_are_refused() -> None:
    assert check_device("device", "cpu").type == "cpu"
    for bad in ("meta", "gpu", "cuda:99", ""):
        with pytest.raises(InvalidValueError, match="device: expected one of cpu"):
            check_device("device", bad)


@pytest.mark.parametrize("device", DEVICES)
def test_train_and_invert_there(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main([*TRAIN, "--training.device", device, "--out", str(run)]) == 0
    assert f'device = "{device}"' in (run / "config.toml").read_text(encoding="utf-8") or device == "cpu"
    np.save(tmp_path / "y.npy", np.full((2, 784), 0.5, dtype=np.float32))
    capsys.readouterr()
    arguments = ["invert", str(run / "model"), str(tmp_path / "y.npy"), "--max-steps", "2", "--device", device]
    assert main([*arguments, "--json", "--out", str(tmp_path / "x")]) == 0
    assert len(json.loads(capsys.readouterr().out)["images"]) == 2
    assert np.isfinite(np.load(tmp_path / "x" / "x.npy")).all()


@pytest.mark.parametrize("arguments", [
    [*TRAIN, "--training.device", "meta"],
    ["bench", "layers", "--device", "nowhere"],
    ["bench", "solvers", "--device", "meta"],
    ["reproduce", "denoising", "--device", "meta"],
])  # fmt: skip
def test_a_device_that_is_not_there_is_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert "device: expected one of cpu" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_everything_of_the_layer_tables_is_moved() -> None:
    """A tensor left on the processor would be refused beside one on `meta`."""
    evaluations = Evaluations(5, 3, 4, 0, "meta")
    for call in (*evaluations.forward().values(), *evaluations.backward().values()):
        call()
    assert evaluations.stack.device.type == "meta"


def test_images_are_the_same_everywhere(tmp_path: Path) -> None:
    assert load_images("denoising", 2, 2, 0, 14, "meta").y.device.type == "meta"
    assert build(0.2, 0, side=14).to("meta")(load_images("denoising", 2, 2, 0, 14, "meta").y).device.type == "meta"
    np.save(tmp_path / "y.npy", np.zeros((2, 3)))
    assert read_batch(tmp_path / "y.npy", (3,), torch.empty(0, device="meta")).device.type == "meta"


@pytest.mark.skipif(ACCELERATOR is None, reason="no accelerator")
def test_reproduction_on_an_accelerator(tmp_path: Path) -> None:
    assert ACCELERATOR is not None
    result = Denoising().run(Work("tiny", 0, tmp_path, options=Options(device=ACCELERATOR.type)))
    assert result.claims
