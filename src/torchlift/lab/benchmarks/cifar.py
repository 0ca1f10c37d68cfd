"""CIFAR-10 from a tar archive of JPEG files, which the user has."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchlift.core.errors import DataError, invalid_value, message


def load_cifar(file: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) in [0, 1] and labels of "train" or "test".

    Arguments:
        file: a tar archive of train/CLASS/NAME.jpg and test/CLASS/NAME.jpg; classes are numbered by their names.
        split: "train" or "test".
    """
    try:
        from PIL import Image
    except ImportError:
        invalid_value("load_cifar", "the package Pillow", "none", "Install it: pip install 'torchlift[images]'.")
    pictures: list[tuple[str, str, np.ndarray]] = []
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                parts = Path(member.name).parts
                opened = archive.extractfile(member) if parts[-3:-2] == (split,) and member.isfile() else None
                if opened is not None and parts[-1].endswith(".jpg"):
                    picture = Image.open(io.BytesIO(opened.read())).convert("RGB")
                    pictures.append((parts[-2], parts[-1], np.asarray(picture)))
    except (OSError, tarfile.TarError) as error:
        expected, hint = "a tar archive of JPEG files", "Try the path of cifar10.tar.xz."
        raise DataError(message(f"load_cifar {file}", expected, str(error), hint)) from error
    if not pictures:
        invalid_value(f"load_cifar {file}", f"files {split}/CLASS/NAME.jpg", "none")
    pictures.sort(key=lambda picture: picture[:2])
    names = sorted({name for name, _, _ in pictures})
    images = torch.from_numpy(np.stack([picture for _, _, picture in pictures])).permute(0, 3, 1, 2)
    return images.float() / 255, torch.tensor([names.index(name) for name, _, _ in pictures])
