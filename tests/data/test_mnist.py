"""The full MNIST set: where it is looked for, and downloads from a server on this machine."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import http.server
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchlift.core.errors import DataError, InvalidValueError
from torchlift.data import load_mnist, mnist
from torchlift.data.digits import SplitFiles

COUNT = 4
IMAGES = struct.pack(">HBB3I", 0, 8, 3, COUNT, 28, 28) + bytes(range(196)) * 16
LABELS = struct.pack(">HBBI", 0, 8, 1, COUNT) + bytes([3, 1, 4, 1])
SMALL = SplitFiles(
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
    COUNT,
    hashlib.sha256(IMAGES).hexdigest(),
    hashlib.sha256(LABELS).hexdigest(),
)
CONTENT = {f"/{SMALL.images}.gz": gzip.compress(IMAGES), f"/{SMALL.labels}.gz": gzip.compress(LABELS)}


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `CONTENT`; the first folder of the path chooses how to misbehave."""

    def do_GET(self) -> None:
        behaviour, _, name = self.path[1:].partition("/")
        body = CONTENT.get(f"/{name}")
        if body is None or behaviour == "gone":
            self.send_error(404)
            return
        if behaviour == "damaged":
            body = gzip.compress(gzip.decompress(body)[:-1] + b"\xee")
        if behaviour == "large":
            body += bytes(1 << 20)
        self.send_response(200)
        if behaviour == "cut":
            self.send_header("Content-Length", str(len(body) + 7))
        elif behaviour != "large-unannounced":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the reader may have had enough
            self.wfile.write(body + bytes(1 << 20) if behaviour == "large-unannounced" else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{service.server_address[1]}"
        service.shutdown()


@pytest.fixture(autouse=True)
def _small_set_and_empty_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(mnist.SPLITS, "test", SMALL)
    monkeypatch.setattr(mnist, "MAX_DOWNLOAD", 1 << 18)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("TORCHLIFT_DATA", raising=False)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def put(folder: Path, images: str, labels: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in ((images, IMAGES), (labels, LABELS)):
        (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
        ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        ("t10k-images.idx3-ubyte", "t10k-labels.idx1-ubyte.gz"),
    ],
)
@pytest.mark.parametrize("place", ["path", "TORCHLIFT_DATA", "cache"])
def test_places_and_spellings(
    images: str, labels: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "cache" / "torchlift" if place == "cache" else tmp_path / "mine"
    put(folder, images, labels)
    if place == "TORCHLIFT_DATA":
        monkeypatch.setenv(place, str(folder))
    digits = load_mnist("test", path=folder if place == "path" else None)
    assert digits.images.shape == (COUNT, 1, 28, 28)
    assert digits.labels.tolist() == [3, 1, 4, 1]


def test_absent_says_where_it_looked_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLIFT_DATA", str(tmp_path / "named"))
    with pytest.raises(DataError) as caught:
        load_mnist("test")
    for part in (str(tmp_path / "named"), str(tmp_path / "cache"), "TORCHLIFT_DATA", "download=True"):
        assert part in str(caught.value)


def test_a_given_path_is_the_only_place(tmp_path: Path) -> None:
    put(tmp_path / "cache" / "torchlift", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    with pytest.raises(DataError, match="no such files"):
        load_mnist("test", path=tmp_path / "elsewhere")


def test_misspelt_split() -> None:
    with pytest.raises(InvalidValueError, match="Did you mean 'train'"):
        load_mnist("training")


def test_download_verifies_and_keeps(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", (f"{server}/gone/", f"{server}/damaged/", f"{server}/good/"))
    assert load_mnist("test", download=True).labels.tolist() == [3, 1, 4, 1]
    folder = tmp_path / "cache" / "torchlift"
    assert sorted(file.name for file in folder.iterdir()) == [f"{SMALL.images}.gz", f"{SMALL.labels}.gz"]
    monkeypatch.setattr(mnist, "MIRRORS", ())
    assert load_mnist("test", download=True).labels.tolist() == [3, 1, 4, 1]


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("gone", "404"),
        ("damaged", "SHA-256"),
        ("large", "at most 262144 bytes"),
        ("large-unannounced", "at most 262144 bytes"),
        ("cut", "connection closed"),
    ],
)
def test_bad_download_leaves_nothing(
    server: str, behaviour: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", (f"{server}/{behaviour}/",))
    with pytest.raises(DataError) as caught:
        load_mnist("test", path=tmp_path / "new", download=True)
    assert reason in str(caught.value)
    assert "by hand" in str(caught.value)
    assert list((tmp_path / "new").iterdir()) == []


def test_download_takes_no_longer_than_its_deadline(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", (f"{server}/good/",))
    monkeypatch.setattr(mnist, "DEADLINE", -1.0)
    with pytest.raises(DataError, match="within"):
        load_mnist("test", path=tmp_path, download=True)


@pytest.mark.parametrize("url", ["http://example.org/", "file:///etc/", "ftp://example.org/"])
def test_only_https_leaves_the_machine(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", (url,))
    with pytest.raises(DataError, match="an https address"):
        load_mnist("test", path=tmp_path, download=True)


def test_download_shows_a_bar_on_a_terminal(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mnist, "MIRRORS", (f"{server}/good/",))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    load_mnist("test", path=tmp_path, download=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert f"{SMALL.images}.gz" in captured.err


def test_the_real_set(full_mnist_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    train, test = (load_mnist(split, path=full_mnist_path) for split in ("train", "test"))
    assert train.images.shape == (60_000, 1, 28, 28)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert train.labels.bincount().tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
