"""`torchlift train`: from files and flags to a trained network, reproducible, resumable, and clear about mistakes."""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from cli.runs import TINY
from forked_commands import Command
from torchlift.cli import main
from torchlift.cli.settings.files import read_configuration
from torchlift.data import load_digits
from torchlift.io import Checkpoints, load_model
from torchlift.report.records import environment
from torchlift.training import read_history
from torchlift.training.starts import short_runs

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the full MNIST, in a folder of its own."""
    monkeypatch.setenv("TORCHLIFT_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return written(tmp_path, TINY)


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def run(capsys: Capture, *arguments: object) -> tuple[int, str, str]:
    status = main(["train", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def trained(capsys: Capture, *arguments: object) -> dict:
    """The record of a run that must succeed."""
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def refused(capsys: Capture, *arguments: object) -> str:
    """The one line of a run that must be refused."""
    status, out, err = run(capsys, *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert err.startswith("torchlift: ")
    return err


def own_data(folder: Path, samples: int = 40) -> Path:
    generator = torch.Generator().manual_seed(0)
    y = torch.rand(samples, 3, generator=generator)
    np.savez(folder / "own.npz", inputs=y.numpy(), targets=y.sum(1, keepdim=True).numpy())
    return folder / "own.npz"


# What a run leaves behind


def test_a_run_saves_all_that_is_needed_to_repeat_it(capsys: Capture, config: Path, tmp_path: Path) -> None:
    record = trained(capsys, config, "--out", "runs/a")
    folder = tmp_path / "runs" / "a"
    assert {path.name for path in folder.iterdir()} >= {
        "config.toml", "history.jsonl", "train.json", "model", "checkpoints"
    }  # fmt: skip
    assert all((folder / name).exists() for name in record["files"])
    assert record == json.loads((folder / "train.json").read_text(encoding="utf-8"))
    assert (record["result"], record["steps"]) == ("max_steps", 4)
    assert set(record["validation"]) == {"input", "start", "best", "last"}
    assert record["best"]["value"] == record["validation"]["best"]["metrics"]["psnr"]
    rows = read_history(folder / "history.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "validation"] == [2, 4]

    again = trained(capsys, folder / "config.toml", "--out", "runs/b")
    assert again["validation"] == record["validation"]
    first, second = load_model(folder / "model"), load_model(tmp_path / "runs" / "b" / "model")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))

    # the model is the best network of the run
    noisy = load_digits("validation").images[:10]
    assert first(noisy.flatten(1)).shape == (10, 784)


def test_a_record_says_where_it_was_made(capsys: Capture, config: Path, tmp_path: Path) -> None:
    trained(capsys, config, "--out", tmp_path / "out")
    record = json.loads((tmp_path / "out" / "train.json").read_text(encoding="utf-8"))
    assert record["environment"] == environment()
    assert record["environment"]["processor"] and record["environment"]["devices"][0] == "cpu"


def test_training_that_only_does_harm_shows_the_start_as_the_best(capsys: Capture, config: Path) -> None:
    harmful = (config, "--training.solver", "adam", "--training.lr", "1", "--training.evaluate-every", "1")
    record = trained(capsys, *harmful)
    assert record["best"]["step"] == 0
    assert record["validation"]["best"] == {"step": 0, "metrics": record["validation"]["start"]["metrics"]}
    assert record["validation"]["last"]["metrics"]["psnr"] < record["best"]["value"]
    assert "best (step 0)" in run(capsys, *harmful)[1]


def test_starts_are_compared_once(capsys: Capture, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []
    choose = short_runs.choose
    monkeypatch.setattr(short_runs, "choose", lambda *given: compared.append(given) or choose(*given))
    record = trained(capsys, config, "--out", "runs/a")
    assert len(compared) == 1
    again = trained(capsys, "--resume", "runs/a")  # what the run started from is found anew
    assert len(compared) == 2
    assert again["validation"]["start"] == record["validation"]["start"]


def test_the_summary_for_people(capsys: Capture, config: Path) -> None:
    status, out, err = run(capsys, config, "--out", "runs/a")
    assert (status, err) == (0, "")  # no bar where there is no terminal
    for word in ("psnr (dB)", "input", "start", "best (step", "last (step 4)", "runs/a: config.toml", "parameters"):
        assert word in out


def test_flags_count_for_more_than_the_file(capsys: Capture, config: Path) -> None:
    flags = (
        "--network.threshold",
        "0.3",
        "--network.widths",
        "5",
        "6",
        "--training.seed",
        "7",
        "--data.redraw",
        "True",
    )
    record = trained(capsys, config, *flags)
    settings = record["configuration"]
    assert (settings["network"]["threshold"], settings["network"]["widths"]) == (0.3, [5, 6])
    assert (settings["training"]["seed"], settings["training"]["steps"]) == (7, 4)
    assert settings["data"]["redraw"] is True
    written(Path(), TINY.replace("[network]", "redraw = true\n[network]"))
    assert trained(capsys, config, "--data.redraw", "False")["configuration"]["data"]["redraw"] is False


def test_flags_alone_are_enough(capsys: Capture) -> None:
    record = trained(
        capsys,
        *("--data.task", "classification", "--data.images", 40, "--data.validation", 10),
        *("--network.widths", 8, "--training.steps", 2),
    )
    assert record["network"]["out_shape"] == [10]
    assert record["units"] == {"accuracy": "%", "loss": ""}
    assert set(record["validation"]) == {"start", "best", "last"}


def test_the_seed_decides(capsys: Capture, config: Path) -> None:
    values = [trained(capsys, config, "--training.seed", seed)["best"]["value"] for seed in (1, 1, 2)]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize("task", ["denoising", "deblurring", "inpainting"])
@pytest.mark.parametrize("kind", ["PrimalDual", "LISTA"])
def test_unrolled_networks_know_the_task(capsys: Capture, task: str, kind: str) -> None:
    record = trained(
        capsys,
        *("--data.task", task, "--data.images", 20, "--data.validation", 5, "--data.redraw", "True"),
        *("--network.kind", kind, "--network.iterations", 1, "--training.steps", 2, "--training.batch-size", 10),
        *("--out", "run"),
    )
    assert record["network"]["in_shape"] == [1, 28, 28]
    assert load_model("run/model").in_shape == (1, 28, 28)


@pytest.mark.parametrize(
    "flags",
    [
        ("--network.kind", "ResNet", "--network.tableau", "heun"),
        ("--network.kind", "Shallow"),
        ("--network.kind", "Perceptron", "--network.activation", "box", "--network.parameters", 0, 1),
        ("--network.activation", "leaky-relu", "--network.parameters", 0.1, "--network.depth", 3),
        ("--network.dtype", "float64", "--training.weights", "balanced"),
        ("--training.lifting", "bregman", "--training.mu", 0.1, "--training.solver", "fista", "--training.lr", 0.1),
        ("--training.lifting", "mac-qp", "--training.solver", "linearised-bcd", "--training.batch-size", "full"),
        ("--training.solver", "sgd", "--training.lr", 0.1, "--training.momentum", 0.9, "--training.anneal", "cosine"),
        ("--training.solver", "implicit-stochastic-gradient", "--training.tau", 0.5, "--training.lifting", "bregman"),
        ("--training.loss", "huber", "--training.metrics", "mse", "nmse"),
    ],
    ids=lambda flags: " ".join(map(str, flags[1::2])),
)  # fmt: skip
def test_every_kind_of_setting_works(capsys: Capture, tmp_path: Path, flags: tuple) -> None:
    own = own_data(tmp_path)
    shared = ("--data.set", "files", "--data.path", own, "--data.task", "regression", "--training.steps", 2)
    widths = () if "Perceptron" in flags else ("--network.widths", 4)
    record = trained(capsys, *shared, *widths, *flags)
    assert record["steps"] == 2


def test_phases_override_the_training_section(capsys: Capture, tmp_path: Path) -> None:
    text = """
        [data]
        set = "files"
        path = "own.npz"
        [training]
        lifting = "bregman"
        mu = 0.5
        epochs = 1
        batch_size = 10
        [[phase]]
        name = "lifted"
        [[phase]]
        solver = "adam"
        lifting = "conventional"
        lr = 1e-3
        steps = 3
    """
    own_data(tmp_path)
    trained(capsys, written(tmp_path, text), "--out", "run")
    rows = read_history(tmp_path / "run" / "history.jsonl")
    assert [row["phase"] for row in rows if row["kind"] == "train"] == [
        "lifted",
        "Conventional, BackPropagation, Adam",
    ]
    assert rows[-1]["step"] == 4 + 3
    assert len(read_configuration(tmp_path / "run" / "config.toml").phase) == 2


# Own data and networks


def test_own_files_of_every_kind(capsys: Capture, tmp_path: Path) -> None:
    y = torch.rand(30, 3)
    arrays = {"inputs": y, "targets": y.sum(1, keepdim=True)}
    np.savez(tmp_path / "a.npz", **{name: tensor.numpy() for name, tensor in arrays.items()})
    save_file(arrays, tmp_path / "b.safetensors")
    (tmp_path / "c").mkdir()
    for name, tensor in arrays.items():
        np.save(tmp_path / "c" / f"{name}.npy", tensor.numpy())
    flags = ("--data.set", "files", "--data.task", "regression", "--training.steps", 3, "--network.widths", 4)
    found = [trained(capsys, "--data.path", name, *flags) for name in ("a.npz", "b.safetensors", "c")]
    assert found[0]["validation"] == found[1]["validation"] == found[2]["validation"]
    assert Path(found[0]["configuration"]["data"]["path"]) == tmp_path / "a.npz"  # the same from any folder
    other = trained(capsys, "--data.path", "a.npz", "--data.validation-path", "b.safetensors", *flags)
    assert other["configuration"]["data"]["validation_path"].endswith("b.safetensors")


def test_own_images_and_labels(capsys: Capture, tmp_path: Path) -> None:
    images = load_digits("train")
    np.savez(tmp_path / "images.npz", targets=images.images[:30, 0].numpy())
    np.savez(tmp_path / "labels.npz", inputs=images.images[:30].numpy(), targets=images.labels[:30].numpy())
    tiny = ("--training.steps", 2, "--network.widths", 4, "--data.set", "files")
    denoised = trained(capsys, "--data.path", "images.npz", *tiny)
    assert denoised["validation"]["input"]["metrics"]["psnr"] < 20
    labelled = trained(capsys, "--data.path", "labels.npz", "--data.task", "classification", *tiny)
    assert "accuracy" in labelled["units"]
    mask = (torch.rand(30, 1, 28, 28) > 0.3).float()
    pairs = {"inputs": images.images[:30] * mask, "targets": images.images[:30].contiguous(), "context": mask}
    save_file(pairs, tmp_path / "masked.safetensors")
    unrolled = ("--network.kind", "PrimalDual", "--network.iterations", 1, "--data.task", "inpainting")
    trained(capsys, "--data.path", "masked.safetensors", *unrolled, "--training.steps", 2, "--data.set", "files")


MODULE = """
import torch
from torch import nn
from torchlift.networks import MLP

def plain():
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Conv2d(2, 1, 3, padding=1))

def lifted():
    return MLP([784, 8, 784])

def wrong():
    return nn.Linear(784, 784)

def broken():
    return 1 / 0

number = 3
"""


def test_a_network_of_ones_own(capsys: Capture, config: Path, tmp_path: Path) -> None:
    (tmp_path / "own_networks.py").write_text(MODULE, encoding="utf-8")
    text = TINY.partition("[network]")[0] + "[network]\nkind = 'own_networks:plain'\n[training]\nsteps = 2\n"
    before = list(sys.path)
    record = trained(capsys, written(tmp_path, text), "--out", "run")
    assert sys.path == before
    assert record["network"]["in_shape"] == [1, 28, 28]
    assert load_model("run/model").out_shape == (1, 28, 28)
    assert trained(capsys, config, "--network.kind", "own_networks:lifted")["network"]["in_shape"] == [784]
    for kind, reason in {
        "own_networks:wrong": "returns a Network or an nn.Sequential, got Linear",
        "own_networks:number": "a function that can be called, got TypeError",
        "own_networks:absent": "AttributeError: module 'own_networks' has no attribute 'absent'",
        "own_networks:broken": "ZeroDivisionError",
        "absent_module:f": "ModuleNotFoundError: No module named 'absent_module'",
        "os.system('x'):f": "expected module:function",
    }.items():
        assert reason in refused(capsys, config, "--network.kind", kind)


# Plans


def test_a_plan_trains_nothing(capsys: Capture, config: Path, tmp_path: Path) -> None:
    status, out, err = run(capsys, config, "--dry-run", "--out", "run")
    assert (status, err) == (0, "")
    assert not (tmp_path / "run").exists()
    for word in ("MLP, 784 → 784, J = 1", "SweepDescent", "budget  4 steps", "memory", "W =", "Nothing was trained"):
        assert word in out
    plan = trained(capsys, config, "--dry-run", "--training.solver", "adam")
    assert plan["phases"][0]["steps"] == 4
    assert plan["network"]["parameters"] == 784 * 12 + 12 + 12 * 784 + 784
    assert plan["phases"][0]["memory"]["parameters"] == 4 * plan["network"]["parameters"]
    assert "Adam" in plan["phases"][0]["solver"]


# Interruption


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_is_saved_and_goes_on(capsys: Capture, number: signal.Signals, tmp_path: Path) -> None:
    text = """
        [data]
        set = "files"
        task = "regression"
        path = "own.npz"
        [network]
        widths = [4]
        [training]
        steps = 700
        evaluate_every = 25
    """
    own_data(tmp_path)
    config, folder = written(tmp_path, text), tmp_path / "a run"
    whole = trained(capsys, config, "--out", "whole")
    process = Command(["train", str(config), "--out", "a run"])
    history, end = folder / "history.jsonl", time.monotonic() + 60
    while not (history.exists() and history.stat().st_size) and time.monotonic() < end:
        time.sleep(0.005)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    if number == signal.SIGTERM:  # ends the process, once all is saved
        assert process.returncode == -number, err
        assert 0 < Checkpoints(folder / "checkpoints").load().step < 700
    else:
        assert process.returncode == 130, err
        assert "To go on: torchlift train --resume 'a run'\n" in err
        assert "interrupted" in out
        assert json.loads((folder / "train.json").read_text(encoding="utf-8"))["steps"] < 700

    record = trained(capsys, "--resume", "a run")
    assert (record["result"], record["steps"]) == ("max_steps", 700)
    assert record["validation"] == whole["validation"]
    first, second = load_model(tmp_path / "whole" / "model"), load_model(folder / "model")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_a_folder_with_a_run_is_not_overwritten(capsys: Capture, config: Path) -> None:
    trained(capsys, config, "--out", "run")
    assert "torchlift train --resume run" in refused(capsys, config, "--out", "run")
    assert "beside --resume" in refused(capsys, "--resume", "run", "--out", "other")
    assert "a configuration or --resume, got both" in refused(capsys, config, "--resume", "run")
    assert "with config.toml, got none" in refused(capsys, "--resume", "absent")
    assert "resumed run: phases" in refused(capsys, "--resume", "run", "--training.lifting", "bregman")
    assert "resumed run: layers" in refused(capsys, "--resume", "run", "--network.threshold", 0.03)
    assert trained(capsys, "--resume", "run")["steps"] == 4


def test_a_run_is_made_longer(capsys: Capture, config: Path, tmp_path: Path) -> None:
    trained(capsys, config, "--out", "run")
    record = trained(capsys, "--resume", "run", "--training.steps", 6)
    assert record["steps"] == record["configuration"]["training"]["steps"] == 6
    assert read_configuration(tmp_path / "run" / "config.toml").training.steps == 6
    assert trained(capsys, "--resume", "run") == json.loads((tmp_path / "run" / "train.json").read_text()) == record


def test_a_run_that_never_began_leaves_its_folder_free(capsys: Capture, config: Path) -> None:
    assert "memory" in refused(capsys, config, "--out", "run", "--training.memory-limit", 1000)
    assert trained(capsys, config, "--out", "run")["steps"] == 4


def test_training_that_fails_says_so(capsys: Capture, config: Path, tmp_path: Path) -> None:
    flags = ("--training.solver", "sgd", "--training.lr", 1e30, "--out", "run")
    status, out, err = run(capsys, config, *flags)
    assert (status, err.count("\n")) == (2, 1)
    assert "NaN or infinite" in out
    assert json.loads((tmp_path / "run" / "train.json").read_text(encoding="utf-8"))["failed"] is True


# Mistakes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[network]\nactivaton = 'relu'", "run.toml: [network]: expected the keys"),
        ("[network]\nactivaton = 'relu'", "got 'activaton'. Did you mean 'activation'?"),
        ("[training]\nepochs = 1.5", "[training] epochs: expected a whole number, got the number 1.5"),
        ("[network]\nwidths = [100000000, 100000000]", "something that fits into"),
        ("[data]\nset = 'mnist'", "Full MNIST: expected"),
        ("[training\n", "expected a TOML file, got"),
    ],
)
def test_mistakes_get_one_line(capsys: Capture, tmp_path: Path, text: str, reason: str) -> None:
    assert reason in refused(capsys, written(tmp_path, text))


def test_bad_files_get_one_line(capsys: Capture, config: Path, tmp_path: Path) -> None:
    assert "no such file" in refused(capsys, "absent.toml")
    assert "expected a TOML file, got a folder." in refused(capsys, tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "expected a TOML file, got a file that is no text." in refused(capsys, "binary.toml")
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 21))
    assert "a TOML file of at most 262144 bytes" in refused(capsys, "large.toml")
    (tmp_path / "file").touch()
    assert "file" in refused(capsys, config, "--out", "file")
    assert "Did you mean --network.activation?" in refused(capsys, config, "--network.activaton", "relu")
    assert "--training.steps" in refused(capsys, config, "--training.steps", "many")


def test_flags_count_for_more_than_phases(capsys: Capture, tmp_path: Path) -> None:
    text = f"{TINY}\n[[phase]]\nepochs = 7\n"
    assert trained(capsys, written(tmp_path, text), "--training.steps", 3)["steps"] == 3
    assert "train epochs: expected a whole number >= 1" in refused(
        capsys, written(tmp_path, text), "--training.epochs", 0
    )


def test_a_flag_takes_the_place_of_the_length_in_the_file(capsys: Capture, tmp_path: Path) -> None:
    path = written(tmp_path, TINY.replace("steps = 4", "epochs = 9"))
    assert trained(capsys, path, "--training.steps", 2)["steps"] == 2


def test_a_name_that_is_almost_right(capsys: Capture, config: Path) -> None:
    assert f"Did you mean {config.name!r}?" in refused(capsys, config.with_name(config.name.upper()))


def test_targets_are_what_the_task_says(capsys: Capture, tmp_path: Path) -> None:
    inputs = np.random.default_rng(0).normal(size=(20, 2))
    np.savez(tmp_path / "whole.npz", inputs=inputs, targets=np.arange(20))
    np.savez(tmp_path / "real.npz", inputs=inputs, targets=inputs)
    np.savez(tmp_path / "signed.npz", inputs=inputs, targets=np.sign(inputs[:, 0]).astype(int))
    files = ("--data.set", "files", "--training.steps", 1, "--data.path")
    record = trained(capsys, *files, "whole.npz", "--data.task", "regression")
    assert record["network"]["out_shape"] == [1]
    labels = ("--data.task", "classification")
    assert "expected whole numbers, the labels, got torch.float64" in refused(capsys, *files, "real.npz", *labels)
    assert "expected labels 0, 1, …, got -1." in refused(capsys, *files, "signed.npz", *labels)


def test_bad_data_get_one_line(capsys: Capture, tmp_path: Path) -> None:
    path = own_data(tmp_path)
    path.write_bytes(path.read_bytes()[:100])
    assert "own.npz" in refused(capsys, "--data.set", "files", "--data.path", path)
    np.savez(tmp_path / "nan.npz", targets=np.zeros((20, 2)), inputs=np.full((20, 2), np.nan))
    tiny = ("--data.set", "files", "--training.steps", 1)
    assert "finite values, got nan at sample 0" in refused(capsys, "--data.path", "nan.npz", *tiny)


@pytest.mark.parametrize("name", ["denoise", "inpaint", "mnist"])
def test_the_examples_run(capsys: Capture, repository: Path, name: str) -> None:
    small = ("--data.set", "digits", "--data.images", 60, "--data.validation", 10, "--training.steps", 2)
    shallow = ("--network.iterations", 1) if name == "inpaint" else ()
    unset = ("--training.epochs", "None") if name == "mnist" else ()
    record = trained(capsys, repository / "examples" / f"{name}.toml", *small, *shallow, *unset)
    assert record["steps"] == 2
