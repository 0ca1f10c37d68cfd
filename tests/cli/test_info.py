"""What `torchlift info` finds, and what it says about what is missing or set oddly."""

from __future__ import annotations

import json
import os
import webbrowser
from pathlib import Path
from typing import Any

import pytest
import torch

from torchlift.cli import info, main
from torchlift.core.errors import DataError
from torchlift.data import digits

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_full_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHLIFT_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _quick_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices; their speed is not what these tests look at."""
    honest = info.matmul_gflops
    monkeypatch.setattr(info, "matmul_gflops", lambda dtype: honest(dtype, size=64, repeats=1))


def collect(capsys: Capture) -> dict[str, Any]:
    assert main(["info", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def found(**more: Any) -> dict[str, Any]:
    """What is found on a machine where nothing is missing."""
    return {
        "machine": {"cores": 4, "threads": 4, **more},
        "data": {"digits": "5000 train (checksums match)", "mnist": "data (checksums match)"},
        "extras": {"plot": "3.9"},
        "others": {"onnx": "1.0"},
    }


def test_every_part_is_there(capsys: Capture, tmp_path: Path) -> None:
    record = collect(capsys)
    machine = record["machine"]
    assert {"versions", "machine", "data", "extras", "others", "to_do"} <= set(record)
    assert machine["threads"] == torch.get_num_threads()
    assert 1 <= machine["cores"] <= (os.cpu_count() or 1)
    assert machine["matmul_gflops"] > 0 and machine["double_gflops"] > 0
    assert machine["memory"].endswith(" available")
    assert machine["blas"].split(",")[0] in ("mkl", "open", "accelerate", "generic", "unknown")
    assert record["data"]["searched"] == [str(tmp_path / "nowhere"), str(tmp_path / "cache" / "torchlift")]
    assert {"onnx", "onnxscript", "browser"} == set(record["others"])


def test_nothing_to_do() -> None:
    assert info.to_do(found(), None) == []


@pytest.mark.parametrize(
    ("threads", "wanted", "said"),
    [
        (8, None, ["torch uses 8 threads on 4 usable cores, which is slow: set OMP_NUM_THREADS=4."]),
        (1, "1", ["OMP_NUM_THREADS=1 leaves cores idle: unset it, or set OMP_NUM_THREADS=4."]),
        (2, None, []),  # torch takes one thread per physical core by itself
        (4, "4", []),
    ],
)
def test_threads_that_do_not_fit_the_cores(threads: int, wanted: str | None, said: list[str]) -> None:
    assert info.to_do(found(threads=threads), wanted) == said


def test_absent_things_are_optional_and_say_how(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> None:
        raise webbrowser.Error

    monkeypatch.setitem(info.EXTRAS, "plot", {"no-such-package": "none"})
    monkeypatch.setattr(info, "FRIENDS", {"no-such-friend": "none"})
    monkeypatch.setattr(webbrowser, "get", none)
    record = collect(capsys)
    assert record["extras"]["plot"] == 'absent; pip install "torchlift[plot]"'
    assert 'optional, plot: pip install "torchlift[plot]"' in record["to_do"]
    assert "optional, no-such-friend: pip install no-such-friend" in record["to_do"]
    assert [each for each in record["to_do"] if each.startswith("optional, browser: open pages of")]
    assert [each for each in record["to_do"] if "MNIST" in each and "set TORCHLIFT_DATA" in each]
    assert main(["info"]) == 0
    assert '\n- optional, plot: pip install "torchlift[plot]"\n' in capsys.readouterr().out


def test_an_extra_that_cannot_be_imported_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(info.EXTRAS, "plot", {"matplotlib": "no_such_module"})
    record = found()
    record["extras"] = info.extras()
    assert "but it cannot be imported (ModuleNotFoundError: No module" in record["extras"]["plot"]
    sentence = 'plot is installed but cannot be imported: reinstall it, pip install "torchlift[plot]"'
    assert sentence in info.to_do(record, None)


def test_damaged_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(split: str) -> None:
        raise DataError(f"{split}: expected another checksum")

    monkeypatch.setattr(digits, "load_digits", damaged)
    record = found()
    record["data"]["digits"] = info.bundled_digits()
    assert record["data"]["digits"] == "damaged: train: expected another checksum"
    assert info.to_do(record, None) == ["the bundled digits are damaged: reinstall torchlift."]


def test_cores_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3}, raising=False)
    assert info.usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert info.usable_cores() == 7
