"""Mistakes, failures and disagreement among processes are told to all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel.world import World, run
from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.parallel import as_mesh, parse_mesh

pytestmark = pytest.mark.timeout(300)

REFUSED = {
    "settings": "seed to be the same on all ranks, got 0 on rank 0, 1 on rank 1",
    "torchlift version": "torchlift version to be the same on all ranks",
    "torch version": "torch version to be the same on all ranks",
    "python version": "python version to be the same on all ranks, got",
    "data": "first sample to be the same on all ranks",
    "world size": "mesh 'data=3': expected 3 processes, got 2",
    "Shallow": "mesh axis layers: expected a chain of layers, got Shallow. Use the axis data",
    "sweeps": "mesh axis layers: expected a chain of layers, got Shallow. Lift it",
    "torch": "at most 1 stages of this network, got 2. Use at most layers=1",
    "too many": "at most 1 parts of this network, got 2. Use at most layers=1",
    "coupled": "mesh axis layers: expected a hard coupling, got a quadratic one. Use the axis data",
    "regularised": "mesh axis layers: expected an objective without regularisers, got one with them. Use the axis data",
    "warm": "lifted variables that start anew in every batch, got states='warm'",
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run(tmp_path_factory.mktemp("faults") / "world", 2, "faults", "faults", seconds=250)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_on_all_ranks(case: str, answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer[case].startswith("error")
        assert REFUSED[case] in answer[case]


def test_a_bad_sample_stops_all_and_names_its_rank(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        assert answer["NaN in a sample"].startswith("A value became NaN or infinite, in step 1")
        assert "on rank 1" in answer["NaN in a sample"]
        assert "rank 0" not in answer["NaN in a sample"]


def test_a_bad_layer_stops_all_and_names_its_rank_and_layers(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["NaN in a layer"] == answers[1]["NaN in a layer"]
    assert answers[0]["NaN in a layer"] == "block 'parameters' is not finite on rank 1 (layers 3 to 4)"


def test_the_weights_of_rank_0_count(answers: list[dict[str, Any]]) -> None:
    assert isinstance(answers[0]["weights"], float)
    assert answers[0]["weights"] == answers[1]["weights"]
    assert answers[0]["buffers"] == answers[1]["buffers"]
    assert answers[0]["buffers"][0] == 0.5


def test_all_stop_at_the_same_step(answers: list[dict[str, Any]]) -> None:
    assert answers[0]["callback"] == answers[1]["callback"] == [3, "stopped"]
    assert answers[0]["time limit"] == answers[1]["time limit"]
    assert answers[0]["time limit"][1] == "time_limit"


def test_what_a_gradient_exchanges(answers: list[dict[str, Any]]) -> None:
    for answer in answers:
        sent, reduced, parameters = answer["traffic"]
        assert sent == 6 * 7 * 8  # six samples of the second layer's width: z forward from rank 0, cotangents back
        assert reduced == parameters * 8


HUNG = {
    "layers=2": (
        "rank 0 (layers 1 to 2): expected an exchange with rank 1 (layers 3 to 4)",
        "got no answer from rank 1 (layers 3 to 4)",
    ),
    "data=2": ("rank 0: expected a sum", "got no answer from rank 1"),
}


def test_a_hung_rank_is_named(tmp_path: Path) -> None:
    worlds = {}
    for mesh in HUNG:
        folder = tmp_path / mesh
        folder.mkdir()
        worlds[mesh] = World(folder, 2, "faults", f"hang {mesh}", str(folder))
    codes = {mesh: world.wait(120) for mesh, world in worlds.items()}
    for mesh, (begin, rest) in HUNG.items():
        assert None not in codes[mesh], worlds[mesh].output()
        said = worlds[mesh].answers()[0]["hang"]
        assert said.startswith(f"error MeshError: {begin}")
        assert rest in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data=2,width=2", "expected the axes data and layers, got 'width'"),
        ("data=0", "mesh axis data: expected one whole number >= 1"),
        ("layers=two", "mesh axis layers: expected one whole number >= 1"),
        ("data=2,data=2", "mesh axis data: expected one whole number >= 1"),
    ],
)
def test_bad_specifications(text: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        parse_mesh(text)


def test_specifications() -> None:
    assert parse_mesh("layers=2, data=3") == {"data": 3, "layers": 2}
    assert parse_mesh("data=2") == {"data": 2, "layers": 1}
    with pytest.raises(InvalidTypeError, match="a text such as"):
        parse_mesh(2)  # pyright: ignore[reportArgumentType]


def test_without_a_process_group() -> None:
    with pytest.raises(InvalidValueError, match=r"initialised process group, got none\. .*torchrun --nproc-per-node 4"):
        as_mesh("data=2,layers=2")
