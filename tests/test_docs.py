"""Every Python block of the README and of the documentation runs, and prints what the page says it prints.

The blocks of one page share a namespace and run in order, in an empty folder.
A block ```` ```text ```` right after one of Python is what that one prints;
`...` stands for anything. Marks, each in an HTML comment before a block:

    not run: reason      it is not executed (what needs a GPU or a cluster)
    needs: module        the rest of the page is skipped where the module is missing
    hidden, then code    code that runs but is not shown
"""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import io
import operator
import os
import pkgutil
import re
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
import torch

import torchlift

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

LIMIT = 150
"""Processor time that the snippets of a page may take, in units of `some_work`: ten seconds on a quiet machine."""

PREPARED: dict[str, str] = {
    # its last snippet is a line from inside `Item.run`
    "docs/reproduction.md": (
        "from pathlib import Path\n"
        "import torch\n"
        "from torchlift.lab.reproduction import Work\n"
        "work, images = Work('tiny', 0, Path('work')), torch.zeros(2, 3)\n"
    ),
}
"""Names that snippets of a page take for granted."""

_PART = re.compile(
    r"<!--\s*(?P<mark>not run|needs|hidden)(?::\s*(?P<detail>[^\n]*?))?\s*(?:\n(?P<code>.*?))?-->"
    r"|^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<block>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Snippet:
    """A block of Python, where it stands, and what it should print (None: not said)."""

    code: str
    line: int
    printed: str | None = None
    needs: str | None = None


def snippets(text: str) -> list[Snippet]:
    """The blocks of a page that are executed."""
    found: list[Snippet] = []
    last = skip = None
    for part in _PART.finditer(text):
        line = text.count("\n", 0, part.start()) + 1
        if part["mark"] == "not run":
            assert part["detail"], f"line {line}: 'not run' without a reason"
            skip = part.end()
        elif part["mark"]:
            found.append(Snippet(part["code"] or "", line, needs=part["detail"]))
        elif skip is not None and not text[skip : part.start()].strip():
            skip = None
        elif part["language"] in ("python", "py"):
            found.append(Snippet(_dedent(part), line))
            last = part.end()
        elif part["language"] == "text" and last is not None and not text[last : part.start()].strip():
            found[-1] = Snippet(found[-1].code, found[-1].line, _dedent(part))
    return found


def _dedent(part: re.Match[str]) -> str:
    return re.sub(f"^{part['indent']}", "", part["block"], flags=re.MULTILINE)


def run(page: str, text: str) -> None:
    """Execute the snippets of a page and compare what they print."""
    module = ModuleType("page")  # a real one: torch.compile looks names up in it
    namespace = module.__dict__
    exec(PREPARED.get(page, ""), namespace)
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    for snippet in snippets(text):
        if snippet.needs:
            pytest.importorskip(snippet.needs)
        with redirect_stdout(io.StringIO()) as output, pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, module.__name__, module)
            exec(compile("\n" * snippet.line + snippet.code, page, "exec"), namespace)
        if snippet.printed is not None:
            example = doctest.Example(snippet.code, snippet.printed)
            difference = checker.output_difference(example, output.getvalue(), flags)
            assert checker.check_output(snippet.printed, output.getvalue(), flags), f"line {snippet.line}: {difference}"


def some_work() -> float:
    """Processor seconds of products of matrices and of plain Python: longer on a slow or busy machine."""
    matrix, total = torch.rand(300, 300), 0
    begun = time.process_time()
    for _ in range(100):
        matrix @ matrix
    for number in range(300_000):
        total += number * number
    return time.process_time() - begun


@cache
def usual_work() -> float:
    """That of the first page, for all of them."""
    return some_work()


def with_snippets() -> list[str]:
    """The pages that have something to run."""
    return [str(path.relative_to(ROOT)) for path in PAGES if snippets(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", with_snippets())
def test_the_snippets_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = (ROOT / page).read_text(encoding="utf-8")
    unit, begun = usual_work(), time.process_time()
    run(page, text)
    taken = time.process_time() - begun
    assert taken < LIMIT * unit or taken < LIMIT * some_work()  # measured again where it matters


def test_lines_of_code_are_as_wide_as_a_page() -> None:
    """100 characters are what a screen of 1,280 pixels shows; examples are formatted to that by their ruff.toml."""
    blocks = re.compile(r"^ *```\w+\n(.*?)^ *```$|^((?:    [^\n]*\n)+)", re.DOTALL | re.MULTILINE)
    wide = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in PAGES
        for block in blocks.finditer(path.read_text(encoding="utf-8"))
        for line in (block[1] or block[2] or "").splitlines()
        if len(line) > 100
    ]
    assert wide == []


SHOWN = "```python\nprint(1.25)\n```\n\n```text\n{}\n```\n"


def test_false_output_is_found() -> None:
    run("page", SHOWN.format("1.25"))
    run("page", SHOWN.format("1..."))
    with pytest.raises(AssertionError, match="line 1"):
        run("page", SHOWN.format("1.5"))


def test_snippets_share_names_and_marks_are_obeyed() -> None:
    page = "<!-- hidden\na = 2\n-->\n```python\nb = a\n```\ntext\n```python\nassert b == 2\n```\n"
    run("page", page)
    with pytest.raises(ZeroDivisionError):
        run("page", "```python\n1 / 0\n```\n")
    run("page", "<!-- not run: it divides by zero -->\n\n```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError):
        run("page", "<!-- not run: only the next one -->\n```sh\nls\n```\n```python\n1 / 0\n```\n")
    with pytest.raises(AssertionError, match="without a reason"):
        snippets("<!-- not run -->\n```python\n```\n")
    with pytest.raises(pytest.skip.Exception):
        run("page", "<!-- needs: no_such_module -->\n```python\nimport no_such_module\n```\n")


class Outside(HTMLParser):
    """What a page would fetch from another host: scripts, styles, pictures; not links that people follow."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.formulas = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.formulas += tag == "math"
        address = dict(attrs).get("src") or (dict(attrs).get("href") if tag == "link" else None)
        if address and re.match(r"(https?:)?//", address):
            self.found.append(f"{tag} {address}")


def public(part: str) -> list[str]:
    """The classes and functions that a part of the package offers."""
    module = importlib.import_module(part)
    found = {name: getattr(module, name) for name in module.__all__}
    return [name for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)]


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs mkdocs: pip install torchlift[docs]")
@pytest.mark.timeout(300)  # some ten seconds, unless the machine has other work
def test_the_site_builds_without_warnings_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    formulas = 0
    for file in tmp_path.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        page = Outside()
        page.feed(text)
        assert page.found == [], file.name
        assert 'class="arithmatex"' not in text, f"{file.name}: a formula was left as it is"
        formulas += page.formulas
    assert formulas > 100
    assert (tmp_path / "gallery" / "denoise.html").is_file()
    for page in (ROOT / "docs" / "api").glob("*.md"):
        shown = (tmp_path / "api" / f"{page.stem}.html").read_text(encoding="utf-8")
        for part in re.findall(r"^::: (torchlift\.\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            missing = [name for name in public(part) if not re.search(rf'id="[\w.]*\.{name}"', shown)]
            assert missing == [], f"{part}: not on the page {page.name}; add a line '::: {part}.file.name'"


def extension_names() -> dict[str, object]:
    """What the pages about extensions import from torchlift or reach as `tl.…`, by name."""
    names: dict[str, object] = {}
    for page in (ROOT / "docs" / "extending").glob("*.md"):
        for snippet in snippets(page.read_text(encoding="utf-8")):
            for node in ast.walk(ast.parse(snippet.code)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torchlift"):
                    module = importlib.import_module(str(node.module))
                    names |= {f"{node.module}.{alias.name}": getattr(module, alias.name) for alias in node.names}
                elif isinstance(node, ast.Attribute) and re.fullmatch(r"tl(\.\w+)+", name := ast.unparse(node)):
                    names[name] = operator.attrgetter(name.removeprefix("tl."))(torchlift)
    return {name: value for name, value in names.items() if not isinstance(value, ModuleType)}


def documented() -> list[object]:
    """Everything with an entry on an API page: the target of a directive, and `__all__` where that is a module."""
    values: list[object] = []
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for directive in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            value = pkgutil.resolve_name(directive)
            values += [getattr(value, name) for name in value.__all__] if isinstance(value, ModuleType) else [value]
    return values


def test_every_name_that_an_extension_uses_has_an_entry_in_the_api() -> None:
    entries = {id(value) for value in documented()}
    names = extension_names()
    assert len(names) > 40
    assert [name for name, value in names.items() if id(value) not in entries] == []


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    written = {str(path.relative_to(ROOT / "docs")) for path in PAGES[1:]}
    drawn = {f"gallery/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")}
    assert named == written | drawn
