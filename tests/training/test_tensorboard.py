"""TensorBoard reads back what was written; without the package the error says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchlift.core.errors import TorchliftError
from torchlift.training.history import History
from torchlift.training.tensorboard import TensorBoardWriter


def _rows(steps: range) -> History:
    history = History()
    for step in steps:
        history.append({"kind": "train", "step": step, "loss": 1.0 / step, "objective": 2.0 / step})
        history.append({"kind": "validation", "step": step, "metrics": {"psnr": 20.0 + step, "ssim": None}})
    return history


def _read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture
def _installed() -> None:
    pytest.importorskip("tensorboard", reason="the extra torchlift[tensorboard] is not installed")


@pytest.mark.usefixtures("_installed")
def test_rows_become_scalars(tmp_path: Path) -> None:
    with TensorBoardWriter(tmp_path) as writer:
        for row in _rows(range(1, 4)):
            writer.write(row)
        writer.sync()
        found = _read(tmp_path)
    assert set(found) == {"train/loss", "train/objective", "validation/psnr"}
    assert found["validation/psnr"] == [(1, 21.0), (2, 22.0), (3, 23.0)]
    assert [value for _, value in found["train/objective"]] == pytest.approx([2.0, 1.0, 2 / 3])


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("kept", [0, 1, 5, 6])
def test_a_resumed_writer_repeats_nothing(kept: int, tmp_path: Path) -> None:
    """The run is cut after 5 steps, two rows each, and goes on from the first `kept` rows."""
    rows = _rows(range(1, 7)).to_dicts()
    with TensorBoardWriter(tmp_path) as writer:
        for row in rows[:10]:
            writer.write(row)
    with TensorBoardWriter(tmp_path, rows[:kept]) as writer:
        for row in rows[kept:]:
            writer.write({**row, "metrics": {name: 1.0 for name in row["metrics"] if name != "ssim"}})
    found = _read(tmp_path)
    assert [step for step, _ in found["train/loss"]] == [1, 2, 3, 4, 5, 6]
    expected = [(row["step"], row["metrics"]["psnr"]) for row in rows[1:kept:2]]
    assert found["validation/psnr"] == [*expected, *((row["step"], 1.0) for row in rows[1::2][len(expected) :])]


def test_without_the_package_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(TorchliftError, match=r'pip install "torchlift\[tensorboard\]"'):
        TensorBoardWriter(tmp_path)
    assert list(tmp_path.iterdir()) == []
