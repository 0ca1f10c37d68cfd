"""Figures of records, drawn: everything is there, nothing overlaps, all scales are shared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from contracts.experiments import figures
from torchlift import plot
from torchlift.core.errors import InvalidTypeError
from torchlift.report import records
from torchlift.report.plot.curves import number
from torchlift.report.plot.figures import save_figure
from torchlift.report.records import Blocks, Curves, Grid, HeatMap, Pictures, Series, Table

STEPS = [float(step) for step in range(1, 41)]


def drawn(shown: records.Figure) -> Figure:
    figure = plot.figure(shown)
    figure.draw_without_rendering()
    return figure


def curves(count: int, **settings: Any) -> Curves:
    series = [Series(f"series number {k} of them all", STEPS, [k + 1 / x for x in STEPS]) for k in range(count)]
    return Curves("curves", "Curves", "step", "error", series, **settings)


@pytest.mark.parametrize("shown", figures(torch.rand(2, 4, 5))[1:], ids=lambda shown: shown.kind)
def test_every_kind_is_drawn(shown: records.Figure) -> None:
    assert isinstance(drawn(shown), Figure)


def test_tables_are_text() -> None:
    with pytest.raises(InvalidTypeError, match="expected curves, pictures, a heat map or blocks, got Table"):
        plot.figure(Table("t", "T", ["a"], []))


@pytest.mark.parametrize("text", ["$", "$x$ costs $5", r"$\frac$", "100 %", "<b>"])
def test_text_is_no_mathematics(text: str) -> None:
    series = Series(text, [1, 2], [1, 2])
    drawn(Curves("c", text, text, text, [series]))
    drawn(Pictures("p", text, {text: torch.rand(1, 2, 2)}, {text: [text]}))
    drawn(HeatMap("h", text, text, text, text, [1], [text], torch.ones(1, 1)))
    drawn(Blocks("b", text, [Grid(text, [(text, 2)], [(text, 2)], [(0, 0, text)])]))


def test_gaps_and_infinities_are_not_drawn() -> None:
    axis = drawn(Curves("c", "C", "x", "y", [Series("a", [1, 2, 3], [1, None, math.inf])])).axes[0]
    (line,) = axis.lines
    assert [math.isnan(float(y)) for y in line.get_ydata()] == [False, True, True]  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]


def test_bands() -> None:
    series = Series("a", [1, 2], [1, 2], low=[0, 1], high=[2, 3])
    axis = drawn(Curves("c", "C", "x", "y", [series])).axes[0]
    low, high = axis.collections[0].get_datalim(axis.transData).intervaly
    assert (low, high) == (0, 3)


@pytest.mark.parametrize("count", [2, 5, 40])
def test_many_names_stand_beside_the_curves(count: int) -> None:
    figure = drawn(curves(count, y_log=True))
    (axis,) = figure.axes
    legend = axis.get_legend()
    assert legend is not None and len(legend.get_texts()) == count
    frame, box = axis.get_window_extent(), legend.get_window_extent()
    assert bool(box.x0 >= frame.x1) is (count > 4)
    assert box.y0 >= 0 and box.x1 <= figure.bbox.x1
    assert frame.width > 0.5 * 6 * figure.dpi


def test_a_group_has_one_colour_and_no_two_curves_look_alike() -> None:
    series = [
        Series(f"{group} {dashed} {k}", [1, 2], [1, 2], group=group, dashed=dashed)
        for group in ("a", "b")
        for dashed in (False, True)
        for k in range(2)
    ]
    lines = drawn(Curves("c", "C", "x", "y", series)).axes[0].lines
    assert [len({line.get_color() for line in part}) for part in (lines[:4], lines[4:], lines)] == [1, 1, 2]
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == 8
    plain = drawn(curves(21)).axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in plain[:14]}) == 14


@pytest.mark.parametrize("values", [[1.0, 10.0], [0.0, -1.0], [0.0, 1.0], [3.0, 3.0]])
def test_logarithmic_axes_take_what_comes(values: list[float]) -> None:
    axis = drawn(Curves("c", "C", "x", "y", [Series("a", values, values)], x_log=True, y_log=True)).axes[0]
    expected = "log" if max(values) > 0 else "linear"
    assert (axis.get_xscale(), axis.get_yscale()) == (expected, expected)


def test_ticks_at_what_was_measured() -> None:
    layers = [2.0**k for k in range(8)]
    axis = drawn(Curves("c", "C", "x", "y", [Series("a", layers, layers)], x_log=True)).axes[0]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2", "4", "8", "16", "32", "64", "128"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.05, "0.05"), (1000, "1000"), (50000, "50000"), (1e5, "10⁵"), (2e-6, "2·10⁻⁶"), (1.5e7, "1.5·10⁷")],
)
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize("count", [2, 8])
def test_pictures_share_their_scales(count: int) -> None:
    truth = torch.rand(count, 4, 6)
    rows = {"truth": truth, "far": truth + 0.5, "near": truth + 0.1, "lost": torch.full_like(truth, torch.nan)}
    figure = drawn(Pictures("p", "P", rows, {"near": ["x"] * count}, "truth"))
    images = figure.axes[0].images
    greys = [image for image in images if image.cmap.name == "gray"]
    errors = [image for image in images if image.cmap.name == "inferno"]
    assert (len(greys), len(errors)) == (4 * count, 3 * count)
    assert {image.get_clim() for image in greys} == {(0, 1)}
    (scale,) = {image.get_clim() for image in errors}
    assert scale == pytest.approx((0, 0.5))
    boxes = [image.get_window_extent() for image in images]
    for k, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(box.shrunk(0.9, 0.9).overlaps(other) for other in boxes[k + 1 :])


def test_labels_of_pictures_fit() -> None:
    rows = {"conventional training, threshold 0.02, recommended": torch.rand(3, 4, 4), "b": torch.rand(3, 4, 4)}
    figure = drawn(Pictures("p", "A long title, " * 9, rows))
    assert all(text.get_window_extent().x0 >= 0 for text in figure.axes[0].texts)
    assert all(text.get_window_extent().x1 <= figure.bbox.x1 for text in figure.axes[0].texts)


def test_without_truth_there_are_no_error_maps() -> None:
    figure = drawn(Pictures("p", "P", {"a": torch.rand(3, 4, 4)}))
    assert (len(figure.axes), len(figure.axes[0].images)) == (1, 3)


def test_small_heat_maps_have_their_numbers() -> None:
    values = torch.tensor([[1.0, 20.0], [math.nan, 300.0]])
    axis = drawn(HeatMap("h", "H", "rate", "threshold", "PSNR", [1e-3, 5e-4], ["a", "b"], values)).axes[0]
    assert [text.get_text() for text in axis.texts] == ["1", "20", "300"]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["0.001", "5·10⁻⁴"]


@pytest.mark.parametrize(
    "values", [torch.zeros(2, 40), torch.ones(2, 40), torch.arange(80.0).reshape(2, 40), torch.full((2, 40), math.nan)]
)
@pytest.mark.parametrize("log", [False, True])
def test_heat_maps_take_what_comes(values: torch.Tensor, log: bool) -> None:
    axis = drawn(HeatMap("h", "H", "step", "layer", "gap", STEPS, ["a", "b"], values, log=log)).axes[0]
    assert axis.get_xlim() == (0.5, 40.5)
    assert axis.get_ylim() == (1.5, -0.5)


def test_figures_are_saved_the_same_each_time(tmp_path: Path) -> None:
    files = save_figure(curves(2), tmp_path)
    assert [file.name for file in files] == ["curves.png", "curves.svg", "curves.pdf"]
    first = [file.read_bytes() for file in files]
    save_figure(curves(2), tmp_path)
    assert [file.read_bytes() for file in files] == first
