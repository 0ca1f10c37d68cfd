"""Stages on processes of their own give the numbers of stages in one process, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from parallel import pipelines
from parallel.world import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1300)]


def close(found: list[list[float]], expected: list[list[float]], data: int) -> None:
    tolerance = 0.0 if data == 1 else 1e-10  # sums over samples are added in another order
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=tolerance, atol=tolerance)


def compare(answers: list[dict[str, Any]], folder: Path) -> None:
    for case, together in answers[0].items():
        assert not isinstance(together, str), f"{case}: {together}"
        kind, spec = case.split()
        data, stages = (int(axis.partition("=")[2]) for axis in spec.split(","))
        name = {"recompute": "dense", "stopped": "chain"}.get(kind, kind)
        alone = pipelines.numbers(pipelines.train(name, stages=stages, recompute=kind == "recompute"))
        close(together, alone, data)
        for answer in answers[1:]:
            assert answer[case][0] == together[0], case
        if kind == "stopped" and data == 1:  # and one process goes on where many have stopped
            resumed = pipelines.train("chain", stages=stages, folder=folder / spec, resume=True)
            close(pipelines.numbers(resumed), together, data)


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_give_the_numbers_of_one(processes: int, tmp_path: Path) -> None:
    answers = run(tmp_path / "world", processes, "pipelines", str(tmp_path), str(processes), seconds=1200)
    assert len(answers[0]) >= 4
    compare(answers, tmp_path)
