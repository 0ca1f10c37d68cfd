"""Pictures of inversions show what they are given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from torchlift import plot
from torchlift.core.errors import InvalidValueError
from torchlift.report.records import Curves, Series


@pytest.mark.parametrize("shape", [(3, 4, 5), (3, 1, 4, 5), (3, 3, 4, 5)])
def test_every_image_has_its_place(shape: tuple[int, ...]) -> None:
    first, second = torch.rand(shape), torch.rand(shape)
    figure = plot.pictures({"input": first, "inversion": second})
    assert len(figure.axes) == 6
    assert figure.axes[3].get_ylabel() == "inversion"
    shown = np.asarray(figure.axes[4].images[0].get_array())
    wanted = second[1] if second.ndim == 3 else second[1, 0] if shape[1] == 1 else second[1].movedim(0, -1)
    np.testing.assert_allclose(shown, wanted.double())
    figure.canvas.draw()


@pytest.mark.parametrize("count", [1, 2])
def test_rows_of_few_images_stand_beside_each_other(count: int) -> None:
    names = ["truth", "measured", "plug-and-play, certified", "learned", "$x$"]
    rows = {name: torch.full((count, 4, 6), index / 8) for index, name in enumerate(names)}
    figure = plot.pictures(rows)
    assert len(figure.axes) == 5 * count
    assert figure.get_figwidth() > 2 * figure.get_figheight() / count
    for index, name in enumerate(names):
        assert figure.axes[index].get_title().replace("\n", " ").replace("\\", "") == name
        for line in range(count):
            assert np.asarray(figure.axes[5 * line + index].images[0].get_array()).tolist() == [[index / 8] * 6] * 4
    figure.canvas.draw()


def test_values_outside_the_greys_are_clamped() -> None:
    shown = plot.pictures({"x": torch.tensor([[[-1.0, 0.5], [2.0, 1.0]]])}).axes[0].images[0]
    assert np.asarray(shown.get_array()).tolist() == [[0.0, 0.5], [1.0, 1.0]]


def test_trials_are_in_order_and_the_choice_is_marked() -> None:
    rows = [{"weight": 0.1, "SURE": 3.0}, {"weight": 0.001, "SURE": 5.0}, {"weight": 0.01, "SURE": 1.0}]
    axis = plot.weights(rows, 0.02).axes[0]
    assert list(axis.lines[0].get_xdata()) == [0.001, 0.01, 0.1]
    assert list(axis.lines[0].get_ydata()) == [5.0, 1.0, 3.0]
    assert list(axis.lines[1].get_xdata()) == [0.02, 0.02]
    assert (axis.get_xscale(), axis.get_ylabel()) == ("log", "SURE")
    assert len(plot.weights(rows).axes[0].lines) == 1


def test_curves_stand_beside_each_other() -> None:
    panels = [Curves("a", f"Panel {k}", "x", "y", [Series("one", [1, 2], [3.0, 4.0 + k])]) for k in range(4)]
    figure = plot.figure(*panels)
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles == ["Panel 0", "Panel 1", "Panel 2", "Panel 3", "", ""]
    assert list(figure.axes[3].lines[0].get_ydata()) == [3.0, 7.0]
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: plot.pictures({}), "rows of equally many images, got none"),
        (lambda: plot.pictures({"a": torch.rand(2, 3, 3), "b": torch.rand(1, 3, 3)}), "equally many"),
        (lambda: plot.pictures({"a": torch.rand(2, 2, 3, 3)}), r"one or three channels, got \(2, 2, 3, 3\)"),
        (lambda: plot.weights([]), "at least one trial"),
    ],
)
def test_bad_input_is_refused(call: Any, match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        call()
