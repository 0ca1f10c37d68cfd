"""`torchlift bench photographs`: it runs, goes on where it was, and Muon keeps its memory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from torchlift.cli import main
from torchlift.lab.benchmarks import photographs
from torchlift.lab.benchmarks.optimisers import Muon


def test_a_moment_of_each_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photographs, "TIMED", 1)
    monkeypatch.setattr(photographs, "build", lambda row, seed: photographs.Residual(4))
    monkeypatch.setitem(photographs.BASELINES, "Muon", (photographs.BASELINES["Muon"][0], (1e-3,)))
    images = np.random.default_rng(0).integers(0, 256, (44, 57, 60), dtype=np.uint8)
    np.savez(tmp_path / "train.npz", images=images)
    np.savez(tmp_path / "test.npz", a=images[0], b=images[1, :50])
    arguments = ["bench", "photographs", "ours", "Muon", "--images", str(tmp_path / "train.npz")]
    arguments += ["--test", str(tmp_path / "test.npz"), "--records", str(tmp_path / "records")]
    arguments += ["--work", str(tmp_path / "work"), "--seconds", "0.2", "--json"]
    assert main(arguments) == 0
    records = json.loads(capsys.readouterr().out)["records"]
    assert [record["row"] for record in records] == ["ours", "Muon"]
    assert records[1]["rate"] == 1e-3 and records[0]["parameters"] < 50_000
    assert all(record["steps"] >= 1 and record["test"] > 5 for record in records)
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["records"] == records
    pictures = {file.name for file in (tmp_path / "records").glob("*.png")}
    assert pictures == {"clean.png", "noisy.png", "ours-0-s-0.png", "muon-0-s-0.png"}
    (tmp_path / "records" / "ours-0-s-0.png").unlink()  # drawn again from the finished run, without a step
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["records"] == records
    assert (tmp_path / "records" / "ours-0-s-0.png").read_bytes().startswith(b"\x89PNG")
    assert main(["bench", "photographs", "--records", str(tmp_path / "records"), "--table"]) == 0
    assert "| Muon, rate 0.001, cosine | 0 s |" in capsys.readouterr().out


def test_images_are_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "photographs"]) == 2
    assert "an .npz file" in capsys.readouterr().err


def test_muon_on_filters_is_muon_on_matrices() -> None:
    """The same steps as torch's Muon on flattened filters, also after its memory was saved and loaded."""
    torch.manual_seed(0)
    filters = nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    matrix = nn.Parameter(filters.weight.detach().permute(0, 2, 3, 1).flatten(1).clone())
    reference = torch.optim.Muon([matrix], lr=0.1, adjust_lr_fn="match_rms_adamw")
    optimiser = Muon(list(filters.parameters()), 0.1)
    for step in range(4):
        gradient = torch.randn(6, 4, 3, 3).contiguous(memory_format=torch.channels_last)
        filters.weight.grad, filters.bias.grad = gradient, torch.ones(6)
        matrix.grad = gradient.permute(0, 2, 3, 1).flatten(1).clone()
        optimiser.step()
        reference.step()
        torch.testing.assert_close(filters.weight.detach().permute(0, 2, 3, 1).flatten(1), matrix.detach())
        if step == 1:
            saved = optimiser.state_dict()
            optimiser = Muon(list(filters.parameters()), 0.1)
            optimiser.load_state_dict(saved)


def test_bm3d_goes_on_at_the_image_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was stopped at the second image, and one that was not, have the same record."""
    images = [torch.full((1, 8, 8 + k), 40 * k, dtype=torch.uint8) for k in range(3)]

    def stopped(y: torch.Tensor) -> torch.Tensor:
        if y.shape[-1] == 9 and not (tmp_path / "stopped").exists():
            (tmp_path / "stopped").touch()
            raise KeyboardInterrupt
        return y

    monkeypatch.setattr(photographs, "bm3d", stopped)
    monkeypatch.setattr(photographs, "example", lambda: (torch.zeros(1, 1, 8, 8),) * 2)
    records = []
    for name in ("broken", "whole"):
        bench = photographs.Bench(images, tmp_path / name / "records", tmp_path / name, 1.0)
        if name == "broken":
            with pytest.raises(KeyboardInterrupt):
                bench.row("BM3D", images)
        records.append(bench.row("BM3D", images)["test"])
    assert records[0] == records[1] == round(photographs.measure(lambda y: y, images, 2), 3)
