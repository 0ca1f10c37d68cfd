"""How a chain is cut into stretches, one per process."""

from __future__ import annotations

from itertools import combinations, pairwise

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import nn

from parallel import shapes
from torchlift.core.errors import InvalidValueError
from torchlift.networks import LISTA, MLP, ResNet, lift
from torchlift.operators import Dense
from torchlift.parallel import split_evenly
from torchlift.parallel.partition import cut_out, describe, matching, partition

widths = st.lists(st.integers(1, 9), min_size=3, max_size=8)


@given(widths, st.data())
def test_stretches_cover_the_layers_and_their_largest_cost_is_least(sizes: list[int], data: st.DataObject) -> None:
    depth = len(sizes) - 2
    processes = data.draw(st.integers(1, depth))
    stretches = partition(MLP(sizes), processes)
    assert [row for each in stretches for row in range(*each.layers)] == list(range(depth))
    assert all(each.layers[0] < each.layers[1] for each in stretches)
    costs = [3 * a * b + a for a, b in pairwise(sizes)]
    costs = [*costs[: depth - 1], costs[-2] + 3 * sizes[-2] * sizes[-1]]  # the output map goes with the last layer
    if depth > 1:
        costs[0] -= sizes[0] * sizes[1]  # nobody asks for the adjoint of the first

    def largest(cuts: tuple[int, ...]) -> int:
        return max(sum(costs[a:b]) for a, b in pairwise((0, *cuts, depth)))

    best = min(largest(cuts) for cuts in combinations(range(1, depth), processes - 1))
    assert largest(tuple(each.layers[0] for each in stretches[1:])) == best
    assert sum(each.share for each in stretches) == pytest.approx(1)


@pytest.mark.parametrize("kind", shapes.NETWORKS)
@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_parts_one_after_the_other_are_the_network(kind: str, processes: int) -> None:
    network = shapes.network(kind)
    y, _ = shapes.data(network, 3)
    u, seen = y, set()
    for stretch in partition(network, processes):
        part = cut_out(network, stretch)
        assert part.depth == stretch.layers[1] - stretch.layers[0]
        u = part(u)
        seen |= set(matching(network, part, stretch).values())
    torch.testing.assert_close(u, network(y), rtol=0, atol=1e-12)
    assert seen == set(dict(network.to_sequential().named_parameters()))


def test_runge_kutta_steps_stay_in_one_part() -> None:
    network = ResNet(3, [4, 4], 2, tableau="rk4")
    assert [str(each) for each in partition(network, 2)] == ["layers 1 to 4", "layers 5 to 8"]


def test_a_plan_for_people() -> None:
    plan = describe(partition(MLP([4, 4, 4, 4, 4]), 2))
    assert plan == "Layers by counted multiplications: process 0: layers 1 to 2 (47%), process 1: layer 3 (53%)."


def test_refused() -> None:
    with pytest.raises(InvalidValueError, match="a chain of layers, got LISTA"):
        partition(LISTA(Dense(torch.eye(3)), torch.eye(3), 2), 2)
    with pytest.raises(InvalidValueError, match="at most 2 parts of this network, got 3"):
        partition(MLP([3, 4, 4, 2]), 3)
    with pytest.raises(InvalidValueError, match="a network with activations, got none"):
        partition(lift(nn.Sequential(nn.Linear(3, 2))), 2)
    again = nn.Linear(3, 3)
    with pytest.raises(InvalidValueError, match="layers with weights of their own, got a module used twice"):
        partition(lift(nn.Sequential(again, nn.ReLU(), again, nn.Tanh(), nn.Linear(3, 1))), 2)


@given(st.integers(0, 50), st.integers(1, 8))
def test_shares_are_contiguous_and_as_equal_as_can_be(total: int, processes: int) -> None:
    parts = split_evenly(total, processes)
    assert [row for part in parts for row in range(total)[part]] == list(range(total))
    counts = [part.stop - part.start for part in parts]
    assert max(counts) - min(counts) <= 1
