"""The examples run, in a small version, and what their pages show comes from the code that is there."""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("documentation", ROOT / "docs" / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


documentation = _load()
NAMES = documentation.names()


def test_the_gallery_is_whole() -> None:
    assert len(NAMES) >= 15
    assert {path.stem for path in documentation.RECORDS.glob("*.json")} == set(NAMES)
    assert {path.stem for path in documentation.RECORDS.glob("*.png")} == set(NAMES)
    shown = documentation.on_page_markdown("<!-- gallery -->")
    assert all(f'href="{name}.html"' in shown and f'src="{name}.png"' in shown for name in NAMES)


@pytest.mark.parametrize("name", documentation.NOTEBOOKS)
def test_a_notebook_is_its_example_with_outputs(name: str) -> None:
    """Its cells are those that `test_an_example_runs` executes."""
    file = documentation.EXAMPLES / "notebooks" / f"{documentation.NOTEBOOKS[name]}.ipynb"
    notebook = json.loads(file.read_text(encoding="utf-8"))
    assert notebook == documentation.as_notebook(name), "run: make gallery"
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    source = (documentation.EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert code == [cell.text for cell in documentation.cells(source) if cell.code]
    (picture,) = [output for output in notebook["cells"][-1]["outputs"] if output["output_type"] == "display_data"]
    assert base64.b64decode(picture["data"]["image/png"]).startswith(b"\x89PNG")
    assert file.stat().st_size < 500_000


@pytest.mark.parametrize("name", NAMES)
def test_an_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("TORCHLIFT_TINY", "1")
    printed, figure = documentation.run(documentation.EXAMPLES / f"{name}.py")
    assert "".join(printed)
    assert figure.axes
    recorded = json.loads((documentation.RECORDS / f"{name}.json").read_text(encoding="utf-8"))["printed"]
    # the record has other numbers, but as many outputs, in the same places
    assert [bool(text) for text in recorded] == [bool(text) for text in printed]


@pytest.mark.parametrize("name", NAMES)
def test_the_record_belongs_to_the_code(name: str) -> None:
    source = (documentation.EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    recorded = json.loads((documentation.RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    assert recorded["code"] == documentation.digest(source), "run: make gallery"


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_a_notebook_in_the_percent_format(name: str) -> None:
    source = (documentation.EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert re.match(r"# %% \[markdown\]\n# # \w", source), "it begins with a title"
    cells = list(documentation.cells(source))
    assert sum(cell.code for cell in cells) >= 3 and sum(not cell.code for cell in cells) >= 3
    assert all(cell.text for cell in cells)


def test_the_numbers_of_the_readme_are_those_of_the_records() -> None:
    rows = re.findall(
        r"^\| \[[^]]+\]\(examples/(\w+)\.py\) \|(.*)$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(rows) == 5
    for name, row in rows:
        printed = "\n".join(json.loads((documentation.RECORDS / f"{name}.json").read_text(encoding="utf-8"))["printed"])
        numbers = re.findall(r"[\d.]+ (?:%|dB)", row)
        assert len(numbers) >= 2 and [number for number in numbers if number not in printed] == [], name


def test_cells() -> None:
    source = "# %% [markdown]\n# # Title\n#\n# Words.\n\n# %%\na = 1\n\n\n# %%\nprint(a)\n"
    title, first, second = documentation.cells(source)
    assert (title.text, title.code) == ("# Title\n\nWords.", False)
    assert (first.text, first.code, first.line) == ("a = 1", True, 7)
    assert second.text == "print(a)"
    assert documentation.digest(source) == documentation.digest(source.replace("Words", "Other words"))
    assert documentation.digest(source) != documentation.digest(source.replace("a = 1", "a = 2"))


def test_formulas_become_mathml() -> None:
    pytest.importorskip("latex2mathml")
    inline = documentation.on_page_content('a <span class="arithmatex">\\(x_1 &lt; 2\\)</span> b')
    assert inline.startswith("a <math") and inline.endswith("</math> b")
    assert "<msub><mi>x</mi><mn>1</mn></msub><mo>&#x0003C;</mo>" in inline
    assert 'display="block"' in documentation.on_page_content('<div class="arithmatex">\\[y\\]</div>')
