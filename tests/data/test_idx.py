"""The IDX reader: right bytes in, everything else refused before it costs anything."""

from __future__ import annotations

import gzip
import hashlib
import struct
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchlift.core.errors import DataError, TorchliftError
from torchlift.data.idx import read_idx

IMAGES = (3, 2, 2)


def header(*sizes: int, code: int = 0x08, start: bytes = b"\0\0") -> bytes:
    return start + struct.pack(f">BB{len(sizes)}I", code, len(sizes), *sizes)


GOOD = header(*IMAGES) + bytes(range(12))


@pytest.mark.parametrize("name", ["x-idx3-ubyte", "x-idx3-ubyte.gz"])
def test_reads_plain_and_gzip(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_bytes(gzip.compress(GOOD) if name.endswith(".gz") else GOOD)
    values = read_idx(file, shape=(None, 2, 2), sha256=hashlib.sha256(GOOD).hexdigest())
    assert values.dtype == torch.uint8
    assert torch.equal(values, torch.arange(12, dtype=torch.uint8).view(IMAGES))
    values += 1  # the tensor owns writable memory


def test_gzip_content_under_a_plain_name_is_read(tmp_path: Path) -> None:
    file = tmp_path / "x-idx3-ubyte"
    file.write_bytes(gzip.compress(GOOD))
    assert read_idx(file, shape=IMAGES).shape == IMAGES


BAD = {
    "empty": (b"", "two zero bytes"),
    "no magic": (b"PNG!" + GOOD, "two zero bytes"),
    "float type": (header(*IMAGES, code=0x0D) + bytes(48), "type code 0x08"),
    "labels for images": (header(3) + bytes(3), "3 IDX axes, got 1"),
    "sizes cut": (header(*IMAGES)[:10], "12 bytes of axis sizes, got 6"),
    "other sizes": (header(3, 2, 5) + bytes(30), "sizes 3 x 2 x 2, got 3 x 2 x 5"),
    "no images": (header(0, 2, 2), "sizes 3 x 2 x 2, got 0 x 2 x 2"),
    "values cut": (GOOD[:-1], "got"),
    "values added": (GOOD + b"\0", "got"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("case", BAD)
def test_refuses_bad_content(tmp_path: Path, case: str, packed: bool) -> None:
    content, reason = BAD[case]
    file = tmp_path / "bad.idx"
    file.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(DataError) as caught:
        read_idx(file, shape=IMAGES)
    assert reason in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refuses_a_wrong_checksum(tmp_path: Path) -> None:
    file = tmp_path / "x.idx"
    file.write_bytes(GOOD)
    with pytest.raises(DataError, match="SHA-256"):
        read_idx(file, shape=IMAGES, sha256="0" * 64)


def test_refuses_what_is_not_gzip_under_a_gzip_name(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(GOOD)
    with pytest.raises(DataError, match="expected a gzip file, as its name says"):
        read_idx(file, shape=IMAGES)


@pytest.mark.parametrize("damage", ["cut", "flipped checksum", "flipped data"])
def test_refuses_a_damaged_gzip(tmp_path: Path, damage: str) -> None:
    content = bytearray(gzip.compress(GOOD))
    if damage == "cut":
        content = content[:-6]
    else:
        content[-6 if damage == "flipped checksum" else 12] ^= 0xFF
    file = tmp_path / "x.gz"
    file.write_bytes(content)
    with pytest.raises(DataError):
        read_idx(file, shape=IMAGES)


@pytest.mark.parametrize("name", ["absent.gz", "."])
def test_refuses_what_is_no_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="a readable IDX file"):
        read_idx(tmp_path / name, shape=IMAGES)


def peak_memory_of_refusal(file: Path, **options: int) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            read_idx(file, shape=(None, None, None), **options)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_header_cannot_claim_memory(tmp_path: Path) -> None:
    for sizes in [(0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF), (60_000, 60, 60)]:
        for packed in (False, True):
            content = header(*sizes) + bytes(10)
            file = tmp_path / "claim.idx"
            file.write_bytes(gzip.compress(content) if packed else content)
            assert peak_memory_of_refusal(file) < 1 << 20


def test_a_gzip_bomb_is_not_inflated(tmp_path: Path) -> None:
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(header(1, 28, 28) + bytes(200 << 20), compresslevel=1))
    assert peak_memory_of_refusal(file) < 1 << 20


def test_the_limit_holds(tmp_path: Path) -> None:
    file = tmp_path / "x.idx"
    file.write_bytes(GOOD)
    assert read_idx(file, shape=IMAGES, max_bytes=12).numel() == 12
    with pytest.raises(DataError, match="at most 11 bytes"):
        read_idx(file, shape=IMAGES, max_bytes=11)


@given(st.binary(max_size=64), st.booleans())
def test_any_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, rest: bytes, begins_well: bool
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.idx"
    content = b"\0\0\x08\x01" + rest if begins_well else rest
    file.write_bytes(content)
    try:
        values = read_idx(file, shape=(None,))
    except TorchliftError:
        return
    assert bytes(values.tolist()) == content[8:]
