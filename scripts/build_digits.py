"""Build the bundled digits from the full MNIST set.

    python scripts/build_digits.py --mnist FOLDER [--out FOLDER]

A seeded permutation of the 60,000 training images gives 5,000 training and
500 validation images; one of the 10,000 test images gives 1,000. The same
input always gives the same files: the permutation comes from NumPy's frozen
`RandomState` stream, and the gzip header carries no time and no name.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchlift.data import digits, mnist
from torchlift.data.idx import read_idx

SEED = 2024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mnist", type=Path, required=True, help="folder of the four files of the full set")
    parser.add_argument("--out", type=Path, default=digits.BUNDLED, help="folder to write to")
    options = parser.parse_args()
    for name, sha256 in build(options.mnist, options.out).items():
        print(f"{sha256}  {name}")


def build(source: Path, out: Path) -> dict[str, str]:
    """Write the six files; return the SHA-256 of each one's decompressed content."""
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.RandomState(SEED)
    train, test = (torch.from_numpy(rng.permutation(mnist.SPLITS[split].total)) for split in ("train", "test"))
    chosen = {
        "train": ("train", train[:5_000]),
        "validation": ("train", train[5_000:5_500]),
        "test": ("test", test[:1_000]),
    }
    written: dict[str, str] = {}
    for split, (origin, rows) in chosen.items():
        images, labels = read_raw(source, origin)
        written |= write_idx(out, digits.SPLITS[split].images, images[rows])
        written |= write_idx(out, digits.SPLITS[split].labels, labels[rows])
    return written


def read_raw(source: Path, split: str) -> tuple[Tensor, Tensor]:
    """The untouched bytes of one split of the full set, checked."""
    files = mnist.SPLITS[split]
    images, labels = mnist.find_files(files, [source])
    if images is None or labels is None:
        raise SystemExit(f"{source}: {files.images} or {files.labels} is absent")
    return (
        read_idx(images, shape=(files.total, digits.SIDE, digits.SIDE), sha256=files.images_sha256),
        read_idx(labels, shape=(files.total,), sha256=files.labels_sha256),
    )


def write_idx(out: Path, name: str, values: Tensor) -> dict[str, str]:
    """Write one gzip IDX file of unsigned bytes and return its checksum by name."""
    header = struct.pack(f">HBB{values.ndim}I", 0, 0x08, values.ndim, *values.shape)
    content = header + values.contiguous().numpy().tobytes()
    with (
        (out / f"{name}.gz").open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=file, mtime=0) as packed,
    ):
        packed.write(content)
    return {f"{name}.gz": hashlib.sha256(content).hexdigest()}


if __name__ == "__main__":
    main()
