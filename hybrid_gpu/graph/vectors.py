"""Descriptors where they are, read tile by tile: checked, and scaled to unit length once.

A database may fill a GPU, or not fit there at all. So nothing here holds more of it than the result
and a few tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import array_api_compat
import numpy as np

from hybrid_gpu.backends import Array, Backend, select_backend
from hybrid_gpu.backends.numpy_backend import host_view, is_on_host
from hybrid_gpu.backends.protocol import HostArray
from hybrid_gpu.other_arrays import NUMPY, Words, words_of
from hybrid_gpu.validation import check_finite, check_vector_rows, item_bytes

# A tile is this part of the rows, but not too small to be worth a call, nor larger than helps.
_TILES, _LEAST_TILE, _LARGEST_TILE = 32, 1 << 18, 1 << 26
# Columns are put in order by so many parts, unless the array is small.
_COLUMN_PARTS, _SMALL = 8, 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Vectors:
    """Descriptors (n, d) of a kind and shape that can be indexed; their values are yet to be seen.

    Attributes
    ----------
    values : float array of shape (n, d)
        As they came, on the host (mapped from a file, perhaps) or on the backend's device.
    what : str
        What messages call them.
    dtype : str
        The precision to have them in.
    backend : Backend
        Where to have them.
    words : Words
        Those of the library that they came from, for messages.
    """

    values: Array | HostArray
    what: str
    dtype: str
    backend: Backend
    words: Words = NUMPY

    @property
    def shape(self) -> tuple[int, int]:
        n, d = self.values.shape
        return int(n), int(d)

    @property
    def unit_bytes(self) -> int:
        """Bytes of all of them at unit length."""
        n, d = self.shape
        return n * d * np.dtype(self.dtype).itemsize

    def tiles(self, start: int, stop: int, rows: int | None = None) -> Iterator[tuple[int, Array]]:
        """Unit vectors from one row to another, some at a time, each with the row it begins at.

        Raises
        ------
        ValueError
            If one has NaN or infinity in the precision asked for.
        """
        part, first = self.values[start:stop, ...], start
        if isinstance(part, np.ndarray):
            part = _InPrecision(part, np.dtype(self.dtype))
        for (tile,) in self.backend.uploads((part,), 0, rows or self._tile_rows()):
            tile = self.backend.asarray(tile, dtype=self.dtype)
            check_finite(tile, self.what, self.backend, self.words)
            yield first, unit_rows(tile, self.backend)
            first += int(tile.shape[0])

    def units(self, start: int = 0, stop: int | None = None, rows: int | None = None) -> Array:
        """Unit vectors from one row to another, all by default, as an array of its own."""
        n, d = self.shape
        stop = n if stop is None else stop
        xp, result = self.backend.xp, None
        for first, tile in self.tiles(start, stop, rows):
            if tile.shape[0] == stop - start:
                return tile
            if result is None:
                shape = (stop - start, d)
                result = xp.empty(shape, dtype=tile.dtype, device=self.backend.device)
            result[first - start : first - start + tile.shape[0], :] = tile
        return result

    def on_host(self) -> Vectors:
        """The same vectors, to be had on the host."""
        values = self.values
        if not isinstance(values, np.ndarray):
            values = self.backend.to_numpy(values)
        return replace(self, values=values, backend=select_backend("numpy"))

    def _tile_rows(self) -> int:
        n, d = self.shape
        row = d * max(item_bytes(self.values), np.dtype(self.dtype).itemsize)
        return max(1, min(max(n // _TILES, _LEAST_TILE // row), _LARGEST_TILE // row))


@dataclass(frozen=True, slots=True, eq=False)
class _InPrecision:
    """An array of the host whose slices come in another precision."""

    values: HostArray
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def __getitem__(self, rows: Any) -> HostArray:
        # What is too large for the precision becomes infinite, and is refused as such.
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(self.values[rows], dtype=self.dtype)


def vectors_of(values: Any, what: str, *, dtype: str, backend: Backend) -> Vectors:
    """Descriptors (n, d) of any library, with everything checked but their values."""
    array, words = check_vector_rows(values, what, backend=backend), words_of(values)
    own = array_api_compat.is_array_api_obj(array)
    if (own and array_api_compat.array_namespace(array) is backend.xp) or not is_on_host(array):
        return Vectors(backend.asarray(array), what, dtype, backend, words)
    # On the host until a tile of them is wanted: all of them may be too many for the device.
    return Vectors(np.asarray(host_view(array)), what, dtype, backend, words)


def unit_rows(vectors: Array, backend: Backend) -> Array:
    """The rows at unit length; a zero row stays zero."""
    xp = backend.xp
    # The largest entry is taken out first: its square could overflow or vanish in float32.
    largest = xp.max(xp.abs(vectors), axis=1, keepdims=True)
    scaled = vectors / xp.where(largest > 0, largest, xp.ones_like(largest))
    lengths = xp.sqrt(xp.sum(scaled * scaled, axis=1, keepdims=True))
    return scaled / xp.where(lengths > 0, lengths, xp.ones_like(lengths))


def put_in_order(units: Array, order: Array, backend: Backend) -> Array:
    """The rows in another order, in the place of an array that nobody else has.

    Some columns at a time: a second copy of all would be the largest array of a build.
    """
    xp, (n, d) = backend.xp, units.shape
    if n * d * item_bytes(units) <= _SMALL:
        return xp.take(units, order, axis=0)
    width = -(-d // _COLUMN_PARTS)
    for first in range(0, d, width):
        columns = slice(first, min(first + width, d))
        units[:, columns] = xp.take(units[:, columns], order, axis=0)
    return units
