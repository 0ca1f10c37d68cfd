"""Small PNG files, without an image library."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

from torch import Tensor

Palette = Sequence[tuple[int, int, int]]
"""Red, green and blue of up to 256 colours."""


def png(levels: Tensor, palette: Palette | None = None) -> bytes:
    """A PNG file of whole numbers: (H, W), colours of the palette or grey levels from 0 to 255, or (H, W, 3)."""
    height, width = levels.shape[:2]
    rows = b"".join(b"\0" + bytes(row) for row in levels.flatten(1).tolist())  # filter 0: as they are
    kind = 2 if levels.ndim == 3 else 0 if palette is None else 3
    header = struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0)
    colours = b"" if palette is None else _chunk(b"PLTE", bytes(value for colour in palette for value in colour))
    content = _chunk(b"IDAT", zlib.compress(rows, 9))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + colours + content + _chunk(b"IEND", b"")


def png_uri(levels: Tensor, palette: Palette | None = None) -> str:
    """The file as a data URI, for pages."""
    return "data:image/png;base64," + base64.b64encode(png(levels, palette)).decode()


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
