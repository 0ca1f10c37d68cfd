"""`torchlift train --mesh` under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchlift.cli import main
from torchlift.io import load_model
from torchlift.training import read_history

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

CONFIG = """
[data]
images = 41
validation = 10

[network]
widths = [12]
dtype = "float64"

[training]
steps = 4
batch_size = 10
threads = 1
"""


@pytest.mark.timeout(200)
def test_the_command_on_two_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    command = ["-m", "torchlift", "train", str(config), "--mesh", "data=2", "--out", str(tmp_path / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*LAUNCHER, *command], env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Trained 4 steps") == 1
    assert main(["train", str(config), "--out", str(tmp_path / "one")]) == 0
    capsys.readouterr()
    one, two = (load_model(tmp_path / name / "model") for name in ("one", "two"))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    rows = [[row["step"] for row in read_history(tmp_path / name / "history.jsonl")] for name in ("one", "two")]
    assert rows[0] == rows[1]


def test_without_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG)
    assert main(["train", str(config), "--mesh", "data=2,layers=2"]) == 2
    assert "processes started by torchrun, got none. Start with 'torchrun --nproc-per-node 4" in capsys.readouterr().err
