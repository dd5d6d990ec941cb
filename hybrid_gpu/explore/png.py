"""PNG files of small pictures, without an imaging library."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # by the number of channels: gray, RGB, RGBA


def png(pixels: NDArray[Any]) -> bytes:
    """A picture of uint8 as a PNG file.

    Parameters
    ----------
    pixels : uint8 array of shape (height, width), or (height, width, channels)
        With 1, 3 or 4 channels.
    """
    picture = pixels[:, :, None] if pixels.ndim == 2 else pixels
    height, width, channels = picture.shape
    # Every line begins with its filter: 0 for none.
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = picture.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    body = zlib.compress(lines.tobytes(), 9)
    parts = (_chunk(b"IHDR", head), _chunk(b"IDAT", body), _chunk(b"IEND", b""))
    return _SIGNATURE + b"".join(parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
