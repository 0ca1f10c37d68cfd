"""Files: only ordinary ones are read, no further than allowed, and new ones take their place as a whole.

Records are strict JSON in which NaN and the infinities survive. JSON knows neither, so the three floats become objects
of one tagged key,

    {"$float": "nan"}, {"$float": "inf"}, {"$float": "-inf"},

and a key of the record's own that starts with "$" gets a second "$", so that it can never be taken for the tag. All
else is plain JSON; tuples become lists.
"""

from __future__ import annotations

import json
import math
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from torchlift.core.errors import (
    DataError,
    TorchliftError,
    did_you_mean,
    invalid_type,
    invalid_value,
    message,
    system_words,
)

_MARK = "$"
_TAG = "$float"
_NOT_FINITE = ("nan", "inf", "-inf")


def encode(record: Mapping[str, Any]) -> bytes:
    """The record as ASCII JSON; refuses, by its place, any value that would not come back the same."""
    try:
        return json.dumps(_tagged("record", record), allow_nan=False).encode("ascii")
    except TorchliftError:
        raise
    except (RecursionError, ValueError) as error:  # circular, or a whole number of thousands of digits
        invalid_value("record", "values that JSON can hold", error)


def decode(text: bytes) -> Any:
    """The inverse of `encode`; a ValueError if it is none of its results."""
    return json.loads(text, object_hook=_untagged, parse_constant=refuse_constant)


def _tagged(where: str, value: object) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {_TAG: str(float(value))}
    if isinstance(value, list | tuple):
        return [_tagged(f"{where}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_escaped(where, key): _tagged(f"{where}[{key!r}]", item) for key, item in value.items()}
    hint = "Tensors belong into `tensors`; a number in one is `tensor.item()`."
    invalid_type(where, "None, a bool, a number, a string, a list or a dict", value, hint)


def _escaped(where: str, key: object) -> str:
    if not isinstance(key, str):
        invalid_type(f"a key of {where}", "a string", key, "Try `str(key)`.")
    return _MARK + key if key.startswith(_MARK) else key


def _untagged(read: dict[str, Any]) -> Any:
    if list(read) == [_TAG]:
        return float(read[_TAG]) if read[_TAG] in _NOT_FINITE else refuse_constant(read[_TAG])
    return {key.removeprefix(_MARK): value for key, value in read.items()}


def refuse_constant(constant: object) -> Any:
    """For `json.loads(parse_constant=...)`, which reads more than the standard has."""
    raise ValueError(f"{constant} is not JSON")


#: Largest JSON file that is read: 64 MiB.
MAX_JSON = 1 << 26


@contextmanager
def opened(where: str, path: str | os.PathLike[str], expected: str) -> Iterator[BinaryIO]:
    """An ordinary file, open for reading; a folder, a device, or a pipe, which might keep us waiting, is refused.

    Arguments:
        where: begins the message.
        path: the file; of a symbolic link, what it points to.
        expected: what it should be, in words.

    Raises:
        DataError: it cannot be opened or read.
    """
    try:
        with open(path, "rb", opener=_without_waiting) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise DataError(message(where, expected, "something that is no ordinary file"))
            yield stream
    except DataError:
        raise
    except OSError as error:
        raise DataError(message(where, expected, system_words(error), _near(path))) from error
    except ValueError as error:
        if isinstance(path, str | Path) and "\0" in str(path):  # no name of a file has a NUL in it
            raise DataError(message(where, expected, repr(str(path)))) from error
        raise


@contextmanager
def parsing(where: str, expected: str) -> Iterator[None]:
    """Whatever a library raises about what it reads, errors of many kinds, becomes a DataError."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        raise DataError(message(where, expected, str(error)[:400] or type(error).__name__)) from error


def read_bytes(where: str, path: str | os.PathLike[str], largest: int, expected: str = "a readable file") -> bytes:
    """The content of an ordinary file of at most `largest` bytes."""
    with opened(where, path, expected) as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > largest:
            raise DataError(message(where, f"{expected} of at most {largest} bytes", size))
        return stream.read(largest)


def read_json(path: str | os.PathLike[str], hint: str = "") -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        DataError: there is none, or it is not JSON as the standard has it, without NaN and infinities.
    """
    content = read_bytes(str(path), path, MAX_JSON, "a JSON file")
    try:
        value = json.loads(content.decode("utf-8"), parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:  # no UTF-8, no JSON, or nested too deep
        raise DataError(message(str(path), "JSON", error, hint)) from error
    if not isinstance(value, dict):
        raise DataError(message(str(path), "a JSON object", type(value).__name__, hint))
    return value


@contextmanager
def replacing_file(path: Path, mode: int = 0o644) -> Iterator[Path]:
    """A new file beside `path` that takes its place at the end of the block; a crash leaves the old one or the new.

    Arguments:
        path: what is replaced; a symbolic link is, not what it points to.
        mode: the permissions of the new file.
    """
    # The name keeps its suffix: readers may treat .gz and plain files differently.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(mode)
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_file(path: Path, content: bytes | str, mode: int = 0o644) -> None:
    """Replace a file as a whole."""
    with replacing_file(path, mode) as part:
        part.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)


def unlinked(path: Path) -> Path:
    """A path to write to; a symbolic link there is removed, because it would lead out of the folder."""
    if path.is_symlink():
        path.unlink()
    return path


def _near(path: str | os.PathLike[str]) -> str:
    """A hint at a file of almost this name."""
    path = Path(path)
    try:
        beside = [] if path.exists() else [other.name for other in path.parent.iterdir()]
    except OSError:
        return ""
    return did_you_mean(path.name, beside, cutoff=0.8)


def _without_waiting(path: str, flags: int) -> int:
    """A pipe without a writer is opened at once, to be refused."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
