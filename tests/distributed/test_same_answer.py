"""Iterates on many processes are those of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from distributed.world import run

CLOSE = 1e-10

#: By number of processes: the cases of each mesh, as `same_answer.cases` reads them.
WORLDS = {
    1: ("data=1,layers=1 5 0 2",),
    2: ("data=2,layers=1 4 1 20", "data=1,layers=2 1 0 20"),
    4: ("data=2,layers=2 4 0 1", "data=1,layers=4 4 1 1", "data=4,layers=1 12 3 2"),
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", WORLDS)
def test_same_answer(processes: int, tmp_path: Path) -> None:
    answers = run(tmp_path / "world", processes, "same_answer", *WORLDS[processes], seconds=280)
    assert len(answers[0]) >= 5
    for name, answer in answers[0].items():
        assert not isinstance(answer, str), f"{name}: {answer}"
        distance, values, third = answer
        assert distance <= CLOSE, name
        assert values <= CLOSE, name
        assert [answer[name][2] for answer in answers] == [third] * processes, name
        assert third is not False, f"{name}: stopped for another reason"
