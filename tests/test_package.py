"""The package as a whole: light to import, safe, typed, and of one version."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import torchlift

SOURCE = Path(torchlift.__file__).parent

HEAVY = {
    "deepinv", "matplotlib", "plotly", "rich", "sklearn", "skimage", "tensorboard", "torchmetrics", "torchvision",
    "tyro",
}  # fmt: skip
"""Loaded only by the functions that need them."""


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light_and_fast() -> None:
    """As a share of torch's own import in the same process, in processor time: a busy machine slows both alike."""
    code = (
        "import json, sys, time; a = time.process_time(); import torch; b = time.process_time();"
        "before = set(sys.modules); import torchlift; c = time.process_time(); loaded = set(sys.modules) - before;"
        "print(json.dumps([(c - b) / (b - a), sorted({n.partition('.')[0] for n in loaded})]))"
    )
    shares, loaded = zip(*(json.loads(run_python(code)) for _ in range(3)), strict=True)
    assert set(loaded[0]) & HEAVY == set()
    share = statistics.median(shares)
    print(f"import torchlift: {share:.2f} of import torch")
    assert share < 0.3


def test_one_version(repository: Path) -> None:
    version = torchlift.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert importlib.metadata.version("torchlift") == version, "reinstall: pip install -c constraints.txt -e ."
    assert f"\nversion: {version}\n" in (repository / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{version}]" in (repository / "CHANGELOG.md").read_text(encoding="utf-8")


def test_typed_and_complete() -> None:
    assert (SOURCE / "py.typed").is_file()
    assert len(list((SOURCE / "data" / "files").glob("digits-*.gz"))) == 6
    assert (SOURCE / "data" / "files" / "photographs-idx4-ubyte.gz").is_file()


def test_constraints_name_plain_versions(repository: Path) -> None:
    lines = (repository / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", pin) for pin in pins)


FORBIDDEN_MODULES = {
    "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "code", "codeop", "runpy",
    "pty", "yaml", "xml", "ctypes", "commands",
}  # fmt: skip
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "torch.load", "torch.save", "np.load",
    "numpy.load", "os.system", "os.popen", "os.startfile", "os.execv", "os.execvp", "os.spawnv",
    "asyncio.create_subprocess_shell", "subprocess.getoutput", "subprocess.getstatusoutput", "tarfile.open",
    "shutil.unpack_archive",
}  # fmt: skip


def unsafe(code: str) -> list[str]:
    """Imports and calls that could run what a file contains."""
    found: list[str] = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.partition(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name for name in names if name.partition(".")[0] in FORBIDDEN_MODULES or name in FORBIDDEN_CALLS]
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            pickles = any(each.arg == "allow_pickle" and ast.unparse(each.value) != "False" for each in node.keywords)
            shell = any(each.arg == "shell" and ast.unparse(each.value) != "False" for each in node.keywords)
            extracts = isinstance(node.func, ast.Attribute) and node.func.attr in ("extract", "extractall")
            if name in FORBIDDEN_CALLS or pickles or shell or extracts:
                found.append(name)
    return found


def test_nothing_is_unpickled_or_evaluated() -> None:
    found = {str(file.relative_to(SOURCE)): unsafe(file.read_text(encoding="utf-8")) for file in SOURCE.rglob("*.py")}
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "torch.load(f)",
        "from torch import load",
        "x = eval('1')",
        "subprocess.run('ls', shell=True)",
        "read_array(f, allow_pickle=True)",
        "archive.extractall(p)",
        "os.popen('x')",
        "import yaml",
        "from subprocess import getoutput",
    ],
)
def test_the_safety_check_can_fail(code: str) -> None:
    assert len(unsafe(code)) == 1


def test_the_safety_check_accepts_methods() -> None:
    assert unsafe("model.eval(); re.compile('x'); torch.compile(f); json.load(f); np.save(f, allow_pickle=False)") == []


def test_everything_named_can_be_had() -> None:
    import torchlift

    assert all(hasattr(torchlift, name) for name in torchlift.__all__)
    assert set(torchlift.__all__) <= set(dir(torchlift))
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        _ = torchlift.trane  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"There is torchlift\.priors\.TotalVariation"):
        _ = torchlift.TotalVariation  # pyright: ignore[reportAttributeAccessIssue]
