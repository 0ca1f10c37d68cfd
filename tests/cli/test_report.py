"""`torchlift report`: finds what other commands wrote, and says clearly where there is nothing."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import numpy as np
import pytest

from cli.runs import TINY
from report.examples import HOSTILE, example
from torchlift.cli import main
from torchlift.cli.report import distinct, find_runs
from torchlift.core.errors import DataError
from torchlift.report.records import Curves, Pictures, Record, save_record

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHLIFT_DATA", str(tmp_path / "nowhere"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small training, with an inversion of its network beside it."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "run.toml").write_text(TINY, encoding="utf-8")
    assert main(["train", str(folder / "run.toml"), "--out", str(folder / "trained"), "--json"]) == 0
    np.save(folder / "x.npy", np.random.default_rng(0).random((2, 784), dtype=np.float32))
    arguments = ["--encode", "--noise-level", "0.1", "--weight", "discrepancy", "--max-steps", "3", "--json"]
    data = [str(folder / "trained"), str(folder / "x.npy")]
    assert main(["invert", *data, *arguments, "--out", str(folder / "inverted")]) == 0
    return folder / "trained"


def run(capsys: Capture, *arguments: object) -> dict:
    """The JSON object of a call that must succeed."""
    capsys.readouterr()
    status = main(["report", *map(str, arguments), "--json"])
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return json.loads(captured.out)


def refused(capsys: Capture, *arguments: object) -> str:
    """The one line of a call that must be refused."""
    capsys.readouterr()
    status = main(["report", *map(str, arguments)])
    captured = capsys.readouterr()
    assert (status, captured.out, captured.err.count("\n")) == (2, "", 1), captured.err
    return captured.err


def titles(record: Record) -> list[str]:
    return [figure.title for figure in record.figures]


def test_a_record_becomes_a_page_in_its_folder(capsys: Capture, tmp_path: Path) -> None:
    save_record(tmp_path / "denoising", example())
    found = run(capsys, tmp_path / "denoising")
    page = tmp_path / "denoising" / "report.html"
    assert found["file"] == str(page) and found["bytes"] == page.stat().st_size
    assert found["runs"] == [{"folder": str(page.parent), "name": "denoising", "title": "Denoising of digits"}]
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_a_folder_of_records_is_searched_one_level_deep(capsys: Capture, tmp_path: Path) -> None:
    for name in ("b", "inversion", "a", "optimisers"):
        save_record(tmp_path / name, example(name=name))
    (tmp_path / "unfinished" / "parts").mkdir(parents=True)
    (tmp_path / ".hidden").mkdir()
    found = run(capsys)
    assert [Path(each["folder"]).name for each in found["runs"]] == ["optimisers", "inversion", "a", "b"]
    assert found["left out"] == ["unfinished"]
    assert found["file"] == "report.html"
    assert main(["report"]) == 0
    assert "left out, nothing finished in it: unfinished" in capsys.readouterr().out


def test_the_page_goes_where_it_is_wanted(capsys: Capture, tmp_path: Path) -> None:
    save_record(tmp_path / "a", example())
    assert run(capsys, "a", "--html", "new/page.html")["file"] == "new/page.html"
    assert (tmp_path / "new" / "page.html").is_file()
    assert run(capsys, "a", "--html")["file"] == "a/report.html"


def test_the_browser_is_opened_on_request(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    save_record(tmp_path / "a", example())
    run(capsys, "a")
    assert opened == []
    run(capsys, "a", "--open")
    assert opened == [(tmp_path / "a" / "report.html").as_uri()]


def test_a_folder_named_twice_is_shown_once(capsys: Capture, tmp_path: Path) -> None:
    save_record(tmp_path / "a", example())
    assert len(run(capsys, "a", tmp_path / "a", ".")["runs"]) == 1


def test_hostile_records_stay_text(capsys: Capture, tmp_path: Path) -> None:
    save_record(tmp_path / "a", example(text=HOSTILE))
    run(capsys, "a")
    assert HOSTILE not in (tmp_path / "a" / "report.html").read_text(encoding="utf-8")


def test_a_training_is_shown(trained: Path, capsys: Capture, tmp_path: Path) -> None:
    (found,), _ = find_runs([trained])
    record = found.record
    assert titles(record) == [
        "Validation", "Loss", "PSNR (dB)", "Learning rate", "Validation images", "Structure of the network",
    ]  # fmt: skip
    assert record.configuration["network"]["widths"] == [12]
    assert record.environment["versions"]["torch"].startswith("2.")
    assert record.command == f"torchlift train {trained}/config.toml --out {trained}-again"
    loss = record.figures[1]
    assert isinstance(loss, Curves)
    assert [(list(each.x), each.dashed) for each in loss.series] == [([2, 4], False), ([2, 4], True)]
    images = record.figures[4]
    assert isinstance(images, Pictures)
    assert list(images.rows) == ["truth", "input", "network"] and images.rows["network"].shape == (5, 28, 28)
    assert run(capsys, trained, "--html", tmp_path / "page.html")["bytes"] > 10_000


def test_images_of_a_training_are_those_that_it_was_judged_by(trained: Path) -> None:
    """The PSNR below the images is that of the run: the mean over all ten validation images."""
    from torchlift.cli import report_runs

    settings, (found,) = json.loads((trained / "train.json").read_text(encoding="utf-8")), find_runs([trained])[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report_runs, "SAMPLES", 10)
        images = report_runs.training_record(found.folder).figures[4]
    assert isinstance(images, Pictures)
    for row, name in (("input", "input"), ("network", "best")):
        errors = ((images.rows[row] - images.rows["truth"]) ** 2).flatten(1).mean(1)
        mean = float((-10 * errors.log10()).mean())
        assert mean == pytest.approx(settings["validation"][name]["metrics"]["psnr"], abs=1e-3)


def test_an_unfinished_training_has_its_curves(trained: Path, tmp_path: Path) -> None:
    for name in ("config.toml", "history.jsonl"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    (found,), _ = find_runs([tmp_path])
    assert titles(found.record) == ["Loss", "PSNR (dB)", "Learning rate"]
    assert "Not finished: 4 steps so far." in found.record.summary


def test_a_training_without_its_data_says_so(trained: Path, tmp_path: Path) -> None:
    for name in ("history.jsonl", "train.json", "model/record.json", "model/tensors.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    config = (trained / "config.toml").read_text(encoding="utf-8").replace('set = "digits"', 'set = "mnist"')
    (tmp_path / "config.toml").write_text(config, encoding="utf-8")
    (found,), _ = find_runs([tmp_path])
    assert "Validation images" not in titles(found.record)
    assert "No images are shown: " in found.record.summary


def test_an_inversion_is_shown(trained: Path) -> None:
    (found,), _ = find_runs([trained.with_name("inverted")])
    record = found.record
    assert titles(record) == [
        "Inputs that were found", "Choice of the weight by discrepancy", "Mean gap of each layer", "Each image",
    ]  # fmt: skip
    images = record.figures[0]
    assert isinstance(images, Pictures) and images.rows["inversion"].shape == (2, 28, 28)
    assert images.truth == "input" and record.command.startswith("torchlift invert ")
    assert record.environment["versions"]["torchlift"]
    assert "Mean PSNR: " in record.summary
    assert record.configuration["algorithm"] == "auto"


def test_different_work_on_one_page(trained: Path, capsys: Capture, tmp_path: Path) -> None:
    save_record(tmp_path / "a", example())
    found = run(capsys, trained, trained.with_name("inverted"), "a", "--html", "all.html")
    assert [each["name"] for each in found["runs"]] == ["training", "inversions", "denoising"]


def test_labels_are_what_differs_between_paths(tmp_path: Path) -> None:
    for name in ("one/denoising", "two/denoising", "one/deblurring"):
        save_record(tmp_path / name, example(name=Path(name).name))
    runs, _ = find_runs([tmp_path / "one", tmp_path / "two"])
    assert [(run.folder.name, label) for run, label in zip(runs, distinct(runs), strict=True)] == [
        ("deblurring", "deblurring"), ("denoising", "one"), ("denoising", "two"),
    ]  # fmt: skip


def test_folders_without_anything_are_refused(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    line = refused(capsys, "empty")
    assert "report empty: expected record (of torchlift reproduce), history.jsonl (of train) or invert.json" in line
    assert "Name the folder that was given as --out." in line
    assert "report absent: expected a folder, got nothing there" in refused(capsys, "absent")
    assert "report file: expected a folder, got a file" in refused(capsys, "file")
    assert list(tmp_path.rglob("report.html")) == []


def test_folders_after_the_file_are_refused(capsys: Capture, tmp_path: Path) -> None:
    save_record(tmp_path / "a", example())
    assert "--html: expected a file, got the folder a. Name the folders first" in refused(capsys, "--html", "a")
    assert "--html: expected at most one file, got p.html a" in refused(capsys, "--html", "p.html", "a")


def test_damaged_files_are_named(trained: Path, tmp_path: Path) -> None:
    save_record(tmp_path / "a", example())
    file = tmp_path / "a" / "record" / "record.json"
    file.write_bytes(file.read_bytes().replace(b"Denoising", b"Denoisinh"))
    with pytest.raises(DataError, match="damaged or was changed"):
        find_runs([tmp_path / "a"])
    for content, reason in (
        ("{", "expected JSON"),
        ("[]", "expected a JSON object, got list"),
        ('{"format": 1, "psnr": null}', "expected what torchlift invert writes, got KeyError"),
    ):
        (tmp_path / "invert.json").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=f"invert.json: {reason}"):
            find_runs([tmp_path])
    (tmp_path / "invert.json").unlink()
    for name in ("config.toml", "history.jsonl"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    for content, reason in (("{", "expected JSON"), ("[]", "expected a JSON object, got list")):
        (tmp_path / "train.json").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=f"train.json: {reason}"):
            find_runs([tmp_path])
    (tmp_path / "config.toml").unlink()
    with pytest.raises(DataError, match=r"config\.toml"):
        find_runs([tmp_path])
