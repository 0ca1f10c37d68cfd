"""CIFAR-10 from a folder of image files, which the user has."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.data import load_images


def load_cifar(folder: Path, split: str) -> tuple[Tensor, Tensor]:
    """Images (n, 3, 32, 32) in [0, 1] and labels of "train" or "test".

    Arguments:
        folder: of files train/CLASS/NAME and test/CLASS/NAME; classes are numbered by their names.
        split: "train" or "test".
    """
    classes = sorted(path for path in (folder / split).glob("*") if path.is_dir())
    if not classes:
        expected = f"folders {split}/CLASS of image files"
        invalid_value(f"load_cifar {folder}", expected, "none", "Unpack the archive, and name the folder around it.")
    images = [torch.stack(load_images(path, channels=3)) for path in classes]
    labels = [torch.full((len(each),), number) for number, each in enumerate(images)]
    return torch.cat(images).float() / 255, torch.cat(labels)
