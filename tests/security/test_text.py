"""Text of files stays text: in the report, in Markdown and LaTeX, and on the terminal."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import markdown as markdown_package
import pytest
import torch

from fuzz.cases import CASES
from report.examples import example
from torchlift import report
from torchlift.cli.app import run
from torchlift.cli.report import find_runs
from torchlift.cli.text import printable
from torchlift.core.errors import DataError
from torchlift.report.records import Record, Table, latex, record_markdown, save_record
from torchlift.report.records.text import latex_text, markdown_text

ATTACK = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}&lt;b&gt;]]>--><!--"


def attacked(value: Any, count: Iterator[int], inside: str = "") -> Any:
    """The same with the attack, numbered, behind every text that is shown, keys included."""
    if isinstance(value, str):
        kept = inside in ("name", "outcome", "source", "kind", "formats", "truth", "group")
        return value if kept else f"{value}{ATTACK}#{next(count)};"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
        return dataclasses.replace(value, **{name: attacked(each, count, name) for name, each in fields.items()})
    if isinstance(value, dict):
        same = inside in ("rows", "captions")  # keys are the same names in both
        return {(key if same else attacked(key, count)): attacked(each, count) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [attacked(each, count, inside if inside == "formats" else "") for each in value]
    return value


def elements(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """All tags with their attributes, as a browser would find them."""
    found: list[tuple[str, dict[str, str | None]]] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: found.append((tag, dict(attrs)))
    parser.feed(page)
    return found


def test_every_field_of_a_record_is_escaped() -> None:
    numbers = iter(range(10**6))
    record: Record = attacked(example(), numbers)
    count = next(numbers)
    assert count > 60
    page = report.html([record, dataclasses.replace(record, seconds=1.0)], [ATTACK, f"{ATTACK}2"])
    assert "<script>alert" not in page and "<img src=x" not in page and "<!--" not in page.partition("<body>")[2]
    assert not {name for _, attributes in elements(page) for name in attributes if name.startswith("on")}
    assert sum("src" in attributes for name, attributes in elements(page) if name == "script") == 0
    shown = [number for number in range(count) if f"#{number};" in page]
    assert len(shown) > 0.8 * count  # the rest are long tables cut short, and cells too small for their names


def test_pictures_by_hostile_names() -> None:
    from torchlift.report.records import Pictures

    rows = {ATTACK: torch.zeros(1, 2, 2), "b": torch.zeros(1, 2, 2)}
    pictures = Pictures("p", "P", rows, {ATTACK: [ATTACK]}, truth=ATTACK)
    page = report.html([dataclasses.replace(example(), figures=[pictures])])
    assert "<script>alert" not in page and "<img src=x" not in page


@pytest.mark.parametrize("case", ["training", "inversion"])
def test_runs_of_others(tmp_path: Path, case: str) -> None:
    """Names of metrics, settings, messages and commands of foreign folders."""
    file = CASES[case].make(tmp_path)
    content = json.loads(file.read_text(encoding="utf-8"))
    text = json.dumps(attacked({key: value for key, value in content.items() if key != "format"}, iter(range(10**6))))
    hostile = json.loads(text)
    hostile = {key.partition('"')[0]: value for key, value in hostile.items()}
    if case == "inversion":  # what is computed with keeps its names
        for name in ("trace", "images", "gaps"):
            hostile[name] = content[name]
    else:
        hostile["validation"], hostile["units"] = content["validation"], {f"psnr{ATTACK}": ATTACK}
    file.write_text(json.dumps({**hostile, "format": 1}), encoding="utf-8")
    if case == "training":
        row = {"kind": "validation", "phase": ATTACK, "step": 3, "metrics": {ATTACK: 1.0, "loss": 2.0}}
        with (tmp_path / "history.jsonl").open("a", encoding="utf-8") as history:
            history.write(json.dumps(row) + "\n")
    found, _ = find_runs([tmp_path])
    page = report.html([run.record for run in found])
    assert "<script>alert" not in page and "<img src=x" not in page and "alert(1)" in page


def test_names_of_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hostile ones, and such as are no Unicode."""
    for name in ("<script>alert(1)<", "b\x1b[2J", "c\udcff"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        CASES["inversion"].make(tmp_path / "runs" / name)
    page = tmp_path / "page.html"
    assert run(["report", str(tmp_path / "runs"), "--html", str(page)]) == 0, capsys.readouterr().err
    text = page.read_text(encoding="utf-8")
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text
    assert "\x1b" not in capsys.readouterr().out


def test_nothing_moves_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert printable({"a\x1b": ["\x07b\n", 1]}) == {"a\ufffd": ["\ufffdb\n", 1]}
    save_record(tmp_path / "a", dataclasses.replace(example(), title="T\x1b]0;owned\x07[red]x[/nonsense]"))
    assert run(["report", str(tmp_path / "a"), "--html", str(tmp_path / "p.html")]) == 0
    assert "[red]x[/nonsense]" in (out := capsys.readouterr().out) and "\x1b" not in out
    assert run(["train", str(tmp_path / "absent\x1b[2J.toml")]) == 2
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>", "[a](javascript:alert(1))", "![a](x)", "# a", "> a", "- a", "+ a", "1. a", "12) a",
        "---", "===", "~~~", "``` a", "&lt;b&gt;", "&#60;b>", "*a* __b__ ~~c~~", "a | b", "a\n\n# b", "    a", "\\# a",
        "<http://x>", ATTACK,
    ],
)  # fmt: skip
def test_markdown_shows_what_was_written(text: str) -> None:
    """Read by another program: one paragraph, whose text is the one that was written."""
    page = markdown_package.markdown(markdown_text(text), extensions=["tables", "fenced_code"])
    tags = set(re.findall(r"<(/?\w+)", page))
    assert tags <= {"p", "/p"}, page
    import html

    shown = html.unescape(page.removeprefix("<p>").removesuffix("</p>"))
    assert shown.replace("\\~", "~").replace("\\&", "&").replace("\\=", "=") == " ".join(text.split())


def test_commands_stay_in_their_block() -> None:
    record = Record("n", "T", "S", "torchlift x\n\n# Heading\n<script>", {}, {}, 1.0)
    assert "    torchlift x # Heading <script>\n" in record_markdown(record)


@pytest.mark.parametrize(
    "text", [r"\input{/etc/passwd}", "^^5cinput x", "[2cm] a", "* a", "a\x00b\x1bc", "%", "$x$", "{", "}"]
)
def test_latex_has_no_commands_of_others(text: str) -> None:
    found = latex(Table("t", "T", [text, "b"], [[text, 1], [text, 2]], note=text))
    ours = {"begin", "end", "centering", "caption", "label", "toprule", "midrule", "bottomrule", "par", "smallskip",
            "textbackslash", "textasciicircum", "usepackage"}  # fmt: skip
    assert set(re.findall(r"\\([A-Za-z]+)", found)) <= ours
    assert not re.search(r"(\\\\|rule)\s*[\[*]", found)
    assert found.isprintable() or set(found) - {"\n"} == {c for c in found if c.isprintable()}
    depth = 0
    for brace in re.sub(r"\\[{}]", "", found):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        assert depth >= 0
    assert depth == 0 and latex_text("a") == "a"


def test_long_texts_of_files_do_not_fill_the_terminal(tmp_path: Path) -> None:
    file = CASES["settings"].make(tmp_path)
    content = json.loads(file.read_text(encoding="utf-8"))
    content["settings"]["experiment"] = "x" * 10**6
    file.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        CASES["settings"].read(tmp_path)
    assert len(str(caught.value)) < 3000
