"""What this documentation needs beyond mkdocs: MathML, pages of examples, tables of records.

mkdocs calls the functions named `on_…`. Formulas between dollars become MathML
while the site is built, so that it needs neither scripts nor a network to show
them. Every `examples/name.py`, in cells that begin with `# %%`, becomes the
page `gallery/name.md`, with what its cells printed and the figure it drew when

    python docs/build.py [name ...]

last ran it at full size. These records are kept in `docs/gallery`; those of
`NOTEBOOKS` are written as notebooks too. Marks in pages, `<!-- gallery -->` and
`<!-- records: name -->`, stand for cards of all examples and for tables of what
is kept in `docs/records`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

DOCS = Path(__file__).resolve().parent
EXAMPLES = DOCS.parent / "examples"
RECORDS = DOCS / "gallery"
MEASURED = DOCS / "records"

NOTEBOOKS = {"dead_layers": "1-train", "own_loop": "2-own-loop", "error_bars": "3-invert"}
"""Examples that are notebooks too, one for each use, and their names in `examples/notebooks`."""

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)
_MARK = re.compile(r"<!-- (gallery|records: ([\w-]+)) -->")


@dataclass(frozen=True)
class Cell:
    """A piece of an example: prose without its comment signs, or code.

    Arguments:
        text: without surrounding blank lines.
        code: whether Python runs it.
        line: where it begins in the file.
    """

    text: str
    code: bool
    line: int


def cells(source: str) -> Iterator[Cell]:
    """The cells of a script in the percent format."""
    marks = [*_CELL.finditer(source)]
    ends = [mark.start() for mark in marks[1:]] + [len(source)]
    for mark, end in zip(marks, ends, strict=True):
        text, line = source[mark.end() : end], source.count("\n", 0, mark.end()) + 1
        if "[markdown]" in mark[1]:
            prose = "\n".join(
                line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines()
            )
            yield Cell(prose, False, line)
        else:
            yield Cell(text.strip("\n"), True, line)


def digest(source: str) -> str:
    """A fingerprint of the code cells: records of other code are out of date."""
    code = "\n".join(cell.text for cell in cells(source) if cell.code)
    return hashlib.sha256(code.encode()).hexdigest()


def run(path: Path) -> tuple[list[str], Any]:
    """What each code cell of an example prints, and the figure it leaves behind."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed: list[str] = []
    for cell in cells(path.read_text(encoding="utf-8")):
        if cell.code:
            with redirect_stdout(io.StringIO()) as output:
                # blank lines in front, so that tracebacks name the line of the file
                exec(compile("\n" * (cell.line - 1) + cell.text, str(path), "exec"), namespace)
            printed.append(output.getvalue().rstrip())
    return printed, namespace.get("figure")


def record(name: str) -> None:
    """Run an example at full size and keep what it shows."""
    path = EXAMPLES / f"{name}.py"
    printed, figure = run(path)
    content = {"code": digest(path.read_text(encoding="utf-8")), "printed": printed}
    (RECORDS / f"{name}.json").write_text(
        json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    figure.savefig(RECORDS / f"{name}.png", dpi=110, bbox_inches="tight")
    if name in NOTEBOOKS:
        notebook = json.dumps(as_notebook(name), indent=1, ensure_ascii=False) + "\n"
        (EXAMPLES / "notebooks" / f"{NOTEBOOKS[name]}.ipynb").write_text(notebook, encoding="utf-8")


def as_notebook(name: str) -> dict[str, Any]:
    """An example and its record in Jupyter's format 4.5; the figure belongs to the last cell."""
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    printed = iter(json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))["printed"])
    parts: list[dict[str, Any]] = []
    for number, cell in enumerate(cells(source)):
        part: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}, "source": cell.text}
        if not cell.code:
            prose = re.sub(
                r"\((\w+)\.md\)", r"(../\1.py)", cell.text
            )  # other examples are scripts there
            part |= {"cell_type": "markdown", "source": prose}
        else:
            text = next(printed)
            stream = {"output_type": "stream", "name": "stdout", "text": text + "\n"}
            part |= {
                "cell_type": "code",
                "execution_count": None,
                "outputs": [stream] if text else [],
            }
        parts.append(part)
    picture = base64.b64encode((RECORDS / f"{name}.png").read_bytes()).decode()
    shown = {"output_type": "display_data", "metadata": {}, "data": {"image/png": picture}}
    parts[-1]["outputs"].append(shown)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": parts, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def page(name: str) -> str:
    """An example and its record as Markdown."""
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    printed = iter(json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))["printed"])
    parts = []
    for cell in cells(source):
        if not cell.code:
            parts.append(cell.text)
            continue
        parts.append(f"```python\n{cell.text}\n```")
        if text := next(printed):
            parts.append(f"```text\n{text}\n```")
    width, _ = _size(name)  # letters of wide ones stay legible on a telephone, where they scroll
    least = int(0.7 * width) if width > 800 else 0
    parts.append(
        f'<div class="drawn"><img src="{name}.png" alt="What the example draws" '
        f'style="--least: {least}px"></div>'
    )
    parts.append(f"This page is the script `examples/{name}.py`, run on one thread.")
    return "\n\n".join(parts) + "\n"


def _size(name: str) -> tuple[int, int]:
    """Width and height of the figure of an example, in pixels."""
    header = (RECORDS / f"{name}.png").read_bytes()[16:24]
    return int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")


def names() -> list[str]:
    """All examples."""
    return sorted(path.stem for path in EXAMPLES.glob("*.py"))


def cards() -> str:
    """All examples with their pictures, titles and first sentences."""
    parts = []
    for name in names():
        title, _, text = next(
            cells((EXAMPLES / f"{name}.py").read_text(encoding="utf-8"))
        ).text.partition("\n\n")
        sentence = re.split(r"(?<=[.?])\s", text.strip(), maxsplit=1)[0]
        before, formula, _ = re.sub(r"[,:]?\s*\$+[^$]*\\", "\0", sentence).partition("\0")
        sentence = before + "." if formula else sentence  # cards show no TeX
        sentence = re.sub(r"[$`]", "", sentence).replace("\n", " ")
        width, height = _size(name)
        kind = ' class="tall"' if height > width else ""
        picture = f'<img src="{name}.png" alt="" loading="lazy"{kind}>'
        title = html.escape(title.removeprefix("# "))
        words = f"<strong>{title}</strong><span>{html.escape(sentence)}</span>"
        parts.append(f'<a class="card" href="{name}.html">{picture}{words}</a>')
    return '<div class="cards">\n' + "\n".join(parts) + "\n</div>"


def tables(name: str) -> str:
    """What is kept under a name in `docs/records`, as a table."""
    if name == "league":
        from torchlift.lab.benchmarks.league_tables import markdown

        files = sorted((MEASURED / name).glob("*.json"))
        return markdown([json.loads(file.read_text(encoding="utf-8")) for file in files])
    if name in ("photographs", "deepinv"):
        return measured(name)
    lines = ["| example | printed |", "|---|---|"]
    for example in names():
        record = json.loads((RECORDS / f"{example}.json").read_text(encoding="utf-8"))
        # numbers only: pictures of block operators need a line of their own
        results = [text for text in record["printed"] if text and " =\n" not in text]
        text = "<br>".join(html.escape("\n".join(results)).splitlines())
        lines.append(f"| [{example}](gallery/{example}.md) | {text.replace('|', '&#124;')} |")
    return "\n".join(lines)


def measured(name: str) -> str:
    """Rows of `bench photographs` with their pictures, or those of `scripts/deepinv_demos.py`."""
    records = [
        json.loads(file.read_text("utf-8")) for file in sorted((MEASURED / name).glob("*.json"))
    ]
    if name == "photographs":
        from torchlift.lab.benchmarks.photographs import markdown, strip

        return f"{markdown(records)}\n\n{strip(MEASURED / name)}"
    sides = ("tl.train", "deepinv.Trainer")
    lines = [
        "| model | parameters | start | processor time | `tl.train` | `deepinv.Trainer` |",
        "|---" * 6 + "|",
    ]
    for record in records:
        ran = [f"{record[side]['psnr']:.2f} dB, {record[side]['steps']} steps" for side in sides]
        start, time = f"{record['start']:.2f} dB", f"{record['seconds']:.0f} s"
        cells = (record["name"], f"{record['parameters']:,}", start, time, *ran)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Put cards and tables where a page asks for them."""
    return _MARK.sub(lambda mark: tables(mark[2]) if mark[2] else cards(), markdown)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the gallery."""
    from mkdocs.structure.files import File

    for name in names():
        files.append(File.generated(config, f"gallery/{name}.md", content=page(name)))
    return files


def on_page_content(content: str, **_: object) -> str:
    """Replace formulas by MathML."""
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        display = "block" if match[1] == "div" else "inline"
        return convert(html.unescape(match[2]).strip(), display=display)

    return _FORMULA.sub(formula, content)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or names():
        print(f"{chosen} …", flush=True)
        record(chosen)
