"""Gradients are summed while the way back goes on, and are those that are summed at its end."""

from __future__ import annotations

from typing import Any

import pytest

from parallel import gradients
from parallel.world import run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("gradients") / "world", 2, "gradients", seconds=280)


@pytest.mark.parametrize("counts", [(3, 2), (4, 0)], ids=str)
@pytest.mark.parametrize("name", gradients.MODULES)
def test_sums_on_the_way_are_those_at_the_end(
    name: str, counts: tuple[int, int], answers: list[dict[str, Any]]
) -> None:
    for answer in answers:
        found = answer[f"summed {name} {counts}"]
        assert not isinstance(found, str), found
        distance, events = found
        assert distance <= 1e-14
        assert "sum" in events[: events.index("end")]  # those of the last layers, before the signal is at the input


def test_gradients_are_made_while_statistics_travel(answers: list[dict[str, Any]]) -> None:
    """Four layers, whose weights are summed one by one and their biases, and the loss, two by two."""
    layer = ["numbers", "gradient", "wait", "numbers", "sum", "wait"]
    two = [*layer[:-1], "sum", "wait"]
    for answer in answers:
        assert answer["order"] == [*layer, *two, *layer, "gradient", "sum", "sum", "wait", "numbers"]


def test_work_is_divided(answers: list[dict[str, Any]]) -> None:
    first, second = (answer["divided"] for answer in answers)
    for one, other, count in zip(first, second, (1, 2, 3, 5), strict=True):
        assert one[0] <= 1e-14 and other[0] <= 1e-14
        assert one[1] + other[1] == (count if count > 1 else 2)
        assert one[2] == other[2] == count
