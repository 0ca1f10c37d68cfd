"""What this documentation needs beyond mkdocs: formulas as MathML, and a page for every example.

mkdocs calls the functions named `on_…`. Formulas between dollars become MathML
while the site is built, so that it needs neither scripts nor a network to show
them. Every `examples/name.py`, in cells that begin with `# %%`, becomes the
page `gallery/name.md`, with what its cells printed and the figure it drew when

    python docs/build.py [name ...]

last ran it at full size. These records are kept in `docs/gallery`.
"""

from __future__ import annotations

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

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_CELL = re.compile(r"^# %%(.*)\n", re.MULTILINE)


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
    parts.append(f"![What the example draws]({name}.png)")
    parts.append(f"This page is the script `examples/{name}.py`, run on one thread.")
    return "\n\n".join(parts) + "\n"


def names() -> list[str]:
    """All examples."""
    return sorted(path.stem for path in EXAMPLES.glob("*.py"))


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
