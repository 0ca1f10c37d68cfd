"""Every function of `tl.plot` returns a matplotlib figure that can be drawn, without opening a window."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from torchlift import networks, plot
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
TIMES = dict.fromkeys(("forward", "forward_loop", "gradients", "gradients_loop", "gradients_autograd"), 1.0)

EXAMPLES: dict[str, Callable[[], Any]] = {
    "blocks": lambda: plot.blocks(networks.MLP([2, 3, 1])),
    "descent": lambda: plot.descent(
        [{"name": "a", "steps": [0, 1], "seconds": [0.0, 1.0], "values": [2.0, 1.0], "psnr": [1.0, 2.0]}]
    ),
    "devices": lambda: plot.devices("A", [1, 2], {"lifting": [(1.0, 1.0), (0.6, 0.8)], "other": [(1.0, 1.0), None]}),
    "figure": lambda: plot.figure(Curves("a", "A", "x", "y", [Series("one", [1, 2], [3.0, 4.0])])),
    "gains": lambda: plot.gains([{"level": 0.1, "noise": 0.1, "contestants": [{"name": "sweep", "gain": [1.0, 0.1]}]}]),
    "layers": lambda: plot.layers([{"width": 4, "batch": 1, "layers": layers, **TIMES} for layers in (1, 2)]),
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
