"""Iterates on many processes are those of one, however layers and samples are divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from parallel import same_answer
from parallel.meshes import MADE, MESHES
from parallel.world import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1300)]

CLOSE = 1e-10
ANSWERS: dict[int, list[dict[str, Any]]] = {}


@pytest.fixture
def answers(processes: int, tmp_path: Path) -> list[dict[str, Any]]:
    """Those of a world with so many processes, which is made once."""
    if processes not in ANSWERS:
        world = [_here(tmp_path)] if processes == 1 else _world(processes, tmp_path)
        ANSWERS[processes] = world
    return ANSWERS[processes]


def _world(processes: int, folder: Path) -> list[dict[str, Any]]:
    return run(folder / "world", processes, "same_answer", str(processes), seconds=1200)


def _here(folder: Path) -> dict[str, Any]:
    """A world of one needs no process of its own."""
    dist.init_process_group("gloo", f"file://{folder / 'rendezvous'}", world_size=1, rank=0)
    try:
        return {name: case() for name, case in same_answer.cases("1").items()}
    finally:
        MADE.clear()
        dist.destroy_process_group()


@pytest.mark.parametrize("processes", MESHES)
def test_same_answer(processes: int, answers: list[dict[str, Any]]) -> None:
    compared = [name for name in answers[0] if name.startswith("data=")]
    assert len(compared) >= 3
    for name in compared:
        assert not isinstance(answers[0][name], str), f"{name}: {answers[0][name]}"
        distance, records, numbers = answers[0][name]
        assert distance <= CLOSE, name
        assert records <= CLOSE, name
        assert [answer[name][2] for answer in answers] == [numbers] * processes, name


@pytest.mark.parametrize("processes", [2, 4])
def test_any_division_of_layers_and_samples(processes: int, answers: list[dict[str, Any]]) -> None:
    for spec in MESHES[processes]:
        found = answers[0][f"partitions {spec}"]
        assert not isinstance(found, str), f"{spec}: {found}"
        worst, layers, samples = found
        assert worst <= CLOSE, spec
        data, parts = (int(axis.split("=")[1]) for axis in spec.split(","))
        assert any(len(set(row)) > 1 for row in layers) or parts == 1  # uneven parts
        assert any(1 in row for row in layers) or parts == 1  # a rank with a single layer
        assert any(len(set(row)) > 1 for row in samples) or data == 1  # uneven batches
        assert any(0 in row for row in samples) or data == 1  # a rank without samples


@pytest.mark.parametrize("processes", [2])
def test_one_exchange_per_sweep_while_the_interior_is_at_work(answers: list[dict[str, Any]]) -> None:
    first, last = (answer["order"] for answer in answers)
    assert [first.count(kind) for kind in ("send", "receive")] == [1, 1]
    assert [last.count(kind) for kind in ("send", "receive")] == [1, 1]
    # the first process sends before it works, and waits only after all of its three layers
    assert first.index("send") < first.index("row")
    assert first[: first.index("wait")].count("row") == 3
    # the last one evaluates all layers but that at the boundary before it waits for it
    assert last.index("receive") < last.index("row")
    assert last[: last.index("wait")].count("row") == 2
    assert last.count("row") == 3
    # and sends the cotangent as soon as that layer is done
    assert last.index("send") > last.index("wait")


@pytest.mark.parametrize("processes", [2])
def test_what_exact_weights_exchange(answers: list[dict[str, Any]]) -> None:
    """Layers 5 → 7 and 7 → 3, with a column of ones."""
    grams, crosses = 6 * 6 + 8 * 8, 7 * 6 + 3 * 8
    for answer in answers:
        found = answer["exchanged"]
        assert found["sums"] == [8 * (grams + crosses), 0]
        reduced, sent = found["iterations"]
        assert sent == 0
        # of the layer, RᵀX in every iteration; of the output, TᵀX once
        rest = reduced - 8 * (grams + 3 * 8)
        assert rest > 8 * 7 * 6
        assert rest % (8 * 7 * 6) == 0
        # five samples are fewer than six columns: three with each process, one of them empty with the second
        assert found["few"] == [0, 8 * 3 * (5 + 7 + 7 + 3)]
