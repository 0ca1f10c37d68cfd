"""`torchlift bench distributed`: real processes in its tiny mode, and what it makes of measured times."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import torch

from parallel import world
from torchlift.cli import main
from torchlift.core.errors import InvalidValueError
from torchlift.lab.benchmarks.distributed import Effort, Size, methods, run
from torchlift.lab.benchmarks.distributed.fit import ALONE, as_work, fitted
from torchlift.lab.benchmarks.distributed.race import judged
from torchlift.lab.benchmarks.measure import PeakMemory
from torchlift.lab.planning import Machine, Passes, data_parallel, lifting
from torchlift.lab.planning.plan import COPIES


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, str]:
    """The record that two real processes make, and the table."""
    folder = tmp_path_factory.mktemp("bench")
    before = signal.getsignal(signal.SIGINT)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as shown:
        patch.setenv("COLUMNS", "160")
        assert main(["bench", "distributed", "--tiny", "--out", str(folder)]) == 0
    assert signal.getsignal(signal.SIGINT) is before, "Ctrl-C is ours again"
    return json.loads((folder / "bench-distributed.json").read_text(encoding="utf-8")), shown.getvalue()


@pytest.mark.timeout(300)
def test_counted_bytes_equal_the_formulas(tiny: tuple[dict, str]) -> None:
    record, _ = tiny
    assert [row["size"] for row in record["rows"]] == [vars(Size(3, 16, 8)), vars(Size(4, 8, 16))]
    for row in record["rows"]:
        assert row["volume"].keys() == {"lifted, layers", "lifted, data", "sweeps, data", "late sweeps, layers"}
        for volume in row["volume"].values():
            assert volume["counted"] == volume["formula"]
    layers = record["rows"][0]["volume"]["lifted, layers"]["counted"]
    assert layers == {"sent": 2 * 8 * 16 * 4, "reduced": 2 * 16}, "one boundary, there and back; two norms each"


@pytest.mark.timeout(300)
def test_everybody_is_measured_and_predicted(tiny: tuple[dict, str], tmp_path: Path) -> None:
    record, shown = tiny
    for row in record["rows"]:
        assert all(seconds > 0 for seconds in row["seconds"].values())
        assert row["speed_up"]["lifted, layers"] == row["seconds"]["lifted"] / row["seconds"]["lifted, layers"]
        assert row["predicted"].keys() <= row["seconds"].keys() and len(row["predicted"]) == 7
    assert "1F1B, 8 micro-batches" in shown and "equal to the formulas" in shown and "NOT" not in shown
    path = tmp_path / "constants.json"
    path.write_text(json.dumps(record))
    assert Machine.read(path).record() == record["machine"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sizes", "8x784"], ["layers x width x batch, got '8x784'", "Try 8x784x1000"]),
        (["--sizes", "8x0x8"], ["sizes"]),
        (["--sizes", "2x8x8", "--processes", "3"], ["3 layers or more, got 2"]),
        (["--processes", "1"], ["2 or more, got 1"]),
        (["--sizes", "8x8x10"], ["divisors of 10, got 4"]),
        (["--seconds", "-1"], ["a number >= 0, got -1"]),
    ],
)
def test_bad_options(arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "distributed", *arguments]) == 2
    error = capsys.readouterr().err
    assert all(word in error for word in words), error


def test_size() -> None:
    size = Size.parse("3x16x8")
    assert (str(size), size.maps) == ("3x16x8", 4)
    assert size.parameters == sum(p.numel() for p in size.network().parameters())
    with pytest.raises(InvalidValueError, match="layers x width x batch"):
        Size.parse("3x16x-8")


def test_the_fit_finds_the_machine_that_the_times_come_from() -> None:
    passes = {"lifting": Passes(9.0, 5.0, 1e-4), "back-propagation": Passes(4.0, 0.0, 2e-4)}
    truth = Machine(5e10, 1e10, 2e9, 1e-4, 0.0, passes)
    sizes = [Size(8, 784, 1000), Size(8, 784, 256), Size(16, 256, 1000), Size(4, 1024, 512)]
    measured = []
    for size in sizes:
        work = as_work(size)
        measured.append((size, {
            "product": truth.product(size.batch, size.width, 4),
            "product together": truth.product(size.batch, size.width, 4),
            "addition together": truth.touch(3 * size.batch * size.width, 4),
            "short message": truth.latency,
            "sum of gradients": truth.total(size.parameters * 4, 2),
            ALONE["lifting"]: lifting(work, truth).seconds,
            ALONE["back-propagation"]: data_parallel(work, truth).seconds,
        }))  # fmt: skip
    found = fitted(measured, 2)
    for name in ("flops", "memory_bandwidth", "bandwidth", "latency"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-6)
    for way, expected in passes.items():
        assert vars(found.passes[way]) == pytest.approx(vars(expected), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("size", [Size(8, 64, 64), Size(8, 32, 256)])
def test_memory_of_a_lifted_step(size: Size) -> None:
    with PeakMemory() as memory:
        step = methods.jacobi(size)
        for _ in range(2):
            step()
    work = as_work(size)
    states, parameters = COPIES["lifting"]
    predicted = work.layers * (parameters * work.weights + states * work.states(size.batch))
    assert lifting(work, Machine()).memory == predicted
    assert memory.peak == pytest.approx(predicted, rel=0.25)


def test_back_propagation_here_is_that_of_the_network() -> None:
    """The rival takes the same step as autograd on the network itself."""
    size = Size(2, 4, 8)
    network, (y, x) = size.network(), size.data()
    sequential = network.to_sequential()
    step = methods._trained(sequential, y, x)
    (0.5 * (network(y) - x).square().sum() / len(x)).backward()
    step()
    assert torch.allclose(
        dict(sequential.named_parameters())["0.weight"],
        dict(size.network().to_sequential().named_parameters())["0.weight"]
        - methods.STEP * next(p.grad for name, p in network.named_parameters() if "weight" in name)[0],
    )


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_cost_model_is_within_a_quarter_of_what_is_measured_here() -> None:
    """Where every process has a core of its own, which the model takes for granted: to be run by itself."""
    if os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        pytest.skip("the machine has other work")
    sizes = [Size(8, 512, 512), Size(4, 784, 512), Size(12, 256, 1024)]
    record = run(sizes, Effort(seconds=8.0, micro_batches=(4,)))
    if min(row["ceiling"] for row in record["rows"]) < 1.7:
        pytest.skip("the processes did not have a core each")
    for row in record["rows"]:
        for name, seconds in row["predicted"].items():
            assert seconds == pytest.approx(row["seconds"][name], rel=0.25), (name, row["size"])


def test_the_race_is_judged_by_the_error_of_one_process() -> None:
    curves = {
        "alone": [[1, 2.0, 5.0], [2, 4.0, 3.0], [3, 6.0, 3.02], [4, 8.0, 3.0]],
        "faster": [[1, 1.0, 9.0], [2, 2.0, 3.05], [3, 3.0, 3.5], [4, 4.0, 3.5]],
        "never": [[1, 1.0, 9.0], [2, 2.0, 4.0], [3, 3.0, 3.5], [4, 4.0, 3.2]],
    }
    found = judged(curves)
    assert found["target"] == pytest.approx(3.06)
    assert found["rows"]["alone"] == {"seconds": 8.0, "error": 3.0, "to_target": 4.0, "speed_up": 1.0}
    assert found["rows"]["faster"] == {"seconds": 4.0, "error": 3.5, "to_target": 2.0, "speed_up": 2.0}
    assert found["rows"]["never"]["to_target"] is None and found["rows"]["never"]["speed_up"] is None
    rows = judged(curves, target=2.9)["rows"]
    assert all(row["to_target"] is None and row["speed_up"] is None for row in rows.values())
    rows = judged({"alone": curves["alone"], "better": [[4, 3.0, 2.5]]}, target=2.9)["rows"]
    assert rows["better"]["to_target"] == 3.0 and rows["better"]["speed_up"] is None  # nothing to compare with


def test_the_race_of_photographs_needs_their_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["bench", "distributed", "--race", "cifar"]) != 0
    assert "--cifar DIR" in capsys.readouterr().err
    assert main(["bench", "distributed", "--race", "cifar", "--cifar", str(tmp_path)]) != 0
    assert "folders train/CLASS of image files" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_a_tiny_race_of_two_processes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its processes are forked; that the command starts some of its own is seen above."""

    def launch(_: object, processes: int, *arguments: str) -> str:
        return world.run(tmp_path / "world", processes, "races", *arguments, seconds=250)[0]["race"]

    monkeypatch.setattr(sys.modules[judged.__module__], "launch", launch)
    assert main(["bench", "distributed", "--race", "tiny", "--tiny", "--json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["race"]
    rows = task["rows"]
    assert len(rows) == 8 and all(len(curve) == 11 for curve in task["curves"].values())
    # samples divided among processes give the numbers of one; the same steps of AdamW in any schedule
    assert rows["sweeps, data"]["error"] == pytest.approx(rows["sweeps"]["error"], rel=1e-4)
    for name in ("AdamW, DistributedDataParallel", "AdamW, 1F1B, 4 micro-batches", "AdamW, 1F1B, 8 micro-batches"):
        assert rows[name]["error"] == pytest.approx(rows["AdamW"]["error"], rel=1e-4)
