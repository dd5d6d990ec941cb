"""The pictures of items: rows of an array, or files of a folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hybrid_gpu.explore.png import png
from hybrid_gpu.files.array_files import load_array

# What browsers show, by the first bytes of a file. No SVG: it may hold scripts.
_KINDS = (
    (b"\x89PNG\r\n\x1a\n", ".png", "image/png"),
    (b"\xff\xd8\xff", ".jpg", "image/jpeg"),
    (b"GIF87a", ".gif", "image/gif"),
    (b"GIF89a", ".gif", "image/gif"),
)
_WEBP = (b"RIFF", b"WEBP")
_ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".webp")
# Pixels of an array's pictures that a page can still show.
_MOST_PIXELS = 4_000_000
_SMALL_SIDE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """The file of a picture.

    Attributes
    ----------
    content : bytes
    ending, media_type : str
        By its content, whatever its name says.
    source : Path or None
        The user's file that it is a copy of; None if it was made of an array.
    """

    content: bytes
    ending: str
    media_type: str
    source: Path | None = None


class Pictures(Protocol):
    """Pictures of n items.

    Attributes
    ----------
    pixelated : bool
        Whether they are so small that they are shown pixel by pixel.
    """

    pixelated: bool

    def picture(self, item: int) -> Picture:
        """The picture of an item."""


class ArrayPictures:
    """Pictures that are the rows of an array.

    Parameters
    ----------
    pixels : array of shape (n, height, width), (n, height, width, channels) or (n, pixels)
        With 1, 3 or 4 channels, or a square number of pixels. Numbers other than uint8 are spread
        over black to white, the least and the largest of the array being the two ends; a few rows
        at a time are looked at for that.
    """

    def __init__(self, pixels: NDArray[Any], n: int) -> None:
        self._pixels = _checked(pixels, n)
        self.pixelated = max(self._pixels.shape[1:3]) <= _SMALL_SIDE
        self._low, self._high = 0.0, 255.0
        if self._pixels.dtype != np.uint8:
            rows = max(1, _MOST_PIXELS // int(np.prod(self._pixels.shape[1:])))
            parts = [self._pixels[start : start + rows] for start in range(0, n, rows)]
            self._low = min(float(part.min()) for part in parts)
            self._high = max(float(part.max()) for part in parts)
            if not np.isfinite([self._low, self._high]).all():
                raise ValueError("images must be finite; got NaN or infinity.")

    def picture(self, item: int) -> Picture:
        pixels = np.asarray(self._pixels[item])
        if self._pixels.dtype != np.uint8:
            width = self._high - self._low
            part = (pixels.astype(np.float64) - self._low) / (width if width > 0 else 1.0)
            pixels = np.round(255 * part).astype(np.uint8)
        return Picture(png(pixels), ".png", "image/png")


def _checked(pixels: NDArray[Any], n: int) -> NDArray[Any]:
    """An array of pictures, (n, height, width) or (n, height, width, channels)."""
    if pixels.dtype.kind not in "uif":
        raise ValueError(f"images must be an array of numbers; got dtype {pixels.dtype}.")
    if pixels.ndim == 2:
        side = round(pixels.shape[1] ** 0.5)
        if side * side == pixels.shape[1]:
            pixels = pixels.reshape(len(pixels), side, side)
    known = pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[3] in (1, 3, 4))
    if not known or 0 in pixels.shape or int(np.prod(pixels.shape[1:])) > _MOST_PIXELS:
        raise ValueError(
            "images must be of shape (n, height, width), (n, height, width, 1, 3 or 4), or (n, a "
            f"square number of pixels); got {pixels.shape}."
        )
    if len(pixels) != n:
        raise ValueError(f"images must be one for each of the {n} items; got {len(pixels)}.")
    return pixels


class FolderPictures:
    """Pictures that are the files of a folder.

    If the index has strings for keys, the picture of an item is the file of that name, with or
    without an ending. Else the files, sorted by name, are those of the items in order.
    """

    def __init__(self, folder: Path, n: int, keys: Sequence[Any] | None) -> None:
        names = sorted(
            entry.name
            for entry in os.scandir(folder)
            if entry.is_file() and entry.name.lower().endswith(_ENDINGS)
        )
        if keys is not None and n and isinstance(keys[0], str):
            chosen = _by_key(folder, names, keys)
        elif len(names) == n:
            chosen = names
        else:
            raise ValueError(
                f"{folder}: must hold one picture ({', '.join(_ENDINGS)}) for each of the {n} "
                f"items; got {len(names)}."
            )
        self._files = [folder / name for name in chosen]
        self.pixelated = False

    def picture(self, item: int) -> Picture:
        file = self._files[item]
        content = file.read_bytes()
        for start, ending, media_type in _KINDS:
            if content.startswith(start):
                return Picture(content, ending, media_type, file)
        if content.startswith(_WEBP[0]) and content[8:12] == _WEBP[1]:
            return Picture(content, ".webp", "image/webp", file)
        raise ValueError(f"{file}: not a PNG, JPEG, GIF or WebP picture.")


def _by_key(folder: Path, names: Sequence[str], keys: Sequence[str]) -> list[str]:
    """The name of each key's file. Keys never make up a path: they are looked up among names."""
    table = {Path(name).stem: name for name in reversed(names)} | {name: name for name in names}
    missing = [key for key in keys if key not in table]
    if missing:
        raise ValueError(
            f"{folder}: has no picture for {len(missing)} of {len(keys)} keys, such as "
            f"{missing[0][:60]!r}. Name each file by its item's key, with or without an ending."
        )
    return [table[key] for key in keys]


def load_pictures(path: str | os.PathLike[str], n: int, keys: Sequence[Any] | None) -> Pictures:
    """The pictures of n items, from a folder of files or from an array file."""
    place = Path(path)
    if place.is_dir():
        return FolderPictures(place, n, keys)
    return ArrayPictures(load_array(place, name="images"), n)
