"""Pictures: they draw what is there, and close what they open."""

from __future__ import annotations

import sys

import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from torchlift import networks, operators, plot
from torchlift.core.errors import InvalidTypeError


@pytest.mark.parametrize(
    "network",
    [
        networks.MLP([4, 3, 2]),
        networks.ResNet(4, [3, 3], 2, tableau="rk4"),
        networks.PrimalDual(operators.Identity((1, 4, 4)), operators.FiniteDifference((1, 4, 4)), 3),
        networks.Shallow(2, [1] * 30),
    ],
    ids=lambda network: type(network).__name__,
)
def test_every_block_is_drawn_once(network: networks.Network) -> None:
    figure = plot.blocks(network)
    assert isinstance(figure, Figure)
    form = network.operators()
    for axis, name in zip(figure.axes, ("W", "M", "V", "K"), strict=True):
        drawn = [patch for patch in axis.patches if isinstance(patch, Rectangle)]
        assert len(drawn) == len(getattr(form, name).blocks)
        assert axis.get_title().startswith(f"{name}:")
    figure.canvas.draw()


def test_no_window_is_opened() -> None:
    """Figures are made without pyplot, which would keep them all alive and may want a screen."""
    before = "matplotlib.pyplot" in sys.modules
    plot.blocks(networks.MLP([2, 2, 1]))
    assert ("matplotlib.pyplot" in sys.modules) is before


def test_other_things_are_refused() -> None:
    with pytest.raises(InvalidTypeError, match="torchlift network"):
        plot.blocks(torch.nn.Linear(2, 2))
