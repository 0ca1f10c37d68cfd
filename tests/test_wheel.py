"""A wheel has all that `train`, `invert`, `demo`, `info` and `report` need, and each extra what it is for."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

EXTRAS = ("matplotlib", "PIL", "sklearn", "scipy", "pywt", "deepinv", "tensorboard", "hypothesis", "pytest")
"""Packages that only extras bring."""

COMMANDS = [
    ["info", "--json"],
    ["train", "--data.images", "20", "--data.validation", "5", "--network.widths", "8", "--training.steps", "2",
     "--training.threads", "1", "--out", "run"],
    ["invert", "run/model", "codes.npy", "--max-steps", "2", "--prior", "tikhonov", "--out", "inverse"],
    ["report", "run", "inverse", "--html", "page.html"],
    ["demo", "--tiny", "--out", "demo"],
]  # fmt: skip


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, since building leaves files beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(repository / name, folder / name)
    shutil.copytree(repository / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--wheel-dir", str(folder), str(folder)]
    done = subprocess.run([sys.executable, "-m", "pip", "wheel", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl")
    return file


def required(wheel: Path, extra: str = "") -> set[str]:
    """The distributions that installing the wheel brings, alone or with an extra."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(name).decode("utf-8").splitlines()
    todo = [(line.partition(": ")[2], extra) for line in lines if line.startswith("Requires-Dist: ")]
    names: set[str] = set()
    while todo:
        text, wanted = todo.pop()
        requirement = Requirement(text)
        needed = requirement.marker is None or requirement.marker.evaluate({"extra": wanted})
        if needed and requirement.name.lower() not in names:
            names.add(requirement.name.lower())
            todo += [(each, "") for each in importlib.metadata.requires(requirement.name) or []]
    return names


def install(wheel: Path, folder: Path, extra: str = "") -> None:
    """Unpack the wheel beside links to its dependencies and to nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            archive.extract(name, folder)
    for name in required(wheel, extra):
        files = importlib.metadata.files(name) or []
        for top in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            source = Path(str(files[0].locate())).parents[len(files[0].parts) - 1] / top
            if not (folder / top).exists():
                (folder / top).symlink_to(source)


def test_the_wheel_holds_every_file_of_the_package(wheel: Path, repository: Path) -> None:
    """Modules, digits, the parts of the page and py.typed; nothing else but metadata."""
    source = repository / "src"
    files = {file for file in (source / "torchlift").rglob("*") if file.is_file() and file.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == {file.relative_to(source).as_posix() for file in files}


@pytest.mark.slow
def test_the_wheel_alone_runs_the_commands(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(wheel, site)
    code = f"""
import sys
from importlib.util import find_spec
from pathlib import Path
from torchlift.cli import main
assert Path(main.__code__.co_filename).is_relative_to({str(site)!r})
assert not [name for name in {EXTRAS!r} if find_spec(name)]
assert main(["--help"]) == main(["bench", "--help"]) == 0 and "torch" not in sys.modules
import numpy
numpy.save("codes.npy", numpy.random.default_rng(0).random((3, 784), dtype=numpy.float32))
for arguments in {COMMANDS!r}:
    status = main(arguments)
    assert status == 0, (arguments, status)
"""
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "page.html").is_file()
    assert (tmp_path / "demo" / "report.html").is_file()
    assert json.loads((tmp_path / "run" / "train.json").read_text(encoding="utf-8"))["steps"] == 2


USES = {
    "plot": "tl.plot.pictures({'a': torch.rand(2, 8, 8)}).savefig('figure.png')",
    "wavelet": "tl.operators.WaveletTransform((1, 16, 16), 'db4', levels=1)(torch.rand(1, 1, 16, 16))",
    "images": "from PIL import Image; Image.new('L', (9, 9)).save('a.png'); assert len(tl.data.load_images('.')) == 1",
    "sklearn": "tl.contrib.sklearn.LiftedRegressor((4,), max_epochs=1).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])",
}
"""What an extra makes possible."""


@pytest.mark.slow
@pytest.mark.parametrize("extra", USES)
def test_the_wheel_with_an_extra(wheel: Path, tmp_path: Path, extra: str) -> None:
    """Its packages and theirs are enough for what it is for, and none of other extras are there."""
    site = tmp_path / "site"
    install(wheel, site, extra)
    (tmp_path / "work").mkdir()
    code = f"import torch, torchlift as tl; assert tl.__file__.startswith({str(site)!r}); {USES[extra]}"
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path / "work", env=environment, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
