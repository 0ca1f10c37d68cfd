"""The full MNIST set: 60,000 training and 10,000 test images.

It is read from a folder of the user's, from the folder named by the
environment variable `TORCHLIFT_DATA`, or from the cache folder, into which it
can also be downloaded: each file appears complete and verified, or not at all.
Content is always checked against the known checksums.
"""

from __future__ import annotations

import http.client
import os
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch

from torchlift.core.checks import check_choice
from torchlift.core.errors import DataError, TorchliftError, message
from torchlift.core.files import replacing_file
from torchlift.data.digits import SIDE, Digits, SplitFiles, read_digits
from torchlift.data.idx import ExpectedShape, read_idx

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


MIRRORS: tuple[str, ...] = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)
"""Public folders with the four gzip files, tried in this order."""

MAX_DOWNLOAD = 16 << 20
"""No MNIST file is larger than 10 MB compressed; more than 16 MiB is refused."""

SPLITS: dict[str, SplitFiles] = {
    "train": SplitFiles(
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        60_000,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "test": SplitFiles(
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
        10_000,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}


def load_mnist(
    split: str,
    *,
    path: str | os.PathLike[str] | None = None,
    download: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Digits:
    """Load the full MNIST set.

    Arguments:
        split: "train" (60,000 images) or "test" (10,000).
        path: The folder of the four files, plain or gzip. By default the folder
            named by `TORCHLIFT_DATA` is searched, then the cache folder.
        download: Fetch absent files into the first of those folders.
        dtype: Floating-point type of the images.
        device: Where images and labels are put.

    Raises:
        InvalidValueError: There is no such split, or `dtype` is not a floating-point type.
        DataError: A file is absent, damaged or could not be downloaded.
    """
    files = SPLITS[check_choice("load_mnist: split", split, SPLITS)]
    folders = search_folders(path)
    images, labels = find_files(files, folders)
    if images is None or labels is None:
        if not download:
            raise DataError(_absent(files, folders))
        images = images or _download(files.images, (files.total, SIDE, SIDE), files.images_sha256, folders[0])
        labels = labels or _download(files.labels, (files.total,), files.labels_sha256, folders[0])
    return read_digits(files, images, labels, dtype=dtype, device=device)


def search_folders(path: str | os.PathLike[str] | None = None) -> list[Path]:
    """The folders that may hold the full set, in the order they are searched."""
    if path is not None:
        return [Path(path).expanduser()]
    named = os.environ.get("TORCHLIFT_DATA")
    return ([Path(named).expanduser()] if named else []) + [cache_folder()]


def cache_folder() -> Path:
    """`torchlift` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "torchlift"


def find_files(files: SplitFiles, folders: list[Path]) -> tuple[Path | None, Path | None]:
    """The image and the label file of a split, None for what is absent."""
    return _find(files.images, folders), _find(files.labels, folders)


def _find(name: str, folders: list[Path]) -> Path | None:
    dotted = name.replace("-idx", ".idx")  # as some distributions spell it
    spellings = (f"{name}.gz", name, f"{dotted}.gz", dotted)
    candidates = (folder / spelling for folder in folders for spelling in spellings)
    return next((file for file in candidates if file.is_file()), None)


def _absent(files: SplitFiles, folders: list[Path]) -> str:
    places = ", ".join(map(str, folders))
    return (
        f"Full MNIST: expected {files.images} and {files.labels} (plain or .gz) in {places}, got no such files. "
        "Pass path=..., set TORCHLIFT_DATA to their folder, or let load_mnist(..., download=True) fetch them; "
        "load_digits(...) needs no files."
    )


def _download(name: str, shape: ExpectedShape, sha256: str, folder: Path) -> Path:
    def check(part: Path) -> None:
        read_idx(part, shape=shape, sha256=sha256)

    return fetch([f"{mirror}{name}.gz" for mirror in MIRRORS], folder / f"{name}.gz", check=check, limit=MAX_DOWNLOAD)
