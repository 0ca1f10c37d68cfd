"""Figures refuse what cannot be shown."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchlift.core.errors import InvalidTypeError, InvalidValueError
from torchlift.networks import MLP, ResNet
from torchlift.report.records import Claim, HeatMap, Pictures, Record, Series, Table, environment, network_blocks
from torchlift.report.records.environment import package_version

IMAGES = torch.zeros(2, 3, 3)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Claim("a", "b", "maybe"), "expected one of 'held', 'did not hold', 'not decidable', got 'maybe'"),  # pyright: ignore[reportArgumentType]
        (lambda: Table("t", "T", ["a"], [[1, 2]]), "Table t: expected rows of 1 cells, got 2"),
        (lambda: Table("t", "T", ["a"], [[1]], ["", ""]), "Table t formats: expected 1, one per column, got 2"),
        (lambda: Table("t", "T", ["a"], [[1]], [".2q"]), "Table t formats: expected format specifications"),
        (lambda: Series("s", [1, 2], [1]), "Series s y: expected 2 numbers, one per x, got 1"),
        (lambda: Series("s", [1], [1], low=[1, 2]), "Series s low: expected 1 numbers, one per x, got 2"),
        (lambda: Pictures("p", "P", {}), "rows of equally many images .* got none"),
        (lambda: Pictures("p", "P", {"a": IMAGES, "b": IMAGES[:1]}), "rows of equally many images"),
        (lambda: Pictures("p", "P", {"a": IMAGES[0]}), "rows of equally many images"),
        (lambda: Pictures("p", "P", {"a": IMAGES}, truth="b"), "expected rows among a, got 'b'"),
        (lambda: Pictures("p", "P", {"a": IMAGES}, {"c": ["x"]}), "expected rows among a, got 'c'"),
        (lambda: HeatMap("h", "H", "x", "y", "v", [1], ["a", "b"], torch.zeros(1, 2)), r"values of shape \(2, 1\)"),
    ],
)
def test_refusals(make: Any, reason: str) -> None:
    with pytest.raises(InvalidValueError, match=reason):
        make()


def test_figures_of_one_name_are_refused() -> None:
    table = Table("t", "T", ["a"], [])
    with pytest.raises(InvalidValueError, match="Record r: expected figures with names of their own, got t, t"):
        Record("r", "R", "", "", {}, {}, 0, figures=[table, table])


def test_claims_of_truth_values() -> None:
    assert [Claim.of("a", "b", held).outcome for held in (True, False, None)] == [
        "held",
        "did not hold",
        "not decidable",
    ]


def test_blocks_of_a_network() -> None:
    network = ResNet(4, [3, 3], 2)
    shown = network_blocks(network, "net", note="Two layers.")
    form = network.operators()
    assert (shown.name, shown.note, [grid.name for grid in shown.grids]) == ("net", "Two layers.", ["W", "M", "V", "K"])
    assert shown.title.startswith("ResNet: ")
    for grid in shown.grids:
        operator = getattr(form, grid.name)
        assert {(i, j): symbol for i, j, symbol in grid.cells} == {
            place: block.symbol() for place, block in operator.blocks.items()
        }
        assert sum(size for _, size in grid.rows) == operator.to_dense().shape[0]
        assert sum(size for _, size in grid.columns) == operator.to_dense().shape[1]


def test_labels_of_blocks() -> None:
    grid = network_blocks(MLP([4, 3, 2])).grids[0]
    assert (grid.rows, grid.columns) == ([("z_1", 3)], [("u_0", 4), ("u_1", 3)])


def test_other_things_have_no_blocks() -> None:
    with pytest.raises(InvalidTypeError, match="expected a torchlift network, got Linear"):
        network_blocks(torch.nn.Linear(2, 2))


def test_the_environment() -> None:
    found = environment()
    assert found["versions"]["torch"] == torch.__version__
    assert found["threads"] == torch.get_num_threads()
    assert "cpu" in found["devices"]
    assert found["processor"]
    assert package_version("no-such-package") is None


def test_the_scale_of_errors_ends_at_one() -> None:
    truth = torch.zeros(1, 2, 2)
    near, far, lost = truth + 0.25, truth - 60, torch.full_like(truth, torch.nan)
    shown = Pictures("p", "P", {"truth": truth, "near": near, "lost": lost}, truth="truth")
    assert set(shown.errors()) == {"near", "lost"} and shown.largest_error() == 0.25
    assert Pictures("p", "P", {"truth": truth, "near": near, "far": far}, truth="truth").largest_error() == 1
    assert Pictures("p", "P", {"near": near}).errors() == {}
