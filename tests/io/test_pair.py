"""Tensors and a record in two files: everything comes back, and nothing that was changed is believed."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from torchlift.core.errors import DataError, InvalidTypeError, InvalidValueError, TorchliftError
from torchlift.core.files import decode, encode
from torchlift.io import load_tensors, record, save_tensors
from torchlift.io.record import FLOATS, INTEGERS

TENSORS = {"weight": torch.arange(6.0).view(2, 3), "random": torch.arange(5, dtype=torch.uint8)}
RECORD = {"losses": [1.5, math.nan], "name": "a"}

keys = st.text(max_size=5) | st.sampled_from(["$", "$$", "$float", "$$float"])
leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))
records = st.dictionaries(keys, values, max_size=4)


@st.composite
def some_tensor(draw: st.DrawFn) -> Tensor:
    """Any bytes at all, so also NaNs of every kind and negative zeros."""
    dtype = draw(st.sampled_from(INTEGERS + FLOATS))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    count = math.prod(shape) * dtype.itemsize
    content = torch.tensor(list(draw(st.binary(min_size=count, max_size=count))), dtype=torch.uint8)
    return content.ge(128).view(shape) if dtype == torch.bool else content.view(dtype).view(shape)


def bits(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.shape, tensor.contiguous().view(-1).view(torch.uint8).tolist()


def as_text(record: object) -> str:
    return json.dumps(record)  # the same text for a NaN and a NaN


@given(tensors=st.dictionaries(st.text(max_size=5), some_tensor(), max_size=4), record=records)
@example(tensors={}, record={})
@example(tensors={"0-d": torch.tensor(1.5)}, record={"$float": "nan", "x": {"$float": math.inf}, "s": "\ud800"})
def test_everything_comes_back(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, Tensor], record: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("pair") / "model"
    assert save_tensors(path, tensors, record) == path.resolve()
    read, read_record = load_tensors(path)
    assert {name: bits(tensor) for name, tensor in read.items()} == {n: bits(t) for n, t in tensors.items()}
    assert as_text(read_record) == as_text(record)
    assert {item.name for item in path.iterdir()} == {"tensors.safetensors", "record.json"}


def test_the_encoding_is_the_documented_one() -> None:
    record = {"a": [math.nan, math.inf, -math.inf, -0.0, (1, 2)], "$float": "nan"}
    expected = {"a": [{"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"}, -0.0, [1, 2]], "$$float": "nan"}
    assert json.loads(encode(record)) == expected
    assert as_text(decode(encode(record))) == as_text({**record, "a": [*record["a"][:4], [1, 2]]})


@pytest.mark.parametrize("text", [b"NaN", b'{"$float": "1"}', b'{"$float": []}', b"[" * 10, b"\xff"])
def test_other_encodings_are_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        decode(text)


def circular() -> dict[str, Any]:
    record: dict[str, Any] = {}
    record["self"] = [record]
    return record


BAD_RECORDS = {
    "tensor": ({"a": [0, torch.ones(1)]}, r"record\['record'\]\['a'\]\[1\]: expected None, a bool.* got Tensor"),
    "key": ({"a": {1: 2}}, r"a key of record\['record'\]\['a'\]: expected a string, got int"),
    "set": ({"a": {1}}, "got set"),
    "circular": (circular(), "values that JSON can hold, got .*recursion"),
    "many digits": ({"a": 10**5000}, "values that JSON can hold"),
    "no dict": ([1], "record: expected a dict of JSON values, got list"),
}


@pytest.mark.parametrize("case", BAD_RECORDS)
def test_bad_records(tmp_path: Path, case: str) -> None:
    record, reason = BAD_RECORDS[case]
    with pytest.raises((InvalidTypeError, InvalidValueError), match=reason):
        save_tensors(tmp_path / "model", {}, record)
    assert list(tmp_path.iterdir()) == []


BAD_TENSORS = {
    "no dict": ([torch.ones(1)], "tensors: expected a dict of tensors by name, got list"),
    "no tensor": ({"a": 1.0}, r"tensors\['a'\]: expected a torch.Tensor, got float"),
    "name": ({1: torch.ones(1)}, "the name of a tensor: expected a string, got int"),
    "reserved name": ({"__metadata__": torch.ones(1)}, "other than '__metadata__'"),
    "half a character": ({"\ud800": torch.ones(1)}, r"expected Unicode text .* got '\\ud800'"),
    "sparse": ({"a": torch.ones(2, 2).to_sparse()}, "a dense tensor with values, got torch.sparse_coo"),
    "meta": ({"a": torch.ones(1, device="meta")}, "a dense tensor with values, got torch.strided on meta"),
    "complex": ({"a": torch.ones(1, dtype=torch.complex128)}, "got torch.complex128. .*view_as_real"),
}


@pytest.mark.parametrize("case", BAD_TENSORS)
def test_bad_tensors(tmp_path: Path, case: str) -> None:
    tensors, reason = BAD_TENSORS[case]
    with pytest.raises((InvalidTypeError, InvalidValueError), match=reason):
        save_tensors(tmp_path / "model", tensors, {})
    assert list(tmp_path.iterdir()) == []


def test_awkward_memory(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    tensors = {
        "transposed": base.T,
        "slice": base[:, 1:3],
        "same": base,
        "again": base,
        "part": base[1],
        "expanded": torch.ones(1).expand(5),
        "negated": torch._neg_view(base.clone()),
        "parameter": torch.nn.Parameter(base.clone()),
        "computed": torch.nn.Parameter(base.clone()) * 2,
    }
    read, _ = load_tensors(save_tensors(tmp_path / "model", tensors, {}))
    assert read.keys() == tensors.keys()
    for name, tensor in read.items():
        assert torch.equal(tensor, tensors[name].detach())
        assert tensor.is_contiguous() and not tensor.requires_grad
    read["same"] += 1
    assert torch.equal(read["again"], base)


def test_what_was_read_does_not_need_the_file(tmp_path: Path) -> None:
    path = save_tensors(tmp_path / "model", {"a": torch.ones(100_000)}, {})
    read, _ = load_tensors(path)
    with (path / "tensors.safetensors").open("r+b") as file:
        file.write(bytes(os.fstat(file.fileno()).st_size))
    assert float(read["a"].sum()) == 100_000


def test_both_files_have_the_usual_permissions(tmp_path: Path) -> None:
    path = save_tensors(tmp_path / "model", TENSORS, RECORD)
    (tmp_path / "plain").touch()
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (*path.iterdir(), tmp_path / "plain")}
    assert len(modes) == 1


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = save_tensors(tmp_path / "model", TENSORS, RECORD)
    load_tensors(path)
    return path


@pytest.mark.parametrize("name", ["tensors.safetensors", "record.json"])
def test_every_changed_byte_is_noticed(saved: Path, name: str) -> None:
    content = (saved / name).read_bytes()
    for position in range(len(content)):
        changed = bytearray(content)
        changed[position] ^= 1 + position % 255
        (saved / name).write_bytes(changed)
        with pytest.raises(DataError, match="damaged or was changed"):
            load_tensors(saved)


@pytest.mark.parametrize("name", ["tensors.safetensors", "record.json"])
def test_every_other_length_is_noticed(saved: Path, name: str) -> None:
    content = (saved / name).read_bytes()
    for changed in [content[:length] for length in range(len(content))] + [content + b" ", content + b"\n"]:
        (saved / name).write_bytes(changed)
        with pytest.raises(DataError, match="damaged or was changed"):
            load_tensors(saved)


@pytest.mark.parametrize("name", ["tensors.safetensors", "record.json"])
def test_a_missing_file(saved: Path, name: str) -> None:
    (saved / name).unlink()
    with pytest.raises(DataError, match=r"model: expected a readable .*no such file"):
        load_tensors(saved)


@pytest.mark.parametrize("name", ["tensors.safetensors", "record.json"])
def test_links_and_pipes_are_refused(saved: Path, name: str) -> None:
    (saved / name).rename(saved.parent / name)
    (saved / name).symlink_to(saved.parent / name)
    with pytest.raises(DataError, match="expected an ordinary file, got a link"):
        load_tensors(saved)
    (saved / name).unlink()
    os.mkfifo(saved / name)
    with pytest.raises(DataError, match="expected an ordinary file"):
        load_tensors(saved)


def forge(path: Path, content: bytes, tensors: bytes | None = None) -> None:
    """A record with a right digest, as only somebody who knows the format would write."""
    digest = hashlib.sha256(content).hexdigest().encode()
    (path / "record.json").write_bytes(b'{"sha256": "' + digest + b'", "content": ' + content + b"}\n")
    if tensors is not None:
        (path / "tensors.safetensors").write_bytes(tensors)


def content_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "record.json").read_bytes())["content"]


FORGED = {
    "newer": ({"format": 3}, "expected format 1 or 2, got 3. A newer torchlift"),
    "kind": ({"kind": "other"}, "expected kind 'model', got 'other'"),
    "record": ({"record": [1]}, "expected a dict as the record, got list"),
    "no tensors": ({"tensors": None}, "readable"),
    "size": ({"tensors": {"size": 10**15, "sha256": ""}}, f"expected {10**15} bytes"),
}


@pytest.mark.parametrize("case", FORGED)
def test_foreign_records(saved: Path, case: str) -> None:
    change, reason = FORGED[case]
    forge(saved, json.dumps({**content_of(saved), **change}).encode())
    with pytest.raises(DataError, match=reason):
        load_tensors(saved)


@pytest.mark.parametrize("text", [b"[]", b"{}", b"null", b"[" * 100_000, b"NaN", b"1" * 5000, b"\xff"])
def test_foreign_content(saved: Path, text: bytes) -> None:
    forge(saved, text)
    with pytest.raises(DataError, match=r"readable|expected format 1 or 2, got none"):
        load_tensors(saved)


@pytest.mark.parametrize(
    "tensors", [b"", b"\xff" * 8, b"\x80\x04K\x01." * 100, (1 << 40).to_bytes(8, "little") + b"{}"]
)
def test_foreign_tensors(saved: Path, tensors: bytes) -> None:
    entry = {"size": len(tensors), "sha256": hashlib.sha256(tensors).hexdigest()}
    forge(saved, json.dumps({**content_of(saved), "tensors": entry}).encode(), tensors)
    with pytest.raises(DataError, match="readable"):
        load_tensors(saved)


def test_a_huge_record_is_refused_before_it_is_read(saved: Path) -> None:
    os.truncate(saved / "record.json", 10**12)
    tracemalloc.start()
    with pytest.raises(DataError, match="at most 67108864 bytes, got 1000000000000"):
        load_tensors(saved)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_huge_record_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "MAX_RECORD", 1000)
    with pytest.raises(InvalidValueError, match=r"at most 1000 bytes of JSON.*Put long series into `tensors`"):
        save_tensors(tmp_path / "model", {}, {"a": "x" * 1000})
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_pair_is_replaced(saved: Path) -> None:
    save_tensors(saved, {"b": torch.ones(1)}, {"second": True})
    tensors, record = load_tensors(saved)
    assert list(tensors) == ["b"] and record == {"second": True}
    assert [item.name for item in saved.parent.iterdir()] == ["model"]


def test_a_replacement_that_was_cut_short(saved: Path) -> None:
    saved.rename(saved.with_name(".model.old"))
    assert load_tensors(saved)[0].keys() == TENSORS.keys()
    save_tensors(saved, {}, {"second": True})
    assert load_tensors(saved)[1] == {"second": True}
    assert [item.name for item in saved.parent.iterdir()] == ["model"]


def test_other_things_are_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").touch()
    (tmp_path / "file").touch()
    for name in ("thesis", "file"):
        with pytest.raises(DataError, match=f"{name}: expected nothing, or a folder of .* Choose another path"):
            save_tensors(tmp_path / name, TENSORS, RECORD)
    assert (tmp_path / "thesis" / "chapter.tex").exists() and (tmp_path / "file").exists()


def test_no_place_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        TorchliftError, match="file/model: expected to be able to write there, got a path that leads through"
    ):
        save_tensors(tmp_path / "file" / "model", TENSORS, RECORD)
