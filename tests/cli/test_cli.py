"""The command: it works, it speaks JSON, and it answers bad input with one line."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import torchlift
from torchlift.cli import app, info, main
from torchlift.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
NAMES = ", ".join(COMMANDS)


@pytest.fixture(autouse=True)
def _no_full_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHLIFT_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def _quick_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices; their speed is not what these tests look at."""
    honest = info.matmul_gflops
    monkeypatch.setattr(info, "matmul_gflops", lambda dtype: honest(dtype, size=64, repeats=1))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_overview_lists_the_commands(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    assert all(name in out for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    status, out, err = run(capsys, *command.split(), "--help")
    assert (status, err) == (0, "")
    assert f"usage: torchlift {command}" in out
    for option in ("--json", "--out DIR", "--debug"):
        assert option in out


@pytest.mark.parametrize("arguments", [["bench", "--help"], ["bench", "-h"], ["bench"]])
def test_a_family_lists_its_commands(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, err) == (0, "")
    listed = [line.split("  ")[1] for line in out.splitlines() if line.startswith("  bench ")]
    assert listed == [name for name in COMMANDS if name.startswith("bench ")]


@pytest.mark.parametrize("option", ["--help", "--version", "bench"])
def test_overviews_load_nothing_heavy(option: str) -> None:
    code = f"import sys; from torchlift.cli import main; main([{option!r}]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert set(done.stderr.split()) & {"torch", "numpy", "tyro", "rich"} == set()


@pytest.mark.parametrize("module", ["torchlift.cli.app", "numpy", "torch", "tyro"])
def test_ctrl_c_while_loading_says_so_in_one_line(module: str) -> None:
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
sys.argv = ["torchlift", "info"]
from torchlift.cli import main
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "torchlift: stopped\n")


def test_a_missing_package_of_the_laboratory_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COMMANDS, "bench layers", "torchlift.lab.commands.needs_more:Nothing")
    monkeypatch.setattr(app, "resolve_name", lambda place: importlib.import_module("no_such_package"))
    status, out, err = run(capsys, "bench", "layers")
    assert (status, out) == (2, "")
    assert "expected the package no_such_package, which the laboratory needs, got none." in err
    assert "pip install 'torchlift[lab]'" in err


@pytest.mark.parametrize("word", ["--version", "-V", "version"])
def test_version(capsys: pytest.CaptureFixture[str], word: str) -> None:
    assert run(capsys, word) == (0, f"torchlift {torchlift.__version__}\n", "")


def test_help_of_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "help", "demo") == run(capsys, "demo", "--help")


def test_help_shows_options_as_they_are_typed(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "train", "--help")
    assert "--training.steps INT" in out
    assert "{None}|INT " not in out and "{None}|FLOAT " not in out  # several kinds of values are all shown


def test_the_overview_fits_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    _, out, _ = run(capsys)
    listed = [line for line in out.splitlines() if line.startswith("  ")]
    assert max(map(len, listed)) <= 60


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["inof"], "Did you mean 'info'?"),
        (["qqq"], f"expected one of {NAMES}, got 'qqq'"),
        (["--json"], f"expected one of {NAMES}, got '--json'"),
        (["--verson"], "Did you mean '--version'?"),
        (["bench", "qqq"], "expected one of bench distributed, bench inversion"),
        (["info", "--jsn"], "info: expected options that it has, got --jsn. Did you mean --json?"),
        (["info", "surplus"], "info: expected options that it has, got surplus. Try 'torchlift info --help'."),
        (["info", "--out"], "info: --out: expected a value, got nothing."),
        (["info", "--out", ""], "info --out: expected a value with something in it, got an empty one."),
        (["info", "--out="], "info --out: expected a value with something in it, got an empty one."),
        (["train", "--network.widths", "5", "", "--json"], "train --network.widths: expected a value with something"),
        (["train", ""], "train: expected a value with something in it, got an empty one."),
        (["invert"], "invert: expected MODEL and DATA, got nothing for them. Try 'torchlift invert --help'."),
        (["invert", "model"], "invert: expected DATA, got nothing for it."),
        (["invert", "a", "b", "--seed", "-1"], "torchlift: --seed: expected a whole number >= 0, got -1."),
        (["demo", "--seconds", "many"], "demo: --seconds: expected a number, got 'many'."),
        (["train", "--steps", "5"], "got --steps, 5. Did you mean --training.steps?"),
        (["train", "--data.images", "1.5"], "train: --data.images: expected a whole number, got '1.5'."),
        (["train", "--network.widths", "a"], "train: --network.widths: expected "),
        (["train", "--network.dtype", "int"], "--network.dtype: expected one of 'float32', 'float64', got 'int'."),
        (["plan", "--layers", "0"], "torchlift: --layers: expected a whole number >= 1, got 0."),
        (
            ["info", "--out", "/proc/none"],
            "--out /proc/none: expected a folder that can be written to, got a place where",
        ),
        (["demo", "--seconds", "0"], "demo: --seconds: expected a number > 0, got 0.0"),
        (["demo", "--seed", "-1"], "a whole number >= 0, got -1"),
    ],
)
def test_bad_input_gets_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("torchlift: ")
    assert err.count("\n") == 1
    assert reason in err


def test_unusable_folders_are_refused_before_any_work(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(info.Info, "collect", lambda self: pytest.fail("work has begun"))
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        status, out, err = run(capsys, "info", "--out", str(folder))
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"torchlift: --out {folder}: expected a folder that can be written to, got" in err


def test_an_earlier_result_is_kept(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "info.json").write_text("somebody's", encoding="utf-8")
    status, out, err = run(capsys, "info", "--out", str(tmp_path))
    assert (status, out) == (2, "")
    assert "expected a folder without an earlier result, got info.json. Choose another folder" in err
    assert (tmp_path / "info.json").read_text(encoding="utf-8") == "somebody's"


def test_a_result_that_cannot_be_saved_is_printed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    status, out, err = run(capsys, "info", "--out", str(tmp_path))
    assert status == 2
    assert "got a full disk" in err
    assert json.loads(out)["versions"]["torchlift"] == torchlift.__version__


def test_debug_shows_where_an_error_came_from() -> None:
    with pytest.raises(torchlift.core.errors.InvalidValueError):
        main(["demo", "--seconds", "0", "--debug"])


def test_info_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, out, err = run(capsys, "info", "--json", "--out", str(tmp_path / "new" / "folder"))
    assert (status, err) == (0, "")
    record = json.loads(out)
    assert record == json.loads((tmp_path / "new" / "folder" / "info.json").read_text(encoding="utf-8"))
    assert record["versions"]["torchlift"] == torchlift.__version__
    assert record["versions"]["torch"].startswith("2.")
    assert record["machine"]["matmul_gflops"] > 0
    assert "cpu" in record["machine"]["devices"]
    assert record["data"]["digits"] == "5000 train, 500 validation, 1000 test (checksums match)"
    assert str(tmp_path / "nowhere") in record["data"]["mnist"]
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(record["extras"]) == extras.keys() - {"test", "docs"}
    for extra, brings in info.EXTRAS.items():  # package by package
        assert {name.lower() for name in brings} == {need.partition(">")[0].lower() for need in extras[extra]}


def test_info_text(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "info")
    assert (status, err) == (0, "")
    assert "processor" in out
    assert "checksums match" in out


def test_absent_extras_say_how_to_install_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(info.EXTRAS, "plot", {"no-such-package": "none"})
    _, out, _ = run(capsys, "info")
    assert 'absent; pip install "torchlift[plot]"' in out


def test_info_finds_the_full_set(
    capsys: pytest.CaptureFixture[str], full_mnist_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHLIFT_DATA", str(full_mnist_path))
    _, out, _ = run(capsys, "info", "--json")
    assert json.loads(out)["data"]["mnist"] == f"{full_mnist_path} (checksums match)"


def test_module_and_script_are_the_same_command() -> None:
    script = Path(sys.executable).with_name("torchlift")
    for command in ([sys.executable, "-m", "torchlift"], [str(script)]):
        done = subprocess.run([*command, "inof"], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "Did you mean 'info'?" in done.stderr


def test_a_terminal_without_greek_letters_is_enough() -> None:
    command = [sys.executable, "-m", "torchlift", "reproduce", "list"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "?(W u + b)" in done.stdout


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "torchlift", "--help"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_no_output_at_all_is_quiet() -> None:
    command = f"{sys.executable} -m torchlift --help >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
