"""Where auxiliary variables start: claims on made-up numbers, and a tiny run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from torchlift.lab.reproduction import Options, Work
from torchlift.lab.reproduction.auxiliary_start import STARTS, AuxiliaryStart, claims
from torchlift.lab.reproduction.restoration import SPLITS, Outcome
from torchlift.lab.trajectory import Trajectory
from torchlift.report.records import Table


def outcome(ends: Sequence[float], *, recognised: bool = True) -> Outcome:
    rows = [{"step": 10 * number, "validation psnr": value} for number, value in enumerate(ends)]
    read: dict[str, float] = dict.fromkeys(SPLITS, 0.5)
    return Outcome(Trajectory(rows), torch.full((4,), ends[-1]), read, dict.fromkeys(SPLITS, recognised), False)


STEADY = [outcome([10, 17.9, 18.0 + shift]) for shift in (0.0, 0.1, 0.2)]
RESTLESS = [outcome([10, 5.0, 9.0 + shift]) for shift in (0.0, 0.5, 1.0)]
NOTHING = [outcome([10, 12.5, 12.5], recognised=False)] * 3


@pytest.mark.parametrize(
    ("replicated", "random", "expected"),
    [
        (STEADY, RESTLESS, ["held", "held"]),
        (RESTLESS, STEADY, ["did not hold", "did not hold"]),
        (STEADY, NOTHING, ["held", "held"]),
        (NOTHING, STEADY, ["did not hold", "did not hold"]),
        (STEADY, [outcome([10, 18, 18.3]), STEADY[0], STEADY[1]], ["not decidable", "held"]),
    ],
)
def test_claims(replicated: list[Outcome], random: list[Outcome], expected: list[str]) -> None:
    runs = {"input": replicated, "random": random}
    assert [claim.outcome for claim in claims(runs)] == expected


def test_seeds_and_starts_differ(tmp_path: Path) -> None:
    found = AuxiliaryStart().run(Work("tiny", 0, tmp_path, options=Options(seeds=3)))
    table = next(figure for figure in found.figures if isinstance(figure, Table))
    assert [row[0] for row in table.rows] == [name for name in STARTS.values() for _ in range(3)]
    assert len({row[-1] for row in table.rows}) == len(table.rows)
    assert found.configuration["seeds"] == [0, 1, 2]
    assert {claim.outcome for claim in found.claims} == {"not decidable"}
