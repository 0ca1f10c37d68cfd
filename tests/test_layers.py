"""The import layers: folders depend on lower folders only.

The table is the architecture (see CONTRIBUTING.md). Imports under
`if TYPE_CHECKING:` count too: a base that must name a leaf's type knows too
much about it, even if nothing is loaded. Imports inside functions count for
the same reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
import torch

import torchlift as tl

SOURCE = Path(__file__).resolve().parent.parent / "src" / "torchlift"

LAYERS = {
    "core": 0,
    "prox": 1,
    "operators": 1,
    "functions": 2,
    "data": 2,
    "networks": 3,
    "liftings": 3,
    "solvers": 3,
    "io": 4,
    "sweeps": 4,
    "objective": 5,
    "parallel": 6,
    "training": 7,
    "inversion": 7,
    "testing": 7,
    "contrib": 8,
    "cli": 8,
    "lab": 9,
    "__main__": 9,
}
"""A part may import lower layers and itself; parts of one layer never import each other."""

SIDE = {"report": {"core", "operators", "io"}}
"""Parts beside the layers, and all that they may import. Only the top layer may import them."""

TOP = 8


def violations(source: Path) -> list[str]:
    """Every import in the package at `source` that goes against the table."""
    found: list[str] = []
    for file in sorted(source.rglob("*.py")):
        relative = file.relative_to(source)
        part = relative.parts[0].removesuffix(".py")
        if part == "__init__":
            continue  # the package's front door shows everything
        for line, target in imported_parts(file, relative, source.name):
            if not allowed(part, target):
                found.append(f"{relative}:{line}: {part} must not import {target}")
    return found


def allowed(part: str, target: str) -> bool:
    if part == target:
        return True
    if part in SIDE:
        return target in SIDE[part]
    if part not in LAYERS:
        return False
    if target == "":  # `import torchlift`, the front door, reaches everything
        return LAYERS[part] >= TOP
    if target in SIDE:
        return LAYERS[part] >= TOP
    return target in LAYERS and LAYERS[target] < LAYERS[part]


def imported_parts(file: Path, relative: Path, package: str) -> Iterator[tuple[int, str]]:
    """(line, part) of each import from our own package; the part "" is the package itself."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = from_names(node, relative, package)
        else:
            continue
        for name in names:
            root, _, rest = name.partition(".")
            if root == package:
                yield node.lineno, rest.partition(".")[0]


def from_names(node: ast.ImportFrom, relative: Path, package: str) -> list[str]:
    """The full names behind `from x import y`; relative imports are made absolute."""
    base = node.module or ""
    if node.level:
        folders = [package, *relative.parts[:-1]]
        base = ".".join([*folders[: len(folders) - node.level + 1], *([base] if base else [])])
    if base != package:
        return [base]
    return [f"{package}.{alias.name}" if is_part(alias.name) else package for alias in node.names]


def is_part(name: str) -> bool:
    return name in LAYERS or name in SIDE


def test_every_import_goes_down() -> None:
    assert violations(SOURCE) == []


def test_every_part_has_a_layer() -> None:
    parts = {p.name.removesuffix(".py") for p in SOURCE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert parts - {"__init__"} <= LAYERS.keys() | SIDE.keys()


def test_the_picture_in_contributing_is_the_table() -> None:
    text = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = text.split("```text\n")[1].split("```")[0]
    drawn: dict[str, int] = {}
    for line in picture.splitlines():
        if entry := re.match(r"( \d|  )  (\w+) {2,}", line):
            drawn[entry[2]] = int(entry[1].strip() or [*drawn.values()][-1])
    beside = {name: drawn.pop(name) for name in SIDE}
    assert drawn == {name: layer for name, layer in LAYERS.items() if name != "__main__"}
    assert set(beside.values()) == {0}  # at the foot of the picture


def files_of_a_step(package: str, function: Callable[[], object]) -> set[str]:
    """The files entered between two calls of a method `step` of a package, early in a run."""
    function()  # imports happen outside the record
    calls: list[tuple[str, str]] = []
    prefix = f"{SOURCE}/"

    def record(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(prefix):
            calls.append((code.co_filename.removeprefix(prefix), code.co_name))

    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(None)
    steps = (i for i, (file, name) in enumerate(calls) if file.startswith(f"{package}/") and name == "step")
    _, first, second, *_ = steps
    return {name for name, _ in calls[first:second]}


def packages(files: set[str]) -> set[str]:
    return {file.partition("/")[0] for file in files}


def drawn_way(heading: str) -> set[str]:
    """The packages in the picture below a heading of CONTRIBUTING."""
    text = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    picture = text.split(f"### {heading}\n")[1].split("```text\n")[1].split("```")[0]
    return {re.sub(r"[│├└─]", " ", line).split()[0] for line in picture.splitlines()}


def test_a_training_step_goes_the_way_that_is_drawn() -> None:
    network, data = tl.networks.MLP([4, 5, 2]), (torch.rand(20, 4), torch.rand(20, 2))
    files = files_of_a_step("training", lambda: tl.train(network, data, batch_size=5, steps=4, progress=False))
    assert packages(files) == drawn_way("One training step"), "draw the new way in CONTRIBUTING.md"


def test_a_step_of_an_inversion_goes_the_way_that_is_drawn() -> None:
    network = tl.networks.MLP([4, 5, 2])
    files = files_of_a_step("inversion", lambda: tl.invert(network, torch.rand(3, 2), progress=False))
    assert packages(files) == drawn_way("One step of an inversion"), "draw the new way in CONTRIBUTING.md"
    text = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(r"A step of an inversion enters .*?\n\n", text, re.DOTALL)
    assert f"enters {len(files)} files" in sentence
    names = set(re.findall(r"`(\w+)`", sentence))
    assert names - {"prox"} >= {Path(file).stem for file in files if file != "prox/relu.py"}


GOOD = {
    "prox/relu.py": "from torchlift.prox.base import ProximalActivation\nimport torch",
    "networks/mlp.py": "from torchlift import operators\nfrom torchlift.prox import ReLU",
    "cli/report.py": "from torchlift import __version__, report\nimport torchlift",
    "report/table.py": "from torchlift.core.errors import DataError",
    "__init__.py": "from torchlift.networks import MLP",
}

BAD = {
    "a base imports a leaf": ("core/checks.py", "from torchlift.prox import ReLU"),
    "siblings": ("networks/mlp.py", "import torchlift.liftings.bregman"),
    "from the package": ("solvers/admm.py", "from torchlift import networks"),
    "the front door": ("prox/relu.py", "import torchlift as tl"),
    "a name of the front door": ("data/noise.py", "from torchlift import ReLU"),
    "relative": ("liftings/huber.py", "from ..networks.mlp import MLP"),
    "relative to the package": ("liftings/huber.py", "from .. import networks"),
    "inside a function": ("operators/elementary.py", "def f():\n    from torchlift.solvers import ADMM"),
    "for types only": (
        "operators/elementary.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from torchlift.objective import Objective",
    ),
    "report sees more than core": ("report/table.py", "from torchlift.training import train"),
    "a low part reports": ("training/loop.py", "from torchlift.report import table"),
    "the laboratory": ("cli/app.py", "from torchlift.lab.commands import COMMANDS"),
    "a part without a layer": ("misc/tools.py", "from torchlift.core import errors"),
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        file = folder / "torchlift" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder / "torchlift"


def test_the_checker_accepts_what_is_right(tmp_path: Path) -> None:
    assert violations(write(tmp_path, GOOD)) == []


@pytest.mark.parametrize("case", BAD)
def test_the_checker_catches(case: str, tmp_path: Path) -> None:
    name, text = BAD[case]
    found = violations(write(tmp_path, {**GOOD, name: text}))
    assert len(found) == 1
    assert found[0].startswith(name)
