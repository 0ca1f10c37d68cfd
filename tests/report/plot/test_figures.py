"""Every function of `tl.plot` returns a matplotlib figure that can be drawn, without opening a window."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

import torchlift as tl
from torchlift import networks, plot
from torchlift.core.errors import TorchliftError
from torchlift.report.records import Curves, Series

ROWS = [
    {
        "kind": kind,
        "phase": "",
        "epoch": 1.0,
        "step": step,
        "seconds": 1.0,
        "loss": 2.0 / step,
        "metrics": {"psnr": 20.0},
    }
    for step in (1, 2)
    for kind in ("train", "validation")
]

EXAMPLES: dict[str, Callable[[], Any]] = {
    "blocks": lambda: plot.blocks(networks.MLP([2, 3, 1])),
    "figure": lambda: plot.figure(Curves("a", "A", "x", "y", [Series("one", [1, 2], [3.0, 4.0])])),
    "pictures": lambda: plot.pictures({"x": torch.rand(2, 4, 4)}),
    "training": lambda: plot.training(ROWS),
    "weights": lambda: plot.weights([{"weight": 0.1, "SURE": 1.0}, {"weight": 0.2, "SURE": 2.0}]),
}
"""One call per function: a new function has a line here."""


def test_every_function_has_an_example() -> None:
    assert set(EXAMPLES) == set(plot.__all__)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_a_figure_comes_back(name: str) -> None:
    before = "matplotlib.pyplot" in sys.modules
    figure = EXAMPLES[name]()
    assert isinstance(figure, Figure)
    figure.canvas.draw()
    assert figure.axes
    assert ("matplotlib.pyplot" in sys.modules) is before


def test_pictures_of_one_batch_alone_and_of_an_inversion() -> None:
    images = torch.rand(2, 1, 6, 6)
    network = torch.nn.Conv2d(1, 4, 3, padding=1)
    found = tl.invert(network, network(images).detach(), progress=False)
    for rows in (images, found):
        assert len(plot.pictures(rows).axes) == 2
    with pytest.raises(TorchliftError, match=r"expected tensors of images, by name or alone, got int"):
        plot.pictures(3)
