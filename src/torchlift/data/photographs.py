"""The bundled photographs: three small colour pictures in the public domain or CC0, which need no network.

Built by `scripts/build_photographs.py`; see `files/LICENCE-DATA.md` for their origin.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchlift.core.errors import invalid_value
from torchlift.data.digits import BUNDLED
from torchlift.data.idx import read_idx

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
