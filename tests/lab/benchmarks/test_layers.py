"""The layer benchmark in its tiny mode, and the tools that it measures with."""

from __future__ import annotations

import gc
import json
import tracemalloc

import pytest
import torch

from torchlift.cli.app import run
from torchlift.lab.benchmarks import layers
from torchlift.lab.benchmarks.layers import compare
from torchlift.lab.benchmarks.measure import PeakMemory, interleaved
from torchlift.liftings import Bregman
from torchlift.networks import MLP
from torchlift.objective import Objective
from torchlift.prox import SoftThreshold


def test_loop_and_vectorised_evaluation_agree() -> None:
    """The contestants compute the same numbers, or their times mean nothing."""
    network = MLP([6] * 5, SoftThreshold(layers.THRESHOLD), generator=torch.Generator().manual_seed(0))
    objective = Objective(network, Bregman(layers.MU))
    y, x = (torch.randn(4, 6, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    z = objective.initialise(y, "input")
    loop = layers.Loop(network, y, x, [layer.clone() for layer in z])
    found = objective.gradients(y, x, z)
    ours = [*found.z, *found.parameters["hidden.0.linear.weight"], *found.parameters["output.0.linear.weight"]]
    ours += [*found.parameters["hidden.0.bias"], *found.parameters["output.0.bias"]]
    for theirs in (loop.gradients(), loop.autograd()):
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)
    for one, two in zip(objective.activations(y, z), loop.forward(), strict=True):
        torch.testing.assert_close(one, two)


def test_rows_have_positive_times_and_honest_ratios() -> None:
    rows = list(layers.rows(((8, 2),), (1, 3), seconds=0.0, repeats=2))
    assert [row["layers"] for row in rows] == [1, 3]
    for row in rows:
        times = ("forward", "forward_loop", "gradients", "gradients_loop", "gradients_autograd", "matmul_fraction")
        assert all(row[name] > 0 for name in times)
        assert row["autograd_ratio"] == pytest.approx(row["gradients_autograd"] / row["gradients"])
        assert row["difference_ulp"] <= 4


def test_cells_that_would_take_minutes_are_left_out() -> None:
    assert list(layers.rows(((100_000, 1000),), (1,))) == []


def test_vectorised_gradients_beat_the_autograd_loop_by_far() -> None:
    """A loose bound on a ratio taken in one run: the benchmark itself shows more than ten times this."""
    row = layers.measure(16, 1, 64, seconds=0.2, repeats=3)
    assert row["autograd_ratio"] > 8
    assert row["forward_ratio"] > 2


def test_one_step_needs_three_state_buffers() -> None:
    """7 × 784 with 5,000 samples as in the paper, checked at a size that keeps the ratio."""
    row = layers.measure(98, 625, 7, seconds=0.0, repeats=1)
    assert 2 <= row["memory_buffers"] <= 3.3, "states, their gradients and one temporary (plus input and output)"


def test_steps_leave_no_memory_behind() -> None:
    network = MLP([16] * 6, SoftThreshold(0.1), generator=torch.Generator().manual_seed(0))
    objective = Objective(network)
    y, x = torch.zeros(8, 16), torch.ones(8, 16)
    z = objective.initialise(y)
    found = objective.gradients(y, x, z)
    with PeakMemory() as memory:
        for _ in range(5):
            found = objective.gradients(y, x, z, out=found)
        gc.collect()
        after_five = memory.peak
        for _ in range(50):
            found = objective.gradients(y, x, z, out=found)
    assert memory.peak == after_five
    tracemalloc.start()
    for _ in range(20):
        objective.gradients(y, x, z, out=found)
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(200):
        objective.gradients(y, x, z, out=found)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 4096


def test_peak_memory_counts_what_lives_together() -> None:
    with PeakMemory() as memory:
        first = torch.zeros(1000)
        del first
        second = torch.zeros(500)
        third = second + 1
        view = third[:10]
    assert memory.peak == 4000
    assert memory.current == 4000
    del second, third, view
    assert memory.current == 0


def test_interleaved_medians() -> None:
    calls: list[str] = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=3, seconds=0.0)
    assert set(times) == {"a", "b"}
    assert calls.count("a") >= 3 and calls.count("b") >= 3
    first_b, last_a = calls.index("b"), len(calls) - 1 - calls[::-1].index("a")
    assert first_b < last_a, "turns alternate"


def test_command_writes_table_json_and_plot(tmp_path, capsys) -> None:
    options = ["--widths", "8", "--batches", "2", "--depths", "1", "2", "--seconds", "0.01", "--out", str(tmp_path)]
    assert run(["bench", "layers", *options]) == 0
    text = capsys.readouterr().out
    assert "All gradients" in text and "of mm" in text
    record = json.loads((tmp_path / "bench-layers.json").read_text())
    assert [row["layers"] for row in record["rows"]] == [1, 2]
    assert (tmp_path / "figures" / "bench-layers.png").stat().st_size > 1000
    assert (tmp_path / "figures" / "bench-layers.svg").exists()
    assert len(layers.growth(record["rows"])) == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--widths", "8", "9", "--batches", "2"], ["2 widths", "1"]),
        (["--widths", "0", "--batches", "2"], ["widths", ">= 1"]),
        (["--depths", "0"], ["depths", ">= 1"]),
        (["--seconds", "-1"], ["seconds", "> 0"]),
        (["--threads", "0"], ["threads", ">= 1"]),
    ],
)
def test_bad_options_are_refused(options: list[str], words: list[str], capsys) -> None:
    assert run(["bench", "layers", *options]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error
    assert error.count("\n") == 1


def test_unknown_benchmark_names_the_nearest(capsys) -> None:
    assert run(["bench", "layer"]) == 2
    assert "bench layers" in capsys.readouterr().err


def test_coordinates_are_compared_from_one_start() -> None:
    """Both reach the target, or say what they have reached."""
    row = compare(2, steps=60, seconds=30.0, target=0.5)
    for name in ("states", "errors"):
        assert row[name]["reached"] == (row[name]["part"] <= 0.5)
        assert 0 < row[name]["steps"] <= 60 and row[name]["seconds"] > 0
    assert row["errors"]["reached"]
