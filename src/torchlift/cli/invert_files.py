"""What `torchlift invert` reads and writes: models, batches of arrays or pictures, pictures of the results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchlift.cli.settings.arrays import read_npy, read_safetensors
from torchlift.cli.settings.network import call_named
from torchlift.core.checks import Shape
from torchlift.core.errors import DataError, invalid_value, message, optional_module
from torchlift.core.files import opened, parsing, write_file
from torchlift.core.png import png
from torchlift.data.idx import read_idx
from torchlift.data.images import image_bytes, with_channels
from torchlift.io import load_model
from torchlift.io.models import fill
from torchlift.networks import Network, lift

MOST_PICTURES = 1000
"""PNG files that are written at most; x.npy holds all images."""


def read_model(name: str, weights: Path | None = None, input_shape: Shape | None = None) -> Network:
    """A network that was saved, or one that a function of the user's makes, in evaluation mode.

    Arguments:
        name: a folder of `save_model`, the folder of a run of `torchlift train`, or module:function.
        weights: a safetensors file for what the function makes.
        input_shape: of a convolutional `nn.Sequential` that the function makes.
    """
    if ":" in name and not Path(name).exists():
        return _made(name, weights, input_shape)
    if weights is not None or input_shape is not None:
        hint = "A saved model has its own."
        invalid_value("invert", "module:function beside --weights and --input-shape", f"the folder {name}", hint)
    folder = Path(name).expanduser()
    inner = folder / "model"
    model = inner if inner.is_dir() else folder
    if not model.is_dir() or not any(model.iterdir()):
        got = "a file" if folder.is_file() else "an empty folder" if folder.is_dir() else "nothing there"
        expected = "a folder that torchlift train or save_model wrote, or module:function"
        hint = "The model comes first, then the data." if folder.is_file() else ""
        raise DataError(message(f"model {name}", expected, got, hint))
    return load_model(model).eval()


def read_batch(path: Path, shape: Shape, like: Tensor | None) -> Tensor:
    """Samples (B, *shape) from a .npy file, a .png file, a folder of them, or an IDX file (plain or gzip).

    Pictures and IDX images are scaled to [0, 1]; arrays are taken as they are. One sample needs no batch axis.
    """
    path = path.expanduser()
    if not path.exists():
        raise DataError(message(f"{path}", "a file or folder", "nothing there"))
    if path.suffix == ".npy":
        array = read_npy(f"{path}", path)
        _check_shape(path, array.shape, shape)
        samples = torch.from_numpy(array.astype(np.float64))
    elif path.is_dir() or path.suffix.lower() == ".png":
        files = sorted(path.glob("*.png")) if path.is_dir() else [path]
        if not files:
            raise DataError(message(f"{path}", "a folder of .png files", "none"))
        pictures = [_picture(file, shape) for file in files]
        sizes = sorted({tuple(picture.shape) for picture in pictures})
        if len(sizes) > 1:
            raise DataError(message(f"{path}", "pictures of one size", f"{sizes[0]} and {sizes[1]}"))
        samples = torch.stack(pictures)
    elif "idx" in path.name:
        levels = read_idx(path, shape=(None, None, None))
        _check_shape(path, levels.shape, shape)
        samples = levels.double() / 255
    else:
        raise DataError(message(f"{path}", "a .npy, .png or IDX file, or a folder of .png", repr(path.name)))
    _check_shape(path, samples.shape, shape)
    return samples.reshape(-1, *shape).to(torch.empty(0) if like is None else like)


def write_pictures(folder: Path, images: Tensor) -> int:
    """One 8-bit PNG per image (1 or 3 channels), values clamped to [0, 1]; returns how many were written."""
    folder.mkdir(parents=True, exist_ok=True)
    levels = (images[:MOST_PICTURES].detach().cpu().double().clamp(0, 1) * 255).round().to(torch.uint8)
    for index, image in enumerate(levels):
        write_file(folder / f"{index:04d}.png", png(image[0] if len(image) == 1 else image.movedim(0, -1)))
    return len(levels)


def _made(name: str, weights: Path | None, input_shape: Shape | None) -> Network:
    made = call_named(f"invert model {name!r}, which is no folder", name)
    if weights is not None:
        tensors = read_safetensors(f"weights {weights}", weights.expanduser())
        fill(made, tensors, f"weights {weights}", "They belong to another network.")
    made.eval()
    return made if isinstance(made, Network) else lift(made, input_shape)


def _picture(file: Path, shape: Shape) -> Tensor:
    """(C, H, W) in [0, 1], grey unless the shape has three channels."""
    where, expected = str(file), "a readable PNG picture"
    pillow = optional_module(where, "PIL.Image", "Pillow", "images")
    channels = 3 if len(shape) == 3 and shape[0] == 3 else 1
    with (
        opened(where, file, expected) as stream,
        parsing(where, expected),
        pillow.open(stream, formats=["PNG"]) as picture,
    ):
        if picture.width * picture.height * channels != math.prod(shape):
            got = f"a picture of {picture.width} × {picture.height} pixels"
            raise DataError(message(where, f"samples of shape {shape}", got))
        return with_channels(image_bytes(picture), channels).double() / 255


def _check_shape(path: Path, given: Sequence[int], shape: Shape) -> None:
    """Refuse an array that is not (B, *shape), but for axes of size 1 and flat samples.

    Before its numbers are converted, because they may grow by a factor of eight.
    """
    one = tuple(given[1:])
    several = bool(given) and given[0] > 0 and (_squeezed(one) == _squeezed(shape) or one == (math.prod(shape),))
    if not several and _squeezed(given) != _squeezed(shape):
        raise DataError(message(f"{path}", f"samples of shape {shape}", f"an array {tuple(given)}"))


def _squeezed(shape: Iterable[int]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)
