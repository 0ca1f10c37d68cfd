"""No file, however damaged or forged, makes a reader crash, hang, fill the memory or leave something behind.

`HYPOTHESIS_PROFILE=fuzz make pytest PYTEST_ARGS=tests/fuzz` searches for hours with new examples.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.cases import CASES, TOML, Case
from fuzz.mutations import NESTED, STRANGE, bounded, changed, check_message, damaged, json_bytes
from torchlift.core.errors import DataError, TorchliftError

FEW = settings(max_examples=max(5, settings.default.max_examples // 10) if settings.default else 5)
"""Of the examples of other tests: these are many, and slower."""

VALUES = [name for name, case in CASES.items() if case.json]
SOME = [name for name in CASES if not name.startswith("model, ") or name == "model, mlp"]
JSON = [name for name in SOME if CASES[name].json]
SEALED = [name for name in SOME if CASES[name].seal is not None]


def outcome(case: Case, folder: Path) -> str:
    """What the reader says; "" where it reads."""
    with bounded(folder):
        try:
            case.read(folder)
        except TorchliftError as error:
            check_message(str(error))
            return str(error)
    return ""


class Files:
    """Valid files of a case, and the one of them that is damaged again and again."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case, self.folder = case, folder / "files"
        self.folder.mkdir()
        self.file = case.make(self.folder)
        self.whole = self.file.read_bytes()
        assert outcome(case, self.folder) == ""

    def value(self) -> Any:
        """The JSON value in the file: for a history, the rows."""
        if self.file.suffix == ".jsonl":
            return [json.loads(line) for line in self.whole.splitlines()]
        value = json.loads(self.whole)
        return value["content"] if self.case.seal is not None else value

    def write(self, value: Any) -> None:
        if self.file.suffix == ".jsonl" and isinstance(value, list):
            self.file.write_bytes(b"".join(json_bytes(row) + b"\n" for row in value))
        else:
            self.write_text(json_bytes(value))

    def write_text(self, text: bytes) -> None:
        self.file.write_bytes(text if self.case.seal is None else self.case.seal(self.file, text))


@pytest.fixture
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return Files(CASES[request.param], tmp_path)


@pytest.mark.parametrize("files", SOME, indirect=True)
@FEW
@given(data=st.data())
def test_damaged_bytes(files: Files, data: st.DataObject) -> None:
    files.file.write_bytes(data.draw(damaged(files.whole)))
    outcome(files.case, files.folder)


@pytest.mark.parametrize("files", VALUES, indirect=True)
@FEW
@given(data=st.data())
def test_other_values(files: Files, data: st.DataObject) -> None:
    files.write(data.draw(changed(files.value())))
    outcome(files.case, files.folder)


@pytest.mark.parametrize("files", SEALED, indirect=True)
@FEW
@given(data=st.data())
def test_damaged_bytes_with_a_right_checksum(files: Files, data: st.DataObject) -> None:
    files.write_text(data.draw(damaged(json_bytes(files.value()))))
    outcome(files.case, files.folder)


@pytest.mark.parametrize("files", ["pair", "shards", "model, mlp", "record"], indirect=True)
@FEW
@given(data=st.data())
def test_damaged_tensors_with_a_right_checksum(files: Files, data: st.DataObject) -> None:
    import hashlib

    file = sorted(files.file.parent.glob("*.safetensors"))[0]
    whole = file.read_bytes()
    try:
        content = data.draw(damaged(whole))
        file.write_bytes(content)
        value = files.value()
        entry = value["tensors"] if "shards" not in value else value["shards"][0]
        entry |= {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        files.write(value)
        outcome(files.case, files.folder)
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize("files", [*JSON, "toml"], indirect=True)
@pytest.mark.parametrize("text", NESTED, ids=["list", "object", "closed lists", "closed objects"])
def test_deep_nesting_is_refused(files: Files, text: bytes) -> None:
    files.write_text(b"x = " + text if files.file.suffix == ".toml" else text + b"\n")
    assert outcome(files.case, files.folder) != "" or files.case is CASES["checkpoints"]  # the one before is intact


@pytest.mark.parametrize("files", ["record", "training", "inversion", "settings"], indirect=True)
def test_nesting_within_what_may_hold_anything(files: Files) -> None:
    value: Any = 1
    for _ in range(400):
        value = {"a": [value]}
    content = files.value()
    own = content["record"] if files.case.seal is not None else content
    own["configuration" if "configuration" in own else "environment"] = {"a": value}
    files.write(content)
    assert outcome(files.case, files.folder) != "" or files.case is CASES["settings"]  # which shows nothing of it


@pytest.mark.parametrize("files", SOME, indirect=True)
@pytest.mark.parametrize("kind", ["folder", "pipe", "broken link", "loop", "nothing", "endless"])
def test_what_is_no_file(files: Files, kind: str) -> None:
    file = files.file
    file.unlink()
    if kind == "folder":
        file.mkdir()
    elif kind == "pipe":
        os.mkfifo(file)
    elif kind in ("broken link", "loop"):
        file.symlink_to(file if kind == "loop" else file.with_name("absent"))
    elif kind == "endless":
        file.symlink_to("/dev/zero")
    told = outcome(files.case, files.folder)
    absent = files.case in (CASES["training"], CASES["settings"])  # runs that are not finished, or not begun
    earlier = files.case is CASES["checkpoints"]
    assert told or earlier or (absent and kind in ("nothing", "broken link", "folder", "pipe", "loop"))


@pytest.mark.parametrize("files", SOME, indirect=True)
def test_what_is_endless_on_paper(files: Files) -> None:
    """A file of a tebibyte that takes no room on the disk."""
    os.truncate(files.file, 1 << 40)
    # the checkpoint before is intact; what follows the values is not read
    tolerant = ("checkpoints", "npy", "png", "photograph")
    assert outcome(files.case, files.folder) != "" or files.case in [CASES[name] for name in tolerant]


@pytest.mark.parametrize(
    "text",
    [
        b"a" + b".a" * 100_000 + b" = 1",
        b"[" + b"a." * 100_000 + b"a]",
        b"x = {" + b"a." * 50_000 + b"a = 1}",
        b'"a"' + b'."a"' * 20_000 + b" = 1",
        b"network." + b"1.1." * 5_000 + b"1 = 1",
    ],
)
def test_long_dotted_names_are_refused_at_once(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.toml").write_bytes(text)
    assert "a name of more than 20 parts" in outcome(CASES["toml"], tmp_path / "a")


def test_names_and_numbers_with_points_are_no_long_names(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    numbers = b"[network]\nparameters = [" + b"0.25, " * 200 + b"1.5]\n# " + b"." * 100 + b"\n"
    dots = b'\n[data]\npath = "' + b"a.b." * 30 + b'c"\n'
    (tmp_path / "a" / "config.toml").write_bytes(numbers + dots)
    assert outcome(CASES["toml"], tmp_path / "a") == ""


@pytest.mark.parametrize("name", ["a\0b", "\udcff", "x" * 5000])
@pytest.mark.parametrize("case", ["idx", "toml", "npy", "npz", "history", "pair"])
def test_names_that_no_file_can_have(tmp_path: Path, case: str, name: str) -> None:
    with pytest.raises(TorchliftError, match=": expected "):
        _read_name(case, tmp_path / name)


def _read_name(case: str, path: Path) -> None:
    from torchlift.cli.settings.arrays import read_arrays, read_npy
    from torchlift.cli.settings.files import read_configuration
    from torchlift.data.idx import read_idx
    from torchlift.io import load_tensors
    from torchlift.training import read_history

    if case == "idx":
        read_idx(path, shape=(None,))
    elif case == "toml":
        read_configuration(path)
    elif case == "npy":
        read_npy("data", path)
    elif case == "npz":
        read_arrays(path.with_suffix(".npz"))
    elif case == "history":
        read_history(path)
    else:
        load_tensors(path)


def _header(shape: str, descr: str = "'<f8'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (_header("(1000000000000,)"), "8000000000000 bytes for an array"),
        (_header("(-1,)"), "bytes for an array"),
        (_header("(3,)", "'|O'"), "an array of numbers, got Python objects. Nothing is unpickled."),
        (_header("(3,)", "'<f16'"), "an array of numbers, got float128"),
        (_header("(3,)", "[('a', '<f8')]"), "an array of numbers"),
        (_header("(" * 500 + ")" * 500), "numpy's format"),
        (_header("__import__('os').system('true')"), "numpy's format"),
        (b"\x93NUMPY\x03\x00" + _header("(3,)")[8:], "numpy's format"),
    ],
)
@pytest.mark.parametrize("packed", [False, True], ids=["npy", "npz"])
def test_headers_of_numpy(tmp_path: Path, header: bytes, reason: str, packed: bool) -> None:
    import zipfile

    folder = tmp_path / "a"
    folder.mkdir()
    if packed:
        with zipfile.ZipFile(folder / "data.npz", "w") as file:
            file.writestr("targets.npy", header + bytes(24))
    else:
        (folder / "targets.npy").write_bytes(header + bytes(24))
    assert reason in outcome(CASES["npz" if packed else "npy"], folder)


def test_members_of_an_archive(tmp_path: Path) -> None:
    """Names without their ending, twice the same, out of the folder; nothing is extracted."""
    import warnings
    import zipfile

    folder = tmp_path / "a"
    folder.mkdir()
    good = _header("(3,)") + bytes(24)
    cases = (
        (["targets"], ""),
        (["../targets.npy"], "named inputs, targets and context only"),
        (["targets.npy", "targets.npy"], ""),
        (["x.npy"], "named inputs and targets, got x. Rename it"),
    )
    for names, reason in cases:
        with warnings.catch_warnings(), zipfile.ZipFile(folder / "data.npz", "w") as file:
            warnings.simplefilter("ignore")
            for name in names:
                file.writestr(name, good)
        assert reason in outcome(CASES["npz"], folder)


def test_every_strange_value_is_tried_somewhere() -> None:
    assert len(STRANGE) > 30 and json.loads(json_bytes(STRANGE))[10] == 10**20
    assert TOML.count(b"=") > 10


def test_the_bounds_can_fail(tmp_path: Path) -> None:
    import numpy as np

    (tmp_path / "a").mkdir()
    with pytest.raises(MemoryError), bounded(tmp_path / "a"):
        np.zeros(1 << 36, dtype=np.uint8)
    with pytest.raises(AssertionError, match="made or removed files"), bounded(tmp_path / "a"):
        (tmp_path / "b").touch()
    with pytest.raises(AssertionError):
        check_message("no sentence")
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(DataError):
        CASES["toml"].read(tmp_path)
