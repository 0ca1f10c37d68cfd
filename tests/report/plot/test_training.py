"""The picture of a training run shows what is in its rows."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from torchlift import plot
from torchlift.core.errors import InvalidTypeError, InvalidValueError

Row = dict[str, Any]


def _run(scale: float = 1.0, name: str = "psnr") -> list[Row]:
    rows: list[Row] = []
    for step in range(1, 7):
        row = {"phase": "warm-up" if step <= 2 else "main", "epoch": step / 2, "step": step, "seconds": 10.0 * step}
        row |= {"objective": None, "gap": None, "learning_rate": None}
        rows.append({**row, "kind": "train", "loss": scale / step, "metrics": {}})
        if step % 2 == 0:
            metrics = {"loss": 2 * scale / step, name: 20.0 - (step - 4) ** 2}
            rows.append({**row, "kind": "validation", "loss": None, "metrics": metrics})
    return rows


def _data(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in line.get_xydata()]  # type: ignore[union-attr]


@pytest.mark.parametrize(("against", "factor"), [("step", 1.0), ("seconds", 10.0), ("epoch", 0.5)])
def test_all_points_are_drawn(against: str, factor: float) -> None:
    figure = plot.training(_run(), against=against)
    assert isinstance(figure, Figure)
    loss, metric = figure.axes
    training, validation = loss.lines
    assert _data(training) == [(factor * step, 1 / step) for step in range(1, 7)]
    assert _data(validation) == [(factor * step, 2 / step) for step in (2, 4, 6)]
    assert _data(metric.lines[0]) == [(2 * factor, 16.0), (4 * factor, 20.0), (6 * factor, 16.0)]
    assert loss.get_yscale() == "log"
    assert (loss.get_xlabel(), metric.get_ylabel()) == (against, "PSNR (dB)")
    figure.canvas.draw()


def test_the_best_value_is_marked() -> None:
    star = plot.training(_run()).axes[1].lines[1]
    assert (star.get_marker(), _data(star)) == ("*", [(4.0, 20.0)])
    smallest = plot.training(_run(name="nmse")).axes[1].lines[1]
    assert _data(smallest) == [(2.0, 16.0)]
    assert len(plot.training(_run(name="own")).axes[1].lines) == 1  # who knows which way


def test_infinite_values_are_not_the_best() -> None:
    rows = _run()
    rows[-1]["metrics"]["psnr"] = float("inf")
    figure = plot.training(rows)
    assert _data(figure.axes[1].lines[1]) == [(4.0, 20.0)]
    figure.canvas.draw()


def test_phases_of_one_run_are_shaded_and_named() -> None:
    axis = plot.training(_run()).axes[0]
    (shade,) = axis.patches
    assert shade.get_extents().transformed(axis.transData.inverted()).intervalx.tolist() == pytest.approx([2.0, 6.0])
    assert [text.get_text() for text in axis.texts] == ["warm-up", "main"]
    single = [{**row, "phase": "main"} for row in _run()]
    assert len(plot.training(single).axes[0].patches) == 0


def test_several_runs_have_colours_names_and_lines_between_phases() -> None:
    figure = plot.training(_run(), _run(2.0), labels=["one", "two"])
    loss, _ = figure.axes
    legend = loss.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["one", "two", "validation"]
    dotted = [line for line in loss.lines if line.get_linestyle() == ":"]
    assert [line.get_xdata()[0] for line in dotted] == [2.0, 2.0]  # type: ignore[index]
    assert dotted[0].get_color() != dotted[1].get_color()
    assert len(loss.patches) == 0
    unnamed = plot.training(_run(), _run(2.0)).axes[0].get_legend()
    assert unnamed is not None
    assert unnamed.get_texts()[1].get_text() == "run 2"
    figure.canvas.draw()


def test_without_metrics_there_is_one_panel() -> None:
    figure = plot.training([row for row in _run() if row["kind"] == "train"])
    assert len(figure.axes) == 1
    assert len(plot.training([]).axes) == 1


def test_losses_that_reach_zero_have_a_linear_axis() -> None:
    assert plot.training(_run(0.0)).axes[0].get_yscale() == "linear"


def test_the_metric_can_be_chosen() -> None:
    rows = _run()
    for row in rows:
        if row["kind"] == "validation":
            row["metrics"]["ssim"] = 0.5
    assert plot.training(rows, metric="ssim").axes[1].get_ylabel() == "SSIM"


@pytest.mark.parametrize(
    ("histories", "settings", "error", "match"),
    [
        ((), {}, InvalidValueError, "at least one history, got none"),
        ((3,), {}, InvalidTypeError, "a sequence of rows, got int"),
        (([_run(), _run()],), {}, InvalidTypeError, r"Pass several as plot.training\(\*histories\)"),
        ((_run(),), {"labels": ["a", "b"]}, InvalidValueError, "labels: expected 1, one per history, got 2"),
        ((_run(),), {"metric": "ssim"}, InvalidValueError, "metric: expected one of psnr, got 'ssim'"),
        ((_run(),), {"against": "hours"}, InvalidValueError, "one of 'step', 'seconds', 'epoch', got 'hours'"),
    ],
)
def test_bad_input_is_refused(histories: Any, settings: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        plot.training(*histories, **settings)
