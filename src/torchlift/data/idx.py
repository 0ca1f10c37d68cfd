"""A careful reader of IDX files, plain or gzip.

An IDX file is a header (two zero bytes, a type code, the number of axes, then
one big-endian 32-bit size per axis) followed by the values. Nothing in the
header is believed before it is checked: the type, the axes and the byte count
are compared with what the caller expects, and no more memory is used than the
file really delivers, so a small file cannot claim or inflate to a huge one.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

import torch
from torch import Tensor

from torchlift.core.errors import DataError, message
from torchlift.core.files import opened

MAX_BYTES = 1 << 28
"""Largest payload that is read unless the caller allows more: 256 MiB."""

UNSIGNED_BYTE = 0x08
"""The IDX type code of 8-bit pixels and labels, the only one we read."""

_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 18
_REPLACE = "The file may be damaged: replace it with a fresh copy."

ExpectedShape = tuple[int | None, ...]


def read_idx(
    path: str | os.PathLike[str],
    *,
    shape: ExpectedShape,
    sha256: str | None = None,
    max_bytes: int = MAX_BYTES,
) -> Tensor:
    """Read an IDX file of unsigned bytes.

    Arguments:
        path: The file, plain or gzip (told apart by its first bytes).
        shape: The expected size of every axis; None stands for any size >= 1.
        sha256: Checksum of the decompressed content, header included.
        max_bytes: Refuse a payload larger than this.

    Returns:
        A uint8 tensor that owns its memory.

    Raises:
        DataError: The file is absent, damaged, or not what was expected.
    """
    file = Path(path)
    with opened(str(file), file, "a readable IDX file") as raw:
        try:
            return _read_stream(file, raw, shape, sha256, max_bytes)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(message(str(file), "a complete gzip file", error, _REPLACE)) from error


def _read_stream(file: Path, raw: BinaryIO, shape: ExpectedShape, sha256: str | None, max_bytes: int) -> Tensor:
    compressed = raw.read(2) == _GZIP_MAGIC
    raw.seek(0)
    if not compressed and file.suffix == ".gz":
        _refuse(file, "a gzip file, as its name says", "other content", _REPLACE)
    stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw, mode="rb")) if compressed else raw

    length = os.fstat(raw.fileno()).st_size
    if compressed:
        _check_packed(file, length, max_bytes)  # before the first byte is unpacked
    header = _read_header(file, stream, len(shape))
    sizes = _check_sizes(file, header, shape, max_bytes)
    expected = math.prod(sizes)
    if compressed:
        _check_packed(file, length, expected)
    else:
        _check_length(file, length, len(header) + expected)
    payload = _read_payload(file, stream, expected)
    if sha256 is not None:
        digest = hashlib.sha256(header)
        digest.update(payload)
        if digest.hexdigest() != sha256:
            _refuse(file, f"content with SHA-256 {sha256}", digest.hexdigest(), _REPLACE)
    return torch.frombuffer(payload, dtype=torch.uint8).view(sizes)


def _read_header(file: Path, stream: BinaryIO, axes: int) -> bytes:
    """The checked header: magic, type code, and as many sizes as `axes`."""
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0":
        _refuse(file, "an IDX file, which starts with two zero bytes", f"bytes {start.hex(' ') or '(none)'}", _REPLACE)
    if start[2] != UNSIGNED_BYTE:
        _refuse(file, f"IDX type code 0x{UNSIGNED_BYTE:02x} (unsigned bytes)", f"0x{start[2]:02x}", _swapped(file))
    if start[3] != axes:
        _refuse(file, f"{axes} IDX axes", start[3], _swapped(file))
    sizes = stream.read(4 * axes)
    if len(sizes) < 4 * axes:
        _refuse(file, f"{4 * axes} bytes of axis sizes", f"{len(sizes)} bytes", _REPLACE)
    return start + sizes


def _check_sizes(file: Path, header: bytes, shape: ExpectedShape, max_bytes: int) -> tuple[int, ...]:
    """The sizes in the header, if they are those expected and not too large."""
    sizes = struct.unpack(f">{len(shape)}I", header[4:])
    for size, expected in zip(sizes, shape, strict=True):
        if size == 0 or expected not in (None, size):
            text = " x ".join("any" if axis is None else str(axis) for axis in shape)
            _refuse(file, f"sizes {text}", " x ".join(map(str, sizes)), _swapped(file))
    total = math.prod(sizes)
    if total > max_bytes:
        _refuse(file, f"at most {max_bytes} bytes of values", f"a header that claims {total}", _REPLACE)
    return sizes


def _read_payload(file: Path, stream: BinaryIO, expected: int) -> bytearray:
    """Exactly `expected` bytes, growing with what the file delivers, then its end.

    Asking a gzip stream for one byte more also makes it compare its own
    checksum, which it does only at the end.
    """
    payload = bytearray()
    while len(payload) < expected:
        chunk = stream.read(min(_CHUNK, expected - len(payload)))
        if not chunk:
            _check_length(file, len(payload), expected)
        payload += chunk
    if stream.read(1):
        _refuse(file, f"{expected} bytes of values", "further bytes after them", _REPLACE)
    return payload


def _check_packed(file: Path, length: int, expected: int) -> None:
    """Refuse a gzip file that is much longer than its content, such as one with zeros after its end."""
    if length > (most := expected + expected // 16 + 4096):
        _refuse(file, f"a gzip file of at most {most} bytes for {expected}", length, _REPLACE)


def _check_length(file: Path, length: int, expected: int) -> None:
    if length != expected:
        _refuse(file, f"{expected} bytes", f"{length} bytes", _REPLACE)


def _swapped(file: Path) -> str:
    return f"Check that {file.name} is the file you meant, not e.g. labels in place of images."


def _refuse(file: Path, expected: str, got: object, hint: str) -> NoReturn:
    raise DataError(message(str(file), expected, got, hint))
