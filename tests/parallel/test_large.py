"""What `torchlift bench distributed` measures is the work of one process, divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel.world import run
from torchlift.parallel.mesh import LARGE


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_contestants_take_the_steps_of_one_process(tmp_path: Path) -> None:
    assert LARGE <= 192 * 192 * 8, "or nothing here is summed where it lies"
    for answer in run(tmp_path / "world", 2, "large", seconds=280):
        assert answer.keys() == {"lifted data=2", "sweeps data=2", "lifted layers=2"}
        assert all(distance <= 1e-10 for distance in answer.values()), answer
