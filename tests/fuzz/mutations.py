"""Files that were right once: structure-aware damage, and what a reader may do with it.

A case of `test_readers.py` gives a folder of valid files and a function that
reads it. Damage is bytes (cut, flipped, repeated, inserted), values of JSON
(other types, huge and strange numbers, deep nesting, names that are not
there), or the file itself (a folder, a pipe, a link). The reader must return,
or raise a `TorchliftError` of one short line; it must not take long, take much
memory, or leave files behind.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

SECONDS = 20
"""That one reading may take; the machine may be busy, and what hangs hangs for longer."""
ROOM = 3 << 30
"""Bytes of address space beyond what is in use: claims of much more must be refused, not tried."""
LONGEST = 3000
"""Letters of a message."""

STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 7, 10**6, 10**12, 10**20, 10**400, -(10**30), 0.5, -0.0, 1e308, "", "x", "../x",
    "/etc/passwd", "a\0b", "\ud800", "\x1b[2J", "NaN", "Linear", [], {}, [[]], [1, 2], {"a": 1}, ["x"] * 3,
    {"class": "Mask"}, {"$float": "nan"}, {"$float": 3}, [10**12, 10**12], "x" * 5000, {"\ud800": 1},
]  # fmt: skip
"""What stands in place of a value."""

NESTED = [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 900 + b"]" * 900, b'{"a":' * 900 + b"1" + b"}" * 900]
"""What may be too deep for a parser, or for those who walk through what it found."""

BYTES = [
    b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r\n", b'"', b"{", b"}", b"[", b"]", b"=", b".", b"NaN",
    b"Infinity", b"-1", b"1e999", b"9" * 5000, b"\x80\x04K\x01.", b"\xff" * 8, b"\x1f\x8b", b"PK\x03\x04", *NESTED,
]  # fmt: skip
"""What is inserted."""


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The content after one to three injuries."""
    for _ in range(draw(st.integers(1, 3))):
        size = len(content)
        place = draw(st.integers(0, size))
        match draw(st.sampled_from(["cut", "flip", "insert", "repeat", "remove", "replace"])):
            case "cut":
                content = content[:place]
            case "flip" if place < size:
                content = content[:place] + bytes([content[place] ^ draw(st.integers(1, 255))]) + content[place + 1 :]
            case "insert":
                content = content[:place] + draw(st.sampled_from(BYTES) | st.binary(max_size=9)) + content[place:]
            case "repeat":
                end = draw(st.integers(place, min(size, place + 200)))
                content = content[:end] + content[place:end] * draw(st.sampled_from([1, 2, 50])) + content[end:]
            case "remove":
                content = content[:place] + content[place + draw(st.integers(1, 40)) :]
            case "replace":
                other = draw(st.sampled_from(BYTES))
                content = content[:place] + other + content[place + len(other) :]
    return content


@st.composite
def changed(draw: st.DrawFn, value: Any) -> Any:
    """The JSON value after one to three changes somewhere within."""
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(value))
        path = draw(st.sampled_from(places))
        value = _at(value, path, lambda old: _other(draw, old))
    return value


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in list(inner)[:30]:
        yield from _places(each, (*path, key))


def _at(value: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _at(copy[path[0]], path[1:], change)
    return copy


def _other(draw: st.DrawFn, old: Any) -> Any:
    choices = ["strange", "wrap"]
    choices += ["without", "with"] if isinstance(old, dict) and old else []
    choices += ["shorter", "longer"] if isinstance(old, list) and old else []
    match draw(st.sampled_from(choices)):
        case "without":
            gone = draw(st.sampled_from(sorted(old)))
            return {name: each for name, each in old.items() if name != gone}
        case "with":
            return {**old, draw(st.sampled_from(["surplus", "device", "dtype", "__class__", "", "\0"])): _strange(draw)}
        case "shorter":
            return old[:-1]
        case "longer":
            return [*old, draw(st.sampled_from(old)), *old][: len(old) * 3]
        case "wrap":
            return [old]
        case _:
            return _strange(draw)


def _strange(draw: st.DrawFn) -> Any:
    return draw(st.sampled_from(STRANGE) | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5))


def json_bytes(value: Any) -> bytes:
    """JSON as a program of another origin would write it, whole numbers of any length included."""
    return json.dumps(value).encode()


def sealed(content: bytes) -> bytes:
    """`record.json` with a right checksum, as only somebody who knows the format would write it."""
    digest = hashlib.sha256(content).hexdigest().encode()
    return b'{"sha256": "' + digest + b'", "content": ' + content + b"}\n"


@contextmanager
def bounded(folder: Path) -> Iterator[None]:
    """Little time, little memory, and no file outside (or inside) the folder."""
    before = sorted(folder.parent.rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * os.sysconf("SC_PAGE_SIZE")
    handler = signal.signal(signal.SIGALRM, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + ROOM, hard))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, handler)
    assert sorted(folder.parent.rglob("*")) == before, "reading has made or removed files"


def _too_long(*_: object) -> None:
    raise AssertionError(f"reading took more than {SECONDS} s")


def check_message(text: str) -> None:
    """One short line that can be printed."""
    assert len(text) < LONGEST, text[:200]
    assert ": expected " in text, text
