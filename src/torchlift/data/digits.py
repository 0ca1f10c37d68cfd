"""The bundled digits: a fixed subset of MNIST that needs no network.

Built by `scripts/build_digits.py`; see `data/LICENCE-DATA.md` for its origin.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from torchlift.core.checks import check_choice
from torchlift.core.errors import invalid_value
from torchlift.data.idx import read_idx

SIDE = 28
"""Images are 28 x 28 pixels."""

BUNDLED = Path(__file__).parent / "files"
"""The folder of the bundled files."""


class Digits(NamedTuple):
    """Images of handwritten digits with their labels."""

    images: Tensor
    """(B, 1, 28, 28), values in [0, 1]."""
    labels: Tensor
    """(B,), int64, values 0 to 9."""


class SplitFiles(NamedTuple):
    """Where one split lives and what it must contain."""

    images: str
    """File name of the images, without `.gz`."""
    labels: str
    """File name of the labels, without `.gz`."""
    total: int
    """Number of images."""
    images_sha256: str
    """Checksum of the decompressed image file."""
    labels_sha256: str
    """Checksum of the decompressed label file."""


SPLITS: dict[str, SplitFiles] = {
    "train": SplitFiles(
        "digits-train-images-idx3-ubyte",
        "digits-train-labels-idx1-ubyte",
        5_000,
        "2719e9cbdd56b154697c4407cfe8d37b7a7b4f2bfde588538ba5d72928c954ee",
        "b5f1e8e3b5e3fa2c0e2bd86058764fc40afc3f39df21504ab9fe7dc7f1118244",
    ),
    "validation": SplitFiles(
        "digits-validation-images-idx3-ubyte",
        "digits-validation-labels-idx1-ubyte",
        500,
        "9c9794f1a0325cf95a8a602e843005a6c323b3754e6671227e361935c26f155f",
        "a27b11938a68d8e9f27cfaef9b956042241c1b41741914ac277598d719f2906f",
    ),
    "test": SplitFiles(
        "digits-test-images-idx3-ubyte",
        "digits-test-labels-idx1-ubyte",
        1_000,
        "49bb638505e56bb05044ae0594784d16b65b6c96777250bcdf4db71ac561ccb0",
        "29fa1ec97aeef085cc1d106533a9ec54ae7bb84cb8dc5ec7b0909553ee45d367",
    ),
}


def load_digits(
    split: str,
    *,
    path: str | os.PathLike[str] | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Digits:
    """Load the bundled digits: 5,000 train, 500 validation, 1,000 test images.

    The three splits are disjoint. The content is checked against its checksum.

    Arguments:
        split: "train", "validation" or "test".
        path: A folder with copies of the bundled files, instead of the bundled ones.
        dtype: Floating-point type of the images.
        device: Where images and labels are put.

    Raises:
        InvalidValueError: There is no such split, or `dtype` is not a floating-point type.
        DataError: A file is absent or damaged.
    """
    files = SPLITS[check_choice("load_digits: split", split, SPLITS)]
    folder = BUNDLED if path is None else Path(path)
    return read_digits(files, folder / f"{files.images}.gz", folder / f"{files.labels}.gz", dtype=dtype, device=device)


def read_digits(
    files: SplitFiles, images: Path, labels: Path, *, dtype: torch.dtype, device: torch.device | str | None
) -> Digits:
    """Read one split from two files and scale its images to [0, 1]."""
    if not dtype.is_floating_point:
        invalid_value("dtype", "a floating-point type such as torch.float32", dtype)
    raw = read_idx(images, shape=(files.total, SIDE, SIDE), sha256=files.images_sha256)
    classes = read_idx(labels, shape=(files.total,), sha256=files.labels_sha256)
    scaled = raw.unsqueeze(1).to(device=device, dtype=dtype).div_(255)
    return Digits(scaled, classes.to(device=device, dtype=torch.int64))
