"""Fetch a file so that it appears complete and verified, or not at all."""

from __future__ import annotations

import http.client
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from torchlift.core.errors import DataError, TorchliftError, message
from torchlift.core.files import replacing_file

TIMEOUT = 20.0
"""Seconds that a mirror may stay silent."""

DEADLINE = 900.0
"""Seconds that one file may take altogether."""

_CHUNK = 1 << 16
_LOOPBACK = ("127.0.0.1", "::1", "localhost")

Advance = Callable[[int], None]


def fetch(urls: Sequence[str], target: Path, *, check: Callable[[Path], None], limit: int) -> Path:
    """Download the first of `urls` that works to `target`.

    The bytes go to a temporary file beside the target, which is renamed only
    after `check` accepted it, so no reader ever sees half a file.

    Arguments:
        urls: The same file on several mirrors; https only (http is allowed to this machine).
        target: The file to create; its folder is created too.
        check: Raises a TorchliftError when the content is wrong.
        limit: Largest number of bytes that is accepted.

    Raises:
        DataError: No mirror delivered a good file; each one's reason is listed.
    """
    failures: list[str] = []
    for url in urls:
        try:
            return _fetch_one(url, target, check, limit)
        except (TorchliftError, OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
    reasons = " | ".join(failures)
    hint = f"Check the connection, or put the file into {target.parent} by hand."
    raise DataError(message(f"Download of {target.name}", "one mirror to deliver it", reasons, hint))


def _fetch_one(url: str, target: Path, check: Callable[[Path], None], limit: int) -> Path:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise DataError(message("Download", "an https address", url))
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(target) as part:
        with part.open("wb") as sink, urllib.request.urlopen(url, timeout=TIMEOUT) as source:
            _copy(url, source, sink, limit)
        check(part)
    return target


def _copy(url: str, source: http.client.HTTPResponse, sink: BinaryIO, limit: int) -> None:
    """Copy at most `limit` bytes within the deadline, and all that was announced."""
    announced = source.length
    if announced is not None and announced > limit:
        raise DataError(message(url, f"at most {limit} bytes", f"{announced} announced"))
    stop, received = time.monotonic() + DEADLINE, 0
    with _progress(url, announced) as advance:
        while chunk := source.read(_CHUNK):
            received += len(chunk)
            if received > limit:
                raise DataError(message(url, f"at most {limit} bytes", "more"))
            if time.monotonic() > stop:
                raise DataError(message(url, f"the file within {DEADLINE:.0f} s", f"{received} bytes by then"))
            sink.write(chunk)
            advance(len(chunk))
    if announced is not None and received < announced:
        raise DataError(message(url, f"{announced} bytes", f"{received}, then the connection closed"))


@contextmanager
def _progress(url: str, total: int | None) -> Generator[Advance, None, None]:
    """A bar on the terminal; nothing when the output is not a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(url.rsplit("/", 1)[-1], total=total)
        yield lambda count: bar.advance(task, count)
