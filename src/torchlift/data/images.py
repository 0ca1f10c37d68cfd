"""Images: photographs from files, by Pillow (extra `images`), the bundled ones, and phantoms.

The bundled photographs, three small colour pictures in the public domain or CC0, need no network. They are built by
`scripts/build_photographs.py`; see `files/LICENCE-DATA.md` for their origin.
"""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from torchlift.core.checks import check_size
from torchlift.core.errors import DataError, invalid_value, message, optional_module
from torchlift.core.files import opened, parsing
from torchlift.data.digits import BUNDLED
from torchlift.data.idx import read_idx

#: Endings of files that are read.
ENDINGS = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp")
#: Pixels that one image may have: beyond, a small file may be meant to fill the memory.
LARGEST = 200_000_000


def load_images(folder: str | Path, *, channels: int | None = None) -> list[Tensor]:
    """Every image of a folder in the order of names, as bytes (channels, height, width).

    Arguments:
        folder: with PNG, JPEG, TIFF, BMP or WebP files; other files are left out, folders inside are not entered.
        channels: 1 for grey, 3 for colour; None for colour if any image has it.

    Raises:
        DataError: there is no image, or one cannot be read.
    """
    if channels not in (None, 1, 3):
        invalid_value("load_images channels", "1, 3 or None", channels)
    place = Path(os.path.expanduser(folder))
    where = f"images {place}"
    try:
        files = sorted(path for path in place.iterdir() if path.suffix.lower() in ENDINGS)
    except (OSError, ValueError) as error:  # the latter for a name with a NUL
        raise DataError(message(where, "a folder of images", str(error)[:200])) from error
    if not files:
        raise DataError(message(where, f"files that end in {', '.join(ENDINGS)}", "none"))
    images = [_read(path) for path in files]
    if channels is None:
        channels = max(len(image) for image in images)
    return [with_channels(image, channels) for image in images]


def _read(path: Path) -> Tensor:
    where, expected = f"image {path}", "a readable image"
    pillow = optional_module("load_images", "PIL.Image", "Pillow", "images")
    with opened(where, path, expected) as stream, parsing(where, expected), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata and sizes, which are checked here
        with pillow.open(stream) as image:
            if image.width * image.height > LARGEST:
                got = f"{image.width} x {image.height}"
                raise DataError(message(where, f"at most {LARGEST:,} pixels", got, "Cut it into parts."))
            return image_bytes(image)


def image_bytes(image: Any) -> Tensor:
    """An image of Pillow as bytes (channels, height, width); of 16 bits the upper ones."""
    if image.mode.startswith("I;16"):
        array = (np.asarray(image) >> 8).astype(np.uint8)
    elif image.mode in ("I", "F"):
        raise DataError(message("image", "8 or 16 bits per channel", f"mode {image.mode}", "Save it as PNG."))
    else:
        grey = image.mode in ("1", "L", "LA")
        array = np.array(image.convert("L" if grey else "RGB"))
    return torch.from_numpy(array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1)))


def with_channels(image: Tensor, channels: int) -> Tensor:
    """Grey as three equal channels, colour as luma (ITU-R 601)."""
    if len(image) == channels:
        return image
    if channels == 3:
        return image.expand(3, -1, -1).contiguous()
    luma = torch.tensordot(torch.tensor([0.299, 0.587, 0.114]), image.float(), 1)
    return luma.round().to(torch.uint8)[None]


NAMES = ("astronaut", "cat", "coffee")
"""What they show, in this order."""

SIDE = 256
"""Pictures are 256 x 256 pixels."""

FILE = "photographs-idx4-ubyte"
"""Name of the bundled file, without `.gz`."""

SHA256 = "49996a7c6f454f69b2c51d8b4d6765ff0ab5f5ba5807c0403ec2d6123bf0a9f9"
"""Checksum of the decompressed file."""


def load_photographs(*, dtype: torch.dtype = torch.float32, device: torch.device | str | None = None) -> Tensor:
    """The bundled colour photographs (3, 3, 256, 256), values in [0, 1]: an astronaut, a cat and a cup of coffee.

    The content is checked against its checksum.

    Arguments:
        dtype: Floating-point type.
        device: Where they are put.
    """
    if not dtype.is_floating_point:
        invalid_value("dtype", "a floating-point type such as torch.float32", dtype)
    raw = read_idx(BUNDLED / f"{FILE}.gz", shape=(len(NAMES), 3, SIDE, SIDE), sha256=SHA256)
    return raw.to(device=device, dtype=dtype).div_(255)


#: Intensity, half axes, centre (to the right, upwards) and angle in degrees of each ellipse, with the contrast of
#: Toft, The Radon Transform (1996).
_HEAD = (
    (1.0, 0.69, 0.92, 0.0, 0.0, 0.0),
    (-0.8, 0.6624, 0.874, 0.0, -0.0184, 0.0),
    (-0.2, 0.11, 0.31, 0.22, 0.0, -18.0),
    (-0.2, 0.16, 0.41, -0.22, 0.0, 18.0),
    (0.1, 0.21, 0.25, 0.0, 0.35, 0.0),
    (0.1, 0.046, 0.046, 0.0, 0.1, 0.0),
    (0.1, 0.046, 0.046, 0.0, -0.1, 0.0),
    (0.1, 0.046, 0.023, -0.08, -0.605, 0.0),
    (0.1, 0.023, 0.023, 0.0, -0.605, 0.0),
    (0.1, 0.023, 0.046, 0.06, -0.605, 0.0),
)
#: Samples per pixel and axis.
_SAMPLES = 4


def shepp_logan(side: int) -> Tensor:
    """The Shepp–Logan phantom of a head (1, side, side), values in [0, 1].

    Reference: Shepp & Logan, IEEE Trans. Nucl. Sci. 21 (1974).
    """
    return _image(torch.tensor(_HEAD), check_size("shepp_logan side", side))


def random_phantoms(count: int, side: int, generator: torch.Generator | None = None) -> Tensor:
    """Bodies with a bright border, and eight ellipses of random size, place and intensity inside.

    Returns:
        (count, 1, side, side), values in [0, 1].
    """
    count, side = check_size("random_phantoms count", count), check_size("random_phantoms side", side)
    images = []
    for _ in range(count):
        r, s = torch.rand(8, 6, generator=generator), torch.rand(4, generator=generator).tolist()
        width, height, edge, grey = 0.6 + 0.3 * s[0], 0.6 + 0.3 * s[1], 0.03 + 0.07 * s[2], 0.2 + 0.3 * s[3]
        body = [[0.9, width, height, 0.0, 0.0, 0.0], [grey - 0.9, width - edge, height - edge, 0.0, 0.0, 0.0]]
        low, scale = (
            torch.tensor(row) for row in ([-0.3, 0.02, 0.02, -0.4, -0.4, 0.0], [0.6, 0.25, 0.25, 0.8, 0.8, 180.0])
        )
        images.append(_image(torch.cat([torch.tensor(body), low + scale * r]), side))
    return torch.stack(images)


def _image(ellipses: Tensor, side: int) -> Tensor:
    axis = (torch.arange(_SAMPLES * side) + 0.5) * (2 / (_SAMPLES * side)) - 1
    image = torch.zeros(1, len(axis), len(axis))
    for value, a, b, p, q, degrees in ellipses.tolist():
        cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
        right, up = axis - p, -axis[:, None] - q
        image += value * (((right * cosine + up * sine) / a) ** 2 + ((up * cosine - right * sine) / b) ** 2 <= 1)
    return avg_pool2d(image, _SAMPLES).clamp(0, 1)
