"""The contract of every architecture: the unified form holds, and it is the network it claims to be."""

from __future__ import annotations

import pytest
import torch

from contracts.kept import assert_all_kept
from contracts.network_cases import CASES, Case
from torchlift.networks import NETWORKS
from torchlift.testing.networks import CHECKS

TOLERANCE = {"rtol": 0, "atol": 1e-12}


@pytest.fixture(params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def test_promises(case: Case) -> None:
    network = case.build()
    assert_all_kept(CHECKS, network, case.input(network), case.context())


def test_every_architecture_has_a_case() -> None:
    covered = {type(case.build()) for case in CASES}
    assert covered >= set(NETWORKS.values())


def test_forward_equals_plain_torch(case: Case) -> None:
    network = case.build()
    y, context = case.input(network), case.context()
    expected = case.plain(network, y, context)
    assert expected.abs().max() > 1e-3, "a case whose output vanishes proves nothing"
    torch.testing.assert_close(network(y, context), expected, **TOLERANCE)


def test_block_pattern(case: Case) -> None:
    network = case.build()
    form = network.operators()
    depth = form.depth
    assert network.depth == depth and list(map(repr, network.activations)) == list(map(repr, form.activations))
    identity = {(j, j + 1) for j in range(depth)}
    assert set(form.W.blocks) == case.W
    assert set(form.K.blocks) == case.K
    assert set(form.M.blocks) == (identity if case.M is None else case.M)
    assert set(form.V.blocks) == ({(j, j) for j in range(depth)} if case.V is None else case.V)


def test_pictures_show_every_block(case: Case) -> None:
    network = case.build()
    form = network.operators()
    for name in ("W", "M", "V", "K"):
        operator = getattr(form, name)
        lines = str(operator).splitlines()
        assert len(lines) == len(operator.row_shapes) + 1 if operator.row_shapes else lines == ["(no rows)"]
        cells = len(operator.row_shapes) * len(operator.column_shapes)
        assert sum(line.count("·") for line in lines) >= cells - len(operator.blocks)
        html = operator._repr_html_()
        assert html.count("<td") == cells
        assert html.count("background") == len(operator.blocks)
    assert all(f"{name} =" in network.picture() for name in "WMVK")
    assert network._repr_html_().count("<table") == 5  # the facts, then W, M, V and K
