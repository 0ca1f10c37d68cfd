"""`bench step`: what it measures, on small modules."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from torchlift.cli import main
from torchlift.lab.benchmarks.step import difference, files_of_a_step, measure
from torchlift.lab.benchmarks.step_modules import CASES, StepCase, UNet, dense

SMALL = StepCase("small", lambda: dense((6, 5, 3), nn.ReLU), (6,), 20, 3, 1.0)


def test_a_case_is_timed_against_fused_adam() -> None:
    times = measure(SMALL, repeats=3, seconds=0.01)
    assert times["plain"] > 0 and times["low"] <= times["ratio"] <= times["high"] and times["start_up"] >= 0
    assert times["difference"] < 1e-6 and times["name"] == "small"


@pytest.mark.parametrize("case", [SMALL, StepCase("U-Net", lambda: UNet(2), (1, 8, 8), 4)], ids=lambda case: case.name)
def test_sweeps_tend_to_back_propagation(case: StepCase) -> None:
    assert difference(case) < 1e-6


def test_one_step_passes_few_files() -> None:
    assert len(files_of_a_step()) <= 8


def test_every_case_can_be_built() -> None:
    for case in CASES:
        if "ResNet" not in case.name:  # 11 million weights
            module = case.build()
            with torch.no_grad():
                assert len(module(torch.rand(2, *case.shape))) == 2


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "step", "--cases", "1-d", "--repeats", "1", "--seconds", "0.01", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in record["rows"]] == ["1-d convolutions"] and len(record["files of a step"]) <= 8
    assert main(["bench", "step", "--cases", "1-d", "--repeats", "1", "--seconds", "0.01"]) == 0
    assert "1-d convolutions" in capsys.readouterr().out
    assert main(["bench", "step", "--cases", "nothing"]) != 0
