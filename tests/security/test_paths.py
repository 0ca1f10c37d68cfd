"""What is written stays in the folder that was named, whatever files, configurations and records say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fuzz.cases import CASES
from report.examples import example
from torchlift.cli.app import run
from torchlift.core.errors import DataError, InvalidValueError
from torchlift.lab.reproduction import Work
from torchlift.lab.reproduction.run import write_figures
from torchlift.report.plot.figures import save_figure
from torchlift.report.records import Table, latex, load_record, save_record
from torchlift.training import History

NAMES = ["../up", "/absolute", "a\0b", "a/b", "..", ".", "", "~", "C:\\x", "con ", "a\n", "x" * 300 + "/"]


@contextmanager
def nothing_outside(folder: Path) -> Iterator[None]:
    """No file appears or changes beside `folder`, which is alone in its own."""
    outside = {path: path.read_bytes() for path in folder.parent.iterdir() if path.is_file()}
    yield
    assert {path for path in folder.parent.iterdir() if path.is_dir()} <= {folder}
    assert {path: path.read_bytes() for path in folder.parent.iterdir() if path.is_file()} == outside


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "a" / "out").mkdir(parents=True)
    return tmp_path / "a" / "out"


@pytest.mark.parametrize("name", NAMES)
def test_names_of_figures(out: Path, name: str) -> None:
    record = replace(example(), figures=[Table(name, "T", ["a"], [[1]])])
    with nothing_outside(out):
        for write in (write_figures, save_record):
            with pytest.raises(InvalidValueError, match="lower-case words joined by hyphens"):
                write(out, record)
        for figure in example().figures[1:]:
            with pytest.raises(InvalidValueError, match="lower-case words joined by hyphens"):
                save_figure(replace(figure, name=name), out)
        with pytest.raises(InvalidValueError, match="lower-case words joined by hyphens"):
            latex(record.figures[0])  # pyright: ignore[reportArgumentType]
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("name", NAMES)
def test_names_in_records_that_are_read(out: Path, name: str) -> None:
    import json

    from fuzz.mutations import sealed

    file = save_record(out, example()) / "record.json"
    content = json.loads(file.read_bytes())["content"]
    content["record"]["figures"][0]["name"] = name
    file.write_bytes(sealed(json.dumps(content).encode()))
    with pytest.raises(DataError, match="lower-case words joined by hyphens"):
        load_record(out)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_parts(out: Path, name: str) -> None:
    work = Work("tiny", 0, out)
    # names without letters are refused, others lose what is none; some are too long for a file
    with nothing_outside(out), suppress(InvalidValueError, DataError):
        work.part(name, lambda: ({"x": torch.ones(1)}, {}))
    assert all(path.parent == out / "parts" for path in out.glob("parts/*"))


@pytest.mark.parametrize("name", ["../shard-00001-of-00002.safetensors", "/etc/passwd", "a\0b", ""])
def test_names_of_shards(tmp_path: Path, name: str) -> None:
    import json

    from fuzz.mutations import sealed

    file = CASES["shards"].make(tmp_path)
    content = json.loads(file.read_bytes())["content"]
    content["shards"][0]["file"] = name
    file.write_bytes(sealed(json.dumps(content).encode()))
    with pytest.raises(DataError, match="as the name of a file"):
        CASES["shards"].read(tmp_path)


def test_names_in_configurations(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of phases are shown and recorded; no file is called so."""
    config = out.parent.parent / "c.toml"
    config.write_text(
        "[data]\nimages = 20\nvalidation = 5\n[network]\nwidths = [4]\n[[phase]]\nsteps = 1\nname = '../../x/\\0'\n",
        encoding="utf-8",
    )
    with nothing_outside(out):
        assert run(["train", str(config), "--out", str(out), "--json"]) == 0
    names = {"config.toml", "history.jsonl", "train.json", "model", "checkpoints", "figures"}
    assert {path.name for path in out.iterdir()} <= names
    capsys.readouterr()


def test_links_are_not_followed(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links that somebody left under the names of our files are replaced by files."""
    kept = out.parent / "kept.txt"
    kept.write_text("mine", encoding="utf-8")
    runs = out.parent.parent / "runs"
    save_record(runs, example())
    for name in ("report.json", "page.html", "summary.md", "history.jsonl", "tables"):
        (out / name).symlink_to(kept if "." in name else out.parent.parent)
    with nothing_outside(out):
        assert run(["report", str(runs), "--html", str(out / "page.html"), "--out", str(out)]) == 0
        write_figures(out, replace(example(), figures=example().figures[:1]))
        History(out / "history.jsonl").append({"kind": "train", "step": 1})
    assert kept.read_text(encoding="utf-8") == "mine"
    assert not any(path.is_symlink() for path in out.rglob("*"))
    assert not list(out.parent.parent.glob("*.md")) and (out / "tables" / "psnr.md").is_file()
    capsys.readouterr()


def test_a_dangling_link_makes_no_file_elsewhere(out: Path) -> None:
    (out / "history.jsonl").symlink_to(out.parent / "made.txt")
    History(out / "history.jsonl").append({"kind": "train", "step": 1})
    assert not (out.parent / "made.txt").exists()
