"""A run stopped on one mesh goes on with any other, or alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from distributed import saving, shapes
from distributed.world import run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_save_on_one_mesh_and_resume_on_others(tmp_path: Path) -> None:
    place = tmp_path / "runs"
    place.mkdir()
    stopped = run(tmp_path / "first", 4, "saving", str(place), seconds=140)
    assert all(answer == {"lifted": saving.STOP, "sweeps": saving.STOP} for answer in stopped)
    for mesh in saving.MESHES:
        shutil.copytree(place / "lifted", place / f"lifted {mesh}")
    shutil.copytree(place / "sweeps", place / "sweeps data=4")
    (place / "stopped").touch()
    resumed = run(tmp_path / "second", 4, "saving", str(place), seconds=140)
    for name in saving.RUNS:
        expected = saving.train(name)
        wanted = torch.cat([p.detach().flatten() for p in expected.network.parameters()])
        assert saving.train(name, place / name, resume=True).steps == saving.STEPS
        alone = saving.train(name, place / name, resume=True)
        assert shapes.distance(alone.network, expected.network) <= 1e-10
        for answer in resumed:
            for case in (case for case in answer if case.startswith(name)):
                found = torch.tensor(answer[case], dtype=torch.float64)
                assert float((found - wanted).abs().max()) <= 1e-10, case
